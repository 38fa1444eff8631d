"""What compile functions have in common: one for each kind, found by the spec's type."""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import singledispatch

from ....spec import DrySpec, LogitsProcessorSpec, NoRepeatNgramSpec, PromptBiasSpec, SpecError
from ....spec.limits import MAX_CELLS, MAX_PROGRAM_BYTES, MAX_STEP_CELLS
from ..automaton import Automaton
from ..plugins import PluginPart
from ..vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class PerRequest:
    """A part of a program that ``make`` returns anew for each request."""

    make: Callable[[], PluginPart]


Part = Automaton | NoRepeatNgramSpec | DrySpec | PromptBiasSpec | PerRequest


@singledispatch
def compile_spec(spec: LogitsProcessorSpec) -> Iterable[Part]:
    """Compile one spec. A kind registers its own function.

    Raises:
        SpecError: for what cannot be compiled.
    """
    raise NotImplementedError(f"`{spec.kind}` has no compile function")


VocabularyOf = Callable[[], Vocabulary | None]
"""A function that returns the vocabulary of an engine's tokenizer, ``None`` if none is known."""

_vocabulary: ContextVar[VocabularyOf | None] = ContextVar("vocabulary", default=None)
_room: ContextVar[int] = ContextVar("room", default=MAX_PROGRAM_BYTES)


@contextmanager
def compiling_for(vocabulary: VocabularyOf | None) -> Generator[None]:
    """Have compile functions that need a vocabulary ask for it here. Most kinds need none.

    The room for tables of texts is set within, and as before afterwards.
    """
    token, room = _vocabulary.set(vocabulary), _room.set(MAX_PROGRAM_BYTES)
    try:
        yield
    finally:
        _vocabulary.reset(token)
        _room.reset(room)


def vocabulary_for(spec: LogitsProcessorSpec) -> Vocabulary:
    """Return the vocabulary that a spec is compiled for.

    Raises:
        SpecError: if there is none.
    """
    vocabulary_of = _vocabulary.get()
    vocabulary = None if vocabulary_of is None else vocabulary_of()
    if vocabulary is None:
        raise SpecError(
            f"`{spec.kind}` needs the vocabulary of the engine's tokenizer, which is not known here"
        )
    return vocabulary


def set_text_room(size: int) -> None:
    """Set how many bytes the tables of the next rules about texts may take."""
    _room.set(size)


def text_room() -> int:
    """Return how many bytes the tables of a rule about texts may take."""
    return _room.get()


def check_text_cost(room: int, memory: int, step: int) -> None:
    """Refuse more bytes of tables, or more edits in a step, than a rule about text may have."""
    for got, most, what in (
        (memory, room, "bytes of memory"),
        (step, MAX_STEP_CELLS, "logits that one step may change"),
    ):
        if got > most:
            raise SpecError(
                f"Expected a spec that costs at most {most} {what} with this vocabulary; this one "
                f"costs {got} or more"
            )


def check_size(cells: int) -> None:
    """Refuse more states and edited tokens than a request may have."""
    if cells > MAX_CELLS:
        raise SpecError(
            f"Expected specs that compile to at most {MAX_CELLS} states and edited tokens in all; "
            "this one goes beyond"
        )
