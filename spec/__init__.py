"""What may happen to a request's next-token logits, as frozen, serializable, validated data.

This package needs msgspec alone: no torch, no engine.
"""

import warnings
from typing import TYPE_CHECKING, Any

from . import kinds, limits
from .base import LogitsProcessorSpec, NativeSpec
from .errors import SpecError
from .kinds import *  # noqa: F403
from .kinds.python_processor import PythonProcessorSpec
from .payload import VERSION, InProcessPayload, Payload, decode, dynamo_entries, encode, json_schema
from .stage import Stage
from .tokenization import LeadingSpace, Tokenizer

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    "VERSION",
    "InProcessPayload",
    "LeadingSpace",
    "LogitsProcessorSpec",
    "NativeSpec",
    "Payload",
    "PythonProcessorSpec",
    "SpecError",
    "Stage",
    "Tokenizer",
    "decode",
    "dynamo_entries",
    "encode",
    "json_schema",
    "limits",
    *kinds.__all__,
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name != "LivePayload":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        message = f"{__name__}.LivePayload is now InProcessPayload"  # the old name for one release
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return InProcessPayload
