"""What an engine lets in: a request's payload, checked, and compiled."""

import sys
from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple

import msgspec
import numpy as np
from cachetools import LRUCache

from ...spec import VERSION, LivePayload, LogitsProcessorSpec, Payload, SpecError, decode
from ...spec.limits import MAX_PAYLOAD_BYTES
from ..back_end import BackEnd
from .compile import Program, compile_specs
from .cost import Cost

CACHE_BYTES = 1 << 28
"""What the programs of earlier requests may take, with the payloads that they come from."""

REFUSAL_BYTES = 1 << 24
"""What refusals of earlier requests may take. They have a cache of their own: a flood of bad
payloads must not push out the programs of good ones.
"""

Key = tuple[BackEnd, str, int | None]


class _Admitted(NamedTuple):
    payload: Payload
    program: Program
    size: int


class _Refusal(NamedTuple):
    """What is kept of a ``SpecError``: not its traceback, which holds the whole payload."""

    message: str
    path: str
    size: int


_lock = Lock()
"""Held to look something up or to put it there, never while anything is decoded or compiled."""


def admitted(back_end: BackEnd, payload: Any, vocab_size: int | None) -> tuple[Payload, Program]:
    """Check what a request carries, and compile it.

    What equal texts came to is remembered, a refusal as well as a program. Requests that carry the
    same text share one program, and so one set of tables.

    Args:
        back_end: what the engine can do.
        payload: as ``decode`` takes it, or decoded already.
        vocab_size: number of the engine's tokens, if it is known.

    Raises:
        SpecError: if it cannot be realized.
    """
    if isinstance(payload, Payload):
        return _compiled(back_end, payload, vocab_size)[:2]
    if isinstance(payload, bytes):
        try:
            payload = payload.decode()
        except UnicodeDecodeError:
            raise SpecError("The payload is not valid Unicode") from None
    decoded = None
    if isinstance(payload, str):
        text = payload
        if len(text) > MAX_PAYLOAD_BYTES:  # not even hashed
            decode(text)
    else:
        decoded = decode(payload)
        text = msgspec.json.encode(decoded).decode()
    key = back_end, text, vocab_size
    with _lock:
        found = _programs.get(key) or _refusals.get(key)
    if found is None:
        found = _remembered(key, decoded)
    if isinstance(found, _Refusal):
        raise SpecError(found.message, found.path)
    return found.payload, found.program


def admitted_live(
    back_end: BackEnd,
    specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec],
    vocab_size: int,
) -> Program:
    """Compile specs that never travel: the engine is in this process.

    Raises:
        SpecError: if they cannot be realized.
    """
    payload = LivePayload(VERSION, specs)  # pyright: ignore
    return admitted(back_end, payload, vocab_size)[1]


def forget() -> None:
    """Forget all programs and refusals."""
    with _lock:
        _programs.clear()
        _refusals.clear()


def _compiled(
    back_end: BackEnd, payload: Payload, vocab_size: int | None
) -> tuple[Payload, Program, Cost]:
    back_end.check(payload.specs)
    if vocab_size is not None:
        payload.check_vocabulary(vocab_size)
    program = compile_specs(payload.specs)
    cost = Cost.of(program)
    cost.check()
    return payload, program, cost


def _remembered(key: Key, decoded: Payload | None) -> "_Admitted | _Refusal":
    """Admit a text that is new. Of two threads that do so at once, the first one's is kept.

    Raises:
        SpecError: for a refusal that a plugin's exception caused: the next call may succeed.
    """
    back_end, text, vocab_size = key
    try:
        payload, program, cost = _compiled(back_end, decoded or decode(text), vocab_size)
    except SpecError as error:
        if error.__cause__ is not None:
            raise
        refusal = _Refusal(error.message, error.path, 2048 + sys.getsizeof(text))
        with _lock:
            return _refusals.setdefault(key, refusal)
    found = _Admitted(payload, program, _bytes_of(text) + cost.memory)
    with _lock:
        return _programs.setdefault(key, found)


def _bytes_of(text: str) -> int:
    """What an entry of the cache takes, tables aside: its text, and the values in its payload.

    The values are counted by what comes before each of them in the text; a text that is full of
    commas counts for more than it takes.
    """
    characters = np.frombuffer(text.encode(), np.uint8)
    per_value = {",": 48, ":": 100, "[": 96, "{": 96}
    payload = sum(
        size * int(np.count_nonzero(characters == ord(before)))
        for before, size in per_value.items()
    )
    return 2048 + sys.getsizeof(text) + payload


_programs: LRUCache[Key, _Admitted] = LRUCache(CACHE_BYTES, lambda entry: entry.size)
_refusals: LRUCache[Key, _Refusal] = LRUCache(REFUSAL_BYTES, lambda entry: entry.size)
