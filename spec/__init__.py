"""What may happen to a request's next-token logits, as frozen, serializable, validated data.

This package needs msgspec alone: no torch, no engine.
"""

from . import limits
from .base import LogitsProcessorSpec
from .errors import SpecError
from .forced_sequence import ForcedTokenSequenceSpec
from .payload import VERSION, Payload, decode, dynamo_entries, encode, json_schema
from .python_processor import PythonProcessorSpec
from .stage import Stage
from .text import Tokenizer

__all__ = [
    "VERSION",
    "ForcedTokenSequenceSpec",
    "LogitsProcessorSpec",
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
]
