"""What an engine lets in: a request's payload, checked, and compiled."""

from collections.abc import Sequence
from threading import Lock
from typing import Any

import msgspec
from cachetools import LRUCache, cached

from ...spec import VERSION, LivePayload, LogitsProcessorSpec, Payload, decode
from ..back_end import BackEnd
from .compile import Program, compile_specs

CACHE_BYTES = 1 << 28
"""What the programs of earlier requests may take, about."""


def admitted(back_end: BackEnd, payload: Any, vocab_size: int | None) -> tuple[Payload, Program]:
    """What a request carries, and what it compiles to.

    Args:
        back_end: what the engine can do.
        payload: as ``decode`` takes it, or decoded already.
        vocab_size: number of the engine's tokens, if it is known.

    Raises:
        SpecError: if it cannot be realized.
    """
    if not isinstance(payload, Payload):
        if not isinstance(payload, str):
            payload = msgspec.json.encode(decode(payload)).decode()
        return _admitted_text(back_end, payload, vocab_size)[:2]
    back_end.check(payload.specs)
    if vocab_size is not None:
        payload.check_vocabulary(vocab_size)
    return payload, compile_specs(payload.specs)


def admitted_live(
    back_end: BackEnd,
    specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec],
    vocab_size: int,
) -> Program:
    """What specs compile to that never travel: the engine is in this process.

    Raises:
        SpecError: if they cannot be realized.
    """
    payload = LivePayload(VERSION, specs)  # pyright: ignore
    return admitted(back_end, payload, vocab_size)[1]


def _bytes_of(entry: tuple[Payload, Program, int]) -> int:
    """About how much memory an entry takes, from the length of its text and the size of tables."""
    _, program, length = entry
    return 1024 + 16 * length + 32 * program.cells


@cached(LRUCache(CACHE_BYTES, _bytes_of), lock=Lock())
def _admitted_text(
    back_end: BackEnd, payload: str, vocab_size: int | None
) -> tuple[Payload, Program, int]:
    """Requests that carry the same text share one program, and so one set of tables."""
    return *admitted(back_end, decode(payload), vocab_size), len(payload)
