"""vLLM: attach specs to ``SamplingParams``, and realize them inside the engine.

Importing this module imports neither vLLM nor torch. A gateway that only attaches specs needs
vLLM only for a grammar, which becomes an object of vLLM's.
"""

from typing import TYPE_CHECKING

from .. import lazy
from .backend import BACKEND, KEY
from .params import attach

if TYPE_CHECKING:
    from .middleware import SpecMiddleware
    from .processor import LogitportProcessor

__all__ = ["BACKEND", "KEY", "LogitportProcessor", "SpecMiddleware", "attach"]

__getattr__ = lazy(__name__, LogitportProcessor=".processor", SpecMiddleware=".middleware")
