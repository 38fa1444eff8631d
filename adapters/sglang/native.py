"""Native kinds: what SGLang does by itself, asked for in the fields of its own requests."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from ...spec import GrammarSpec, LogitsProcessorSpec, SamplingSpec, SpecError
from ..ebnf import one_of

GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")
"""The fields of SGLang's ``SamplingParams`` that ask for a grammar."""


def sampling_fields(specs: Sequence[LogitsProcessorSpec]) -> dict[str, tuple[Any, str]]:
    """The native ones of some specs as fields of SGLang's ``SamplingParams``.

    Returns:
        By the name of the field: its value, and the path of what asks for it.

    Raises:
        SpecError: for what SGLang does not do just so, with its path.
    """
    fields: dict[str, tuple[Any, str]] = {}
    for i, spec in enumerate(specs):
        path = f"$.specs[{i}]"
        if isinstance(spec, SamplingSpec):
            for name, value in _sampling(spec, path).items():
                fields[name] = value, f"{path}.{name}"
        elif isinstance(spec, GrammarSpec):
            name, value = _grammar(spec)
            fields[name] = value, path
    return fields


def body_fields(specs: Sequence[LogitsProcessorSpec]) -> dict[str, Any]:
    """The same as fields of a request to its OpenAI server, whose chats know no ``json_schema``."""
    fields = {name: value for name, (value, _) in sampling_fields(specs).items()}
    if schema := fields.pop("json_schema", None):
        json_schema = {"name": "logitport", "schema": json.loads(schema)}
        fields["response_format"] = {"type": "json_schema", "json_schema": json_schema}
    return fields


def _sampling(spec: SamplingSpec, path: str) -> dict[str, Any]:
    given: dict[str, Any] = msgspec.to_builtins(spec)
    del given["kind"]
    if given.get("top_k") == 0:
        given["top_k"] = -1  # how SGLang says all
    # Its penalizer looks at the output alone (``penaltylib/repetition_penalty.py``).
    if given.pop("repetition_penalty", 1) != 1:
        raise SpecError(
            "sglang cannot do it as meant: it does not penalize the tokens of the prompt",
            f"{path}.repetition_penalty",
        )
    return given


def _grammar(spec: GrammarSpec) -> tuple[str, str]:
    if spec.choices is not None:
        return "ebnf", one_of(spec.choices)
    if spec.json_schema is not None:
        return "json_schema", msgspec.json.encode(spec.json_schema).decode()
    if spec.regex is not None:
        return "regex", spec.regex
    assert spec.ebnf is not None  # exactly one form is given
    return "ebnf", spec.ebnf
