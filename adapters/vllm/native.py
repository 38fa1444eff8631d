"""Native kinds, which vLLM realizes by itself, as fields of its own requests."""

from typing import Any

from ...spec import GrammarSpec, NativeSpec, SpecError
from ..native import fields_of, grammar_text

GRAMMARS = "structured_outputs", "response_format", "text", "output_config", "tool_choice"
"""The field of vLLM's ``SamplingParams`` that asks for a grammar, and those of HTTP requests."""

_FORMS = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "choices": "choice",
    "structural_tag": "structural_tag",
}
"""The fields of ``GrammarSpec``, and their names in vLLM's ``StructuredOutputsParams``."""


def body_fields(spec: NativeSpec, request: object = None) -> dict[str, Any]:
    """Convert a native spec to fields of the body of an HTTP request.

    The result is ``{"temperature": 0.5}``, ``{"structured_outputs": {"regex": "a+"}}``, or alike.
    """
    fields = fields_of(spec)
    if isinstance(spec, GrammarSpec):
        if spec.structural_tag is not None:
            fields = dict([grammar_text(spec)])
        return {"structured_outputs": {_FORMS[form]: value for form, value in fields.items()}}
    return fields


def sampling_fields(spec: NativeSpec, sampling_params: Any) -> dict[str, Any]:
    """Convert a native spec to fields of ``SamplingParams``. A grammar becomes vLLM's own object.

    Raises:
        SpecError: for a grammar if vLLM is not installed.
    """
    fields = body_fields(spec)
    if grammar := fields.get("structured_outputs"):
        current = getattr(sampling_params, "structured_outputs", None)
        try:
            fields["structured_outputs"] = _structured_outputs(current, grammar)
        except ModuleNotFoundError as error:
            what = "A grammar becomes an object of vLLM's own, which is not installed here"
            raise SpecError(f"{what} ({error})") from error
    return fields


def _structured_outputs(current: Any, grammar: dict[str, Any]) -> Any:
    """Return a ``StructuredOutputsParams`` for ``grammar``: ``current``, if it means the same."""
    from vllm.sampling_params import StructuredOutputsParams

    ((form, value),) = grammar.items()
    if form == "choice" and getattr(current, "grammar", None):
        from vllm.v1.structured_output.utils import choice_as_grammar

        # At admission, vLLM converts choices to this grammar in the caller's own object.
        form, value = "grammar", choice_as_grammar(value)
    if getattr(current, form, None) == value:
        return current
    return StructuredOutputsParams(**grammar)
