"""Native kinds: what TensorRT-LLM does by itself, asked for in its ``SamplingParams``."""

import dataclasses
import reprlib
from collections.abc import Sequence
from typing import Any

import msgspec

from ...spec import (
    AllowedTokensSpec,
    GrammarSpec,
    LogitsProcessorSpec,
    SamplingSpec,
    SpecError,
    ThinkingBudgetSpec,
)
from ...spec.conflicts import BREAKS_GRAMMAR
from ..ebnf import one_of

WHOLE_PROMPT = (1 << 31) - 1
"""A ``prompt_ignore_length`` that no prompt exceeds; the engine takes the shorter of both."""

_OF_OUTPUT = ("presence_penalty", "frequency_penalty")
"""What the engine takes from the prompt's tokens, too, unless it is told to ignore them
(``docs/source/features/sampling.md``)."""

OVERRULED = BREAKS_GRAMMAR | AllowedTokensSpec | ThinkingBudgetSpec
"""The kinds that do not get on with a grammar: what they want might be masked, and nothing left."""


def lowered(sampling_params: Any, specs: Sequence[LogitsProcessorSpec]) -> dict[str, Any]:
    """The fields to set in ``sampling_params``, so that they ask for the native ones of ``specs``.

    Args:
        sampling_params: left as it is.
        specs: all specs of the request, which do not conflict with each other.

    Returns:
        Names of fields, with values. ``guided_decoding`` needs an ``LLM`` with a
        ``guided_decoding_backend``.

    Raises:
        SpecError: if ``sampling_params`` says something else already, or has no such field, with
            the path of what it disagrees with.
        Exception: the constructor's own, for values that it refuses together.
    """
    _check_grammar_is_followed(sampling_params, specs)
    wanted: dict[str, Any] = {}
    for i, spec in enumerate(specs):
        fields, path = _fields(spec), f"$.specs[{i}]"
        for name, value in fields.items():
            where = f"{path}.{name}" if hasattr(spec, name) else path
            if not hasattr(sampling_params, name):
                owner = type(sampling_params).__name__
                raise SpecError(f"Expected {owner} to have a field {name}", where)
            current = getattr(sampling_params, name)
            if current not in (None, value):
                what = f"which sets {name} to {reprlib.repr(current)}"
                raise SpecError(f"Conflicts with the request, {what}", where)
        wanted |= fields
    if wanted and dataclasses.is_dataclass(sampling_params):
        dataclasses.replace(sampling_params, **wanted)  # pyright: ignore  # its checks
    return wanted


def _fields(spec: LogitsProcessorSpec) -> dict[str, Any]:
    if isinstance(spec, GrammarSpec):
        return {"guided_decoding": _guided_decoding(spec)}
    if not isinstance(spec, SamplingSpec):
        return {}
    given: dict[str, Any] = msgspec.to_builtins(spec)
    del given["kind"]
    if any(given.get(name) for name in _OF_OUTPUT):
        given["prompt_ignore_length"] = WHOLE_PROMPT
    return given


def _guided_decoding(spec: GrammarSpec) -> Any:
    """A ``GuidedDecodingParams``; two of them that ask for the same are equal."""
    from tensorrt_llm.sampling_params import GuidedDecodingParams  # pyright: ignore

    if spec.choices is not None:
        return GuidedDecodingParams(grammar=one_of(spec.choices))
    if spec.json_schema is not None:
        return GuidedDecodingParams(json=msgspec.json.encode(spec.json_schema).decode())
    if spec.regex is not None:
        return GuidedDecodingParams(regex=spec.regex)
    return GuidedDecodingParams(grammar=spec.ebnf)


def _check_grammar_is_followed(sampling_params: Any, specs: Sequence[LogitsProcessorSpec]) -> None:
    """The engine masks logits by the grammar when the processors have been called."""
    by_itself = getattr(sampling_params, "guided_decoding", None) is not None
    if not by_itself and not any(isinstance(spec, GrammarSpec) for spec in specs):
        return
    for i, spec in enumerate(specs):
        if isinstance(spec, OVERRULED):
            raise SpecError(
                "Conflicts with the request's grammar, which is applied later, and may not take "
                f"the tokens that `{spec.kind}` wants",
                f"$.specs[{i}]",
            )
