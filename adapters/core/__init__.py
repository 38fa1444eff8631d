"""The neutral core: compiles specs, follows each request's tokens, edits the whole batch.

It knows no engine. An adapter tells a ``Realizer`` which request is in which row, and hands it
the logits. ``compile_specs`` and what it makes need numpy; only ``Realizer`` needs torch.
"""

from typing import TYPE_CHECKING, Any

from .automaton import (
    BAN_BIAS,
    CARRY,
    CLEAR,
    Automaton,
    AutomatonBuilder,
    UnknownTokenError,
    unreachable,
)
from .compile import Program, compile_specs
from .defaults import default_specs
from .plugins import HistoryRule

if TYPE_CHECKING:
    from .realizer import Realizer

__all__ = [
    "BAN_BIAS",
    "CARRY",
    "CLEAR",
    "Automaton",
    "AutomatonBuilder",
    "HistoryRule",
    "Program",
    "Realizer",
    "UnknownTokenError",
    "compile_specs",
    "default_specs",
    "unreachable",
]


def __getattr__(name: str) -> Any:
    if name == "Realizer":
        from .realizer import Realizer

        return Realizer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
