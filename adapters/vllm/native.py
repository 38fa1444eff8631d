"""Native kinds: what vLLM does by itself, asked for in the fields of its own requests."""

import reprlib
from collections.abc import Sequence
from typing import Any

import msgspec

from ...spec import GrammarSpec, LogitsProcessorSpec, NativeSpec, SamplingSpec, SpecError
from ...spec.conflicts import BREAKS_GRAMMAR

_FORMS = {"json_schema": "json", "regex": "regex", "ebnf": "grammar", "choices": "choice"}
"""The fields of ``GrammarSpec``, and what vLLM's ``StructuredOutputsParams`` calls them."""


def engine_fields(spec: LogitsProcessorSpec) -> dict[str, Any]:
    """A native spec as fields of a request to vLLM, their values as JSON has them.

    Names and values are those of the body of an HTTP request; in ``SamplingParams``,
    ``structured_outputs`` is an object of vLLM's own.

    Returns:
        ``{"temperature": 0.5}``, ``{"structured_outputs": {"regex": "a+"}}``, and the like;
        nothing for a kind that is not native.
    """
    if not isinstance(spec, NativeSpec):
        return {}
    # Through JSON: vLLM and its grammar back ends look for lists, and may change what they get.
    given: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(spec))
    del given["kind"]
    if isinstance(spec, GrammarSpec):
        return {"structured_outputs": {_FORMS[form]: value for form, value in given.items()}}
    return given


def lowered(sampling_params: Any, specs: Sequence[LogitsProcessorSpec]) -> dict[str, Any]:
    """The fields to set in ``sampling_params``, so that they ask for the native ones of ``specs``.

    They become what the constructor would have made of them: with temperature 0, for example, it
    puts ``top_p`` back to 1.

    Args:
        sampling_params: left as it is.
        specs: all specs of the request, which do not conflict with each other.

    Returns:
        Names of fields, with values.

    Raises:
        SpecError: if ``sampling_params`` says something else already, or has no such field, with
            the path of what it disagrees with.
        Exception: the constructor's own, for values that it refuses together
            (``VLLMValidationError``, for ``n=2`` with temperature 0).
    """
    check_grammar_is_followed(sampling_params, specs)
    wanted: dict[str, Any] = {}
    path_of: dict[str, str] = {}
    for i, spec in enumerate(specs):
        for name, value in engine_fields(spec).items():
            path_of[name] = f"$.specs[{i}]" + (f".{name}" if hasattr(spec, name) else "")
            if not hasattr(sampling_params, name):
                owner = type(sampling_params).__name__
                raise SpecError(f"Expected {owner} to have a field {name}", path_of[name])
            wanted[name] = value
    if grammar := wanted.get("structured_outputs"):
        current = sampling_params.structured_outputs
        try:
            wanted["structured_outputs"] = _structured_outputs(current, grammar)
        except ModuleNotFoundError as error:
            what = "A grammar becomes an object of vLLM's own, which is not installed here"
            raise SpecError(f"{what} ({error})", path_of["structured_outputs"]) from error
    defaults: dict[str, Any] = {}
    result = wanted
    if wanted and isinstance(sampling_params, msgspec.Struct):  # SamplingParams
        defaults = {f.name: f.default for f in msgspec.structs.fields(sampling_params)}
        made = msgspec.structs.replace(sampling_params, **wanted)  # calls its __post_init__
        result = {
            name: getattr(made, name)
            for name in defaults
            if name in wanted or name in SamplingSpec.__struct_fields__
        }
    for name, value in wanted.items():
        current = getattr(sampling_params, name)
        if current not in (None, defaults.get(name), value, result[name]):
            what = f"which sets {name} to {reprlib.repr(current)}"
            raise SpecError(f"Conflicts with the request, {what}", path_of[name])
    return result


def set_fields(sampling_params: Any, fields: dict[str, Any]) -> None:
    """Give ``sampling_params`` what ``lowered`` returned."""
    for name, value in fields.items():
        setattr(sampling_params, name, value)
    if fields:
        # A cached property, which somebody may have asked for while the temperature was another.
        getattr(sampling_params, "__dict__", {}).pop("sampling_type", None)


def check_grammar_is_followed(sampling_params: Any, specs: Sequence[LogitsProcessorSpec]) -> None:
    """Hold specs to a grammar that the request has by itself, as to a ``GrammarSpec``.

    Args:
        sampling_params: whose ``structured_outputs`` count; it need not have them.
        specs: all specs of the request.

    Raises:
        SpecError: at the spec that forces tokens of its own.
    """
    if getattr(sampling_params, "structured_outputs", None) is None:
        return
    for i, spec in enumerate(specs):
        if isinstance(spec, BREAKS_GRAMMAR):
            what = f"which may not take the tokens that `{spec.kind}` forces"
            raise SpecError(
                f"Conflicts with the request's structured_outputs, {what}", f"$.specs[{i}]"
            )


def _structured_outputs(current: Any, grammar: dict[str, Any]) -> Any:
    """A ``StructuredOutputsParams`` for ``grammar``: ``current``, if it says that already."""
    from vllm.sampling_params import StructuredOutputsParams

    ((form, value),) = grammar.items()
    if form == "choice" and getattr(current, "grammar", None):
        from vllm.v1.structured_output.utils import choice_as_grammar

        # What vLLM makes of choices when it admits a request, in the caller's own object.
        form, value = "grammar", choice_as_grammar(value)
    if getattr(current, form, None) == value:
        return current
    return StructuredOutputsParams(**grammar)
