"""Lazy lookup of package names whose modules are heavy."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy(package: str, **modules: str) -> Callable[[str], Any]:
    """Make a package's ``__getattr__`` (PEP 562), which imports each name on first access.

    A client may not have the engine, or torch, that a part of the package needs. ``modules`` has,
    for each name, the module that defines it, relative to the package.
    """

    def getattr_(name: str) -> Any:
        if name in modules:
            try:
                return getattr(import_module(modules[name], package), name)
            except ModuleNotFoundError as error:
                what = f"{package}.{name} needs {error.name}, which is not installed"
                raise ModuleNotFoundError(what, name=error.name) from error
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattr_
