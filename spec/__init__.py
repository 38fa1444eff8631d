"""What may happen to a request's next-token logits, as frozen, serializable, validated data.

This package needs msgspec alone: no torch, no engine.
"""

from . import kinds, limits
from .base import LogitsProcessorSpec, NativeSpec
from .errors import SpecError
from .kinds import *  # noqa: F403
from .kinds.python_processor import PythonProcessorSpec
from .payload import VERSION, InProcessPayload, Payload, decode, encode, specs_of
from .schema import json_schema
from .stage import Stage
from .texts import Given, StandIn
from .thinking_families import (
    THINKING_FAMILIES,
    ThinkingFamily,
    VocabularyTokenizer,
    newline_token_ids,
    thinking_family,
)
from .tokenization import LeadingSpace, Tokenizer

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    "THINKING_FAMILIES",
    "VERSION",
    "Given",
    "InProcessPayload",
    "LeadingSpace",
    "LogitsProcessorSpec",
    "NativeSpec",
    "Payload",
    "PythonProcessorSpec",
    "SpecError",
    "Stage",
    "StandIn",
    "ThinkingFamily",
    "Tokenizer",
    "VocabularyTokenizer",
    "decode",
    "specs_of",
    "encode",
    "json_schema",
    "limits",
    "newline_token_ids",
    "thinking_family",
    *kinds.__all__,
]
