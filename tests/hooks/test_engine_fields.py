"""The fields that a configuration may name are those of the engines that are installed."""

from importlib import import_module
from typing import Any

import pytest
from logitport.adapters.gateway.field_rules import FIELDS

PROTOCOL = "sglang.srt.entrypoints.openai.protocol"


@pytest.mark.engine
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("vllm.entrypoints.openai.chat_completion.protocol", "ChatCompletionRequest"),
        ("vllm.entrypoints.openai.completion.protocol", "CompletionRequest"),
        ("vllm.entrypoints.openai.responses.protocol", "ResponsesRequest"),
        ("vllm.entrypoints.anthropic.protocol", "AnthropicMessagesRequest"),
        (PROTOCOL, "ChatCompletionRequest"),
        (PROTOCOL, "CompletionRequest"),
        (PROTOCOL, "ResponsesRequest"),
    ],
)
def test_fields(module: str, name: str):
    try:
        made: Any = getattr(import_module(module), name)
    except Exception as error:  # a part of SGLang is there for its MLX backend
        pytest.skip(f"no {module}: {error}")
    assert {*made.model_fields} - FIELDS == OF_SERVERS & {*made.model_fields}


OF_SERVERS = {
    *("bootstrap_host", "bootstrap_pair_key", "bootstrap_port", "bootstrap_room"),
    *("custom_labels", "disagg_prefill_dp_rank", "kv_hints"),
    *("max_dynamic_patch", "min_dynamic_patch", "mm_content_hashes", "mm_hashes"),
}
"""What a router sets, and no client."""
