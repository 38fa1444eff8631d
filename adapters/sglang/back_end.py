"""What this adapter can do, and what its HTTP clients send."""

import json
from collections.abc import Sequence
from typing import Any

from ...spec import GrammarSpec, LogitsProcessorSpec, PythonProcessorSpec, SamplingSpec, encode
from ...spec.base import without_native
from ..back_end import REALIZABLE, BackEnd
from ..key import KEY
from .native import body_fields

ROUTES: dict[str, str | None] = {
    "/v1/completions": "custom_params",
    "/v1/chat/completions": "custom_params",
    "/invocations": "custom_params",
    "/generate": "sampling_params.custom_params",
    "/vertex_generate": "parameters.sampling_params.custom_params",
    "/api/generate": None,  # Ollama's
}
"""The routes of SGLang's server that make its ``custom_params`` of what a client sends."""

PROCESSOR = json.dumps({"callable": b"clogitport.adapters.sglang.processor\nprocessor\n.".hex()})
"""What requests with specs give as their ``custom_logit_processor``: a constant.

SGLang expects a pickle there. This one has no code in it, but the name of a function of ours
(``sglang/srt/sampling/custom_logit_processor.py``), so whoever sends it needs no SGLang.
"""


def body(specs: Sequence[LogitsProcessorSpec], generation_only: bool) -> dict[str, Any]:
    """The payload under ``custom_params``, and native kinds in the fields of SGLang's server."""
    encode(specs, generation_only=generation_only)  # checks them together
    fields = body_fields(specs)
    if in_payload := without_native(specs):
        payload = encode(in_payload, generation_only=generation_only)
        fields |= {"custom_logit_processor": PROCESSOR, "custom_params": {KEY: payload}}
    return fields


BACK_END = BackEnd(
    "sglang",
    realizes=REALIZABLE - {PythonProcessorSpec},
    lowers=frozenset({GrammarSpec, SamplingSpec}),
    body=body,
    routes=ROUTES,
)
"""SGLang; its workers are processes of their own, which no live callable can reach."""
