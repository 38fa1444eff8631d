"""SGLang's backend: the kinds that it supports, and the request bodies of its HTTP clients."""

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from ...spec import (
    GrammarSpec,
    LogitsProcessorSpec,
    PythonProcessorSpec,
    SamplingSpec,
    SpecError,
    encode,
)
from ...spec.base import processor_specs
from .. import KEY, REALIZABLE, Backend, Finding, Status
from .native import body_fields

ROUTES: dict[str, str | None] = {
    "/v1/completions": "custom_params",
    "/v1/chat/completions": "custom_params",
    "/invocations": "custom_params",
    "/generate": "sampling_params.custom_params",
    "/vertex_generate": "parameters.sampling_params.custom_params",
    "/api/generate": None,  # Ollama's
}
"""Routes of SGLang's server, and the path in their bodies that becomes ``custom_params``."""

PROCESSOR = json.dumps({"callable": b"clogitport.adapters.sglang.processor\nprocessor\n.".hex()})
"""The ``custom_logit_processor`` of requests with specs: a constant.

SGLang expects a pickle there (``sglang/srt/sampling/custom_logit_processor.py``). This pickle
contains no code, only the name of logitport's function, so a client needs no SGLang.
"""

GUARD = f"{KEY}_guard"
"""The key in ``custom_params`` by which admission passes the guard's payload to the workers."""

END_TOKEN = f"{KEY}_end_token"
"""The same for ``Program.end_token``. A client can set neither: both are a misspelt ``KEY``."""


def body(specs: Sequence[LogitsProcessorSpec], generation_only: bool) -> dict[str, Any]:
    """Put the payload under ``custom_params``, and native kinds in fields of SGLang's server."""
    fields = body_fields(specs)
    if in_payload := processor_specs(specs):
        payload = encode(in_payload, generation_only=generation_only)
        fields |= {"custom_logit_processor": PROCESSOR, "custom_params": {KEY: payload}}
    return fields


def serve(model: str, arguments: Sequence[str]) -> list[str]:
    """Make the command line of SGLang's server.

    Raises:
        SpecError: if ``SGLANG_PLUGINS`` keeps SGLang from loading logitport.
    """
    if why := _why_not_loaded():
        raise SpecError(why)
    return ["sglang", "serve", "--model-path", model, *arguments, "--enable-custom-logit-processor"]


def _why_not_loaded() -> str | None:
    """Explain why SGLang does not load the plugin, if that is so."""
    plugins = os.environ.get("SGLANG_PLUGINS", "")
    if plugins and "logitport" not in map(str.strip, plugins.split(",")):
        return f"SGLANG_PLUGINS lists {plugins!r}: add `logitport` to the list"
    return None


def examine() -> Iterator[Finding]:
    """Examine SGLang's variables."""
    if why := _why_not_loaded():
        listed, _, advice = why.partition(": ")
        yield Finding("Plugins", listed, Status.ERROR, advice)


BACKEND = Backend(
    "sglang",
    realizes=REALIZABLE - {PythonProcessorSpec},
    lowers=frozenset({GrammarSpec, SamplingSpec}),
    body=body,
    routes=ROUTES,
    budget_field="custom_params.thinking_budget",
    prefill_samples=True,
    serve=serve,
    packages={"sglang": "sglang"},
    group="sglang.srt.plugins",
    examine=examine,
)
"""SGLang's backend. Its workers are separate processes, which no live callable can reach."""
