"""What compile functions have in common: one for each kind, found by the spec's type."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, NamedTuple

from ....spec import LogitsProcessorSpec, SpecError
from ....spec.limits import MAX_CELLS, MAX_PROGRAM_BYTES
from ..parts import Acting, Part
from ..text.vocabulary import Vocabulary

VocabularyOf = Callable[[], Vocabulary | None]
"""A function that returns the vocabulary of an engine's tokenizer, ``None`` if none is known."""


TEXT_ROOM = 5 * MAX_PROGRAM_BYTES // 16
"""The bytes that the tables of all texts of a request may take: 1 ms at admission."""


@dataclass(slots=True)
class Context:
    """What the specs of a request are compiled with.

    Attributes:
        vocabulary_of: returns the vocabulary of the engine's tokenizer. It is called only if a spec
            needs one.
        text_room: how many bytes the tables of a rule about text may take.
        room: how many bytes all tables of the request may still take.
        phases: the number of phases so far: 0 is the first, for what is in none.
    """

    vocabulary_of: VocabularyOf | None = None
    text_room: int = TEXT_ROOM
    room: int = MAX_PROGRAM_BYTES
    phases: int = 1

    def vocabulary_for(self, spec: LogitsProcessorSpec) -> Vocabulary:
        """Return the vocabulary.

        Raises:
            SpecError: if none is known, with the kind of the spec that needs it.
        """
        vocabulary = None if self.vocabulary_of is None else self.vocabulary_of()
        if vocabulary is None:
            raise SpecError(
                f"`{spec.kind}` needs the vocabulary of the engine's tokenizer, which is not known "
                "here"
            )
        return vocabulary


class Merge(NamedTuple):
    """How specs of a request are compiled together.

    Attributes:
        compile: compiles several specs to fewer parts than each by itself.
        key: what the specs have in common. Others are compiled apart.
    """

    compile: Callable[[Sequence[Any], Context], Iterable[Part | Acting]]
    key: Hashable = None


@singledispatch
def merge(spec: LogitsProcessorSpec) -> Merge | None:
    """Return how a spec is compiled together with others. Most are compiled by themselves.

    A kind registers either a function here, or one with ``compile_spec``.

    Raises:
        SpecError: for what is wrong with the spec by itself.
    """
    return None


@singledispatch
def compile_spec(spec: LogitsProcessorSpec, context: Context) -> Iterable[Part | Acting]:
    """Compile one spec. A kind registers its own function.

    Raises:
        SpecError: for what cannot be compiled.
    """
    if (merged := merge(spec)) is None:
        raise NotImplementedError(f"`{spec.kind}` has no compile function")
    return merged.compile([spec], context)


def check_size(cells: int) -> None:
    """Refuse more states and edited tokens than a request may have."""
    if cells > MAX_CELLS:
        raise SpecError(
            f"Expected specs that compile to at most {MAX_CELLS} states and edited tokens in all; "
            "this one goes beyond"
        )
