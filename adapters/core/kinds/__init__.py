"""One compile function for each kind, in a file of the kind's name."""

from importlib import import_module
from pkgutil import iter_modules

from .base import Context, VocabularyOf, compile_spec, merge

__all__ = ["Context", "VocabularyOf", "compile_spec", "merge"]

for _, _name, _ in iter_modules(__path__):  # each registers its function
    import_module(f"{__name__}.{_name}")
