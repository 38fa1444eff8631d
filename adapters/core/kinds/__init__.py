"""One compile function for each kind, in a file of the kind's name."""

from importlib import import_module
from pkgutil import iter_modules

from .base import Part, PerRequest, VocabularyOf, compile_spec, compiling_for

__all__ = ["Part", "PerRequest", "VocabularyOf", "compile_spec", "compiling_for"]

for _, _name, _ in iter_modules(__path__):  # each registers its function
    import_module(f"{__name__}.{_name}")
