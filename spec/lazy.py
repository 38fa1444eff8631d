"""Lazy lookup of package names: names whose modules are heavy, and old names."""

import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

OLD_NAMES = {
    "BACK_END": "BACKEND",
    "BackEnd": "Backend",
    "Rows": "LogitsLayout",
    "back_ends": "backends",
    "refusal": "unsupported",
}
"""Old public names and their new names. The old names stay for one release."""


def lazy(package: str, **modules: str) -> Callable[[str], Any]:
    """Make a package's ``__getattr__`` (PEP 562), which imports each name on first access.

    A client may not have the engine, or torch, that a part of the package needs. ``modules`` has,
    for each name, the module that defines it, relative to the package.
    """

    def getattr_(name: str) -> Any:
        if name in modules:
            return getattr(import_module(modules[name], package), name)
        new = OLD_NAMES.get(name)
        if new in modules or new in vars(sys.modules[package]):
            warnings.warn(f"{package}.{name} is now {new}", DeprecationWarning, stacklevel=2)
            return getattr(sys.modules[package], new)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattr_
