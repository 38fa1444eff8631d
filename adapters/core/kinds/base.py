"""What compile functions have in common: one for each kind, found by the spec's type."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import singledispatch

from ....spec import DrySpec, LogitsProcessorSpec, NoRepeatNgramSpec, PromptBiasSpec, SpecError
from ....spec.limits import MAX_CELLS
from ..automaton import Automaton
from ..plugins import PluginPart


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


def check_size(cells: int) -> None:
    """Refuse more states and edited tokens than a request may have."""
    if cells > MAX_CELLS:
        raise SpecError(
            f"Expected specs that compile to at most {MAX_CELLS} states and edited tokens in all; "
            "this one goes beyond"
        )
