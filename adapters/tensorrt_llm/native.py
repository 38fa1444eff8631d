"""Native kinds, which TensorRT-LLM realizes by itself, as fields of its ``SamplingParams``."""

from typing import Any

from ...spec import GrammarSpec, NativeSpec
from ..native import fields_of, grammar_text

GRAMMARS = ("guided_decoding",)
"""The fields of TensorRT-LLM's ``SamplingParams`` that ask for a grammar."""

WHOLE_PROMPT = (1 << 31) - 1
"""A ``prompt_ignore_length`` that no prompt exceeds. The engine takes the smaller length."""

_OF_OUTPUT = ("presence_penalty", "frequency_penalty")
"""Penalties that the engine also takes from the prompt's tokens, unless these are ignored
(``docs/source/features/sampling.md``)."""

_FORMS = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "structural_tag": "structural_tag",
}
"""The forms of a grammar, and their names in the engine's ``GuidedDecodingParams``."""


def sampling_fields(spec: NativeSpec, sampling_params: object) -> dict[str, Any]:
    """Convert a native spec to fields of ``SamplingParams``.

    ``guided_decoding`` needs an ``LLM`` with a ``guided_decoding_backend``.
    """
    if isinstance(spec, GrammarSpec):
        from tensorrt_llm.sampling_params import GuidedDecodingParams  # pyright: ignore

        form, text = grammar_text(spec)
        return {"guided_decoding": GuidedDecodingParams(**{_FORMS[form]: text})}
    fields = fields_of(spec)
    if any(fields.get(name) for name in _OF_OUTPUT):
        fields["prompt_ignore_length"] = WHOLE_PROMPT
    return fields
