"""The meaning and the examples of each kind: in ``simple``, or in a file of the kind's name."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from ....spec import WIRE_KINDS, LogitsProcessorSpec, PythonProcessorSpec
from . import simple
from .base import Kind

_files = (name for _, name, _ in iter_modules(__path__) if name not in ("base", "simple"))
_found = (*simple.KINDS, *(import_module(f"{__name__}.{name}").KIND for name in _files))
_kinds = {type(kind.minimal): kind for kind in _found}

KINDS: dict[type[LogitsProcessorSpec], Kind[Any]] = {
    spec_type: _kinds[spec_type] for spec_type in (*WIRE_KINDS, PythonProcessorSpec)
}
"""All kinds by their spec class, in the order of ``WIRE_KINDS``."""

REALIZED = tuple(spec_type for spec_type, kind in KINDS.items() if kind.edit)
"""The kinds that have a reference: the core realizes them with nothing installed."""
