"""Native kinds, which SGLang realizes by itself, as fields of its own requests."""

import json
from collections.abc import Sequence
from typing import Any

from ...spec import GrammarSpec, LogitsProcessorSpec, NativeSpec, SpecError
from ..native import fields_of, grammar_text, native_fields

GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")
"""The fields of SGLang's ``SamplingParams`` that ask for a grammar."""


def sampling_fields(spec: NativeSpec, sampling_params: object) -> dict[str, Any]:
    """Convert a native spec to fields of SGLang's ``SamplingParams``.

    Raises:
        SpecError: for a field that SGLang does not apply as the spec means it, with its path.
    """
    if isinstance(spec, GrammarSpec):
        return dict([grammar_text(spec)])
    fields = fields_of(spec)
    if fields.get("top_k") == 0:
        fields["top_k"] = -1  # SGLang's value for all tokens
    # SGLang's penalizer reads only the output (``penaltylib/repetition_penalty.py``).
    if fields.pop("repetition_penalty", 1) != 1:
        raise SpecError(
            "sglang does not support it: its penalty ignores the tokens of the prompt",
            "repetition_penalty",
        )
    return fields


def body_fields(specs: Sequence[LogitsProcessorSpec]) -> dict[str, Any]:
    """Convert specs to fields of SGLang's OpenAI server, whose chats name two forms otherwise."""
    fields, _ = native_fields(specs, sampling_fields)
    if schema := fields.pop("json_schema", None):
        json_schema = {"name": "logitport", "schema": json.loads(schema)}
        fields["response_format"] = {"type": "json_schema", "json_schema": json_schema}
    if tag := fields.pop("structural_tag", None):
        fields["response_format"] = json.loads(tag)
    return fields
