"""The neutral core: compiles specs, follows each request's tokens, edits the whole batch.

It knows no engine. An adapter tells a ``Realizer`` which request is in which row, and hands it
the logits. ``compile_specs`` and what it makes need numpy; only ``Realizer`` needs torch, and
``DeviceRealizer`` Triton too.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .admission import admitted
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
    from .advance_kernel import History, Rows
    from .device_realizer import DeviceRealizer
    from .realizer import Realizer

__all__ = [
    "BAN_BIAS",
    "CARRY",
    "CLEAR",
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
    "compile_specs",
    "default_specs",
    "unreachable",
]


_MODULES = {
    "Realizer": ".realizer",
    "DeviceRealizer": ".device_realizer",
    "History": ".advance_kernel",
    "Rows": ".advance_kernel",
}
"""Of what needs torch, and Triton."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
