"""What is fuzzed: admission, as a front end calls it, with plugins that do their worst."""

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any, NamedTuple

from logitport.adapters import admission
from logitport.adapters.backend import REALIZABLE, Backend
from logitport.adapters.core import Vocabulary, plugins
from logitport.spec import GrammarSpec, SamplingSpec, SpecError
from logitport.spec.limits import MAX_MESSAGE, MAX_PATH

from benchmarks.workload import vocabulary


@cache
def _vocabulary() -> Vocabulary:
    return vocabulary(Random(0), VOCAB)


LOWERED = frozenset({GrammarSpec, SamplingSpec})
BACKEND = Backend("fuzzed", REALIZABLE, LOWERED, load_vocabulary=_vocabulary)
VOCAB = 151_936


class Rule(plugins.HistoryRule):
    def additions(self, prompt_ids: Any, output_ids: Any) -> Mapping[int, float]:
        return {}


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def exits(params: Mapping[str, Any]) -> Any:
    sys.exit(str(params))


def stops(params: Mapping[str, Any]) -> Any:
    raise GeneratorExit


def unprintable(params: Mapping[str, Any]) -> Any:
    raise UnprintableError


def echoes(params: Mapping[str, Any]) -> Any:
    raise ValueError(f"\x1b[2J\n\u202e{params}")


PLUGINS = {
    "rule": lambda params: Rule(),
    "exits": exits,
    "stops": stops,
    "unprintable": unprintable,
    "echoes": echoes,
    "nothing": lambda params: Unprintable(),
}


def install() -> None:
    """Let the server have the plugins, and memory as a server has it.

    A server has read a tokenizer. Once so much has been freed at once, glibc keeps what is freed
    later, instead of having the kernel hand out the same pages again and again.
    """
    bytes(1 << 24)
    assert _vocabulary().trie
    loaders = {name: lambda make=make: make for name, make in PLUGINS.items()}
    plugins._plugins = lambda: loaders  # pyright: ignore


class Outcome(NamedTuple):
    """What admission came to: whether it did, what never may happen, and this thread's own time."""

    admitted: bool
    wrong: str | None
    seconds: float


def admit(payload: Any, vocab_size: int | None = VOCAB) -> Outcome:
    """Admit a payload, which may be a text, bytes or an object."""
    start, refusal = time.thread_time(), None
    try:
        admission.admit(BACKEND, payload, vocab_size)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        refusal = error
    seconds = time.thread_time() - start
    return Outcome(refusal is None, None if refusal is None else unsafe(refusal), seconds)


def unsafe(error: BaseException) -> str | None:
    """What is wrong with an error that is shown to somebody."""
    if not isinstance(error, SpecError):
        with suppress(BaseException):
            return f"{type(error).__name__}: {error}"[:300]
        return type(error).__name__
    text = str(error)
    if len(text) > MAX_MESSAGE + MAX_PATH + 20:
        return f"an error of {len(text)} characters"
    return None if text.isprintable() else f"an error that is not printable: {text!r}"


def seconds_of(payload: Any, times: int = 3) -> float:
    """The shortest of some admissions, each the first of its kind."""
    seconds: list[float] = []
    for _ in range(times):
        admission.forget()
        seconds.append(admit(payload).seconds)
    return min(seconds)


def calls_of(payload: Any) -> int:
    """How many functions an admission calls, in Python and in C: the same on any machine."""
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    admission.forget()
    sys.setprofile(count)
    try:
        admit(payload)
    finally:
        sys.setprofile(None)
    return calls
