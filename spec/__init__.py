"""What may happen to a request's next-token logits, as frozen, serializable, validated data.

This package needs msgspec alone: no torch, no engine.
"""

from . import limits
from .allowed_tokens import AllowedTokensSpec
from .banned_sequences import BannedSequencesSpec
from .banned_tokens import BannedTokensSpec
from .base import LogitsProcessorSpec, NativeSpec
from .choice import ChoiceSpec
from .errors import SpecError
from .forced_end import ForcedEndSpec
from .forced_sequence import ForcedTokenSequenceSpec
from .grammar import GrammarSpec
from .logit_bias import LogitBiasSpec
from .min_tokens import MinTokensSpec
from .no_repeat_ngram import NoRepeatNgramSpec
from .payload import (
    VERSION,
    WIRE_KINDS,
    LivePayload,
    Payload,
    decode,
    dynamo_entries,
    encode,
    json_schema,
)
from .plugin import PluginSpec
from .prompt_bias import PromptBiasSpec
from .python_processor import PythonProcessorSpec
from .sampling import SamplingSpec
from .stage import Stage
from .text import LeadingSpace, Tokenizer
from .thinking_budget import ThinkingBudgetSpec
from .trigger import TriggerSpec

__all__ = [
    "VERSION",
    "WIRE_KINDS",
    "AllowedTokensSpec",
    "BannedSequencesSpec",
    "BannedTokensSpec",
    "ChoiceSpec",
    "ForcedEndSpec",
    "ForcedTokenSequenceSpec",
    "GrammarSpec",
    "LeadingSpace",
    "LivePayload",
    "LogitBiasSpec",
    "LogitsProcessorSpec",
    "MinTokensSpec",
    "NativeSpec",
    "NoRepeatNgramSpec",
    "Payload",
    "PluginSpec",
    "PromptBiasSpec",
    "PythonProcessorSpec",
    "SamplingSpec",
    "SpecError",
    "Stage",
    "ThinkingBudgetSpec",
    "Tokenizer",
    "TriggerSpec",
    "decode",
    "dynamo_entries",
    "encode",
    "json_schema",
    "limits",
]
