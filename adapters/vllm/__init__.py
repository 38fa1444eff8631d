"""vLLM: attach specs to ``SamplingParams``, and realize them inside the engine.

Importing this module imports neither vLLM nor torch; a gateway that only attaches specs needs
neither.
"""

from typing import TYPE_CHECKING, Any

from .back_end import BACK_END, KEY
from .params import attach

if TYPE_CHECKING:
    from .processor import LogitportProcessor

__all__ = ["BACK_END", "KEY", "LogitportProcessor", "attach"]


def __getattr__(name: str) -> Any:
    if name == "LogitportProcessor":
        from .processor import LogitportProcessor

        return LogitportProcessor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
