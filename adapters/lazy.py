"""Packages whose clients may lack what a part of them needs: an engine, torch."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy(package: str, **modules: str) -> Callable[[str], Any]:
    """A package's ``__getattr__`` (PEP 562), which imports each name when it is first asked for.

    Args:
        package: its ``__name__``.
        modules: for each name, the module that has it, relative to the package.
    """

    def getattr_(name: str) -> Any:
        if name in modules:
            return getattr(import_module(modules[name], package), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattr_
