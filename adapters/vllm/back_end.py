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
from .native import engine_fields

KEY = "logitport"
"""Where the payload is in ``SamplingParams.extra_args``, and in ``vllm_xargs`` over HTTP."""


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
)
"""vLLM, under either of its model runners. A live callable needs the engine in its own process."""
