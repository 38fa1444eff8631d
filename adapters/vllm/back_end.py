"""What this adapter can do, and what its HTTP clients send."""

from collections.abc import Sequence
from typing import Any

from ...spec import (
    GrammarSpec,
    LogitsProcessorSpec,
    SamplingSpec,
    encode,
)
from ...spec.base import without_native
from ..back_end import REALIZABLE, BackEnd
from ..key import KEY
from .native import engine_fields

_OPENAI = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")

ROUTES = {
    **{route + end: "vllm_xargs" for route in _OPENAI for end in ("", "/render")},
    "/v1/chat/completions/batch": "vllm_xargs",
    "/invocations": "vllm_xargs",
    "/inference/v1/generate": "sampling_params.extra_args",
}
"""The routes of vLLM's server that make ``SamplingParams.extra_args`` of what a client sends."""


def body(specs: Sequence[LogitsProcessorSpec], generation_only: bool) -> dict[str, Any]:
    """The payload under ``vllm_xargs``, and native kinds in the fields of vLLM's server."""
    encode(specs, generation_only=generation_only)  # checks them together
    fields: dict[str, Any] = {}
    for spec in specs:
        fields |= engine_fields(spec)
    if in_payload := without_native(specs):
        fields["vllm_xargs"] = {KEY: encode(in_payload, generation_only=generation_only)}
    return fields


BACK_END = BackEnd(
    "vllm",
    realizes=REALIZABLE,
    lowers=frozenset({GrammarSpec, SamplingSpec}),
    body=body,
    routes=ROUTES,
)
"""vLLM, under either of its model runners. A live callable needs the engine in its own process."""
