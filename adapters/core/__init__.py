"""The neutral core: compiles specs, follows each request's tokens, edits the whole batch.

It knows no engine. An adapter tells a ``Realizer`` which request is in which row, and hands it
the logits. ``compile_specs`` and what it makes need numpy; only ``Realizer`` needs torch, and
``DeviceRealizer`` Triton too.
"""

from typing import TYPE_CHECKING

from ..lazy import lazy
from .admission import admitted, admitted_live
from .automaton import (
    BAN_BIAS,
    CARRY,
    CLEAR,
    KEEP,
    Automaton,
    AutomatonBuilder,
    UnknownTokenError,
    unreachable,
)
from .compile import Program, compile_specs, refusal
from .defaults import default_specs
from .plugins import HistoryRule

if TYPE_CHECKING:
    from .advance_kernel import History, Rows
    from .device_realizer import DeviceRealizer
    from .realizer import Realizer

__all__ = [
    "BAN_BIAS",
    "CARRY",
    "CLEAR",
    "KEEP",
    "Automaton",
    "AutomatonBuilder",
    "DeviceRealizer",
    "History",
    "HistoryRule",
    "Program",
    "Realizer",
    "Rows",
    "UnknownTokenError",
    "admitted",
    "admitted_live",
    "compile_specs",
    "default_specs",
    "refusal",
    "unreachable",
]

# What needs torch, and Triton.
__getattr__ = lazy(
    __name__,
    Realizer=".realizer",
    DeviceRealizer=".device_realizer",
    History=".advance_kernel",
    Rows=".advance_kernel",
)
