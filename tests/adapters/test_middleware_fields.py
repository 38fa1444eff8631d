"""The operator's rules for the engine's own fields: efforts, and fields that are forbidden."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from logitport.adapters import Policy, SpecMiddleware
from logitport.adapters.backend import backend
from logitport.spec import BannedTokensSpec
from prometheus_client import REGISTRY

from tests.support import servers
from tests.support.servers import CHAT, GENERATE, GOOD, native, xargs

EFFORTS = Policy(efforts={"low": 5, "high": 50})
FORBIDS = Policy(forbid_fields=frozenset({"prompt_logprobs"}))
GUARDED = Policy(guard=(BannedTokensSpec((5,)),))

Asked = tuple[str, str]
"""An engine, and a route of its server."""

VLLM, SGLANG = ("vllm", CHAT), ("sglang", CHAT)
RESPONSES, MESSAGES = ("vllm", "/v1/responses"), ("vllm", "/v1/messages")
TOKENS = ("vllm", GENERATE)


def post(policy: Policy, body: Any, asked: Asked = VLLM) -> httpx.Response:
    engine, path = asked
    made = replace(backend(engine), policy=policy)
    with patch.object(SpecMiddleware, "backend", lambda *_: made):
        return servers.post(path, body, engine=engine)


EFFORT: dict[str, Any] = {"reasoning_effort": "low"}
BUDGET = {"thinking_budget": 5}
BOTH = replace(EFFORTS, forbid_fields=frozenset({"thinking_token_budget"}))
# policy | engine and route | body | what is added to it
FILLED: dict[str, tuple[Policy, Asked, dict[str, Any], Mapping[str, Any]]] = {
    "effort": (EFFORTS, VLLM, EFFORT, {"thinking_token_budget": 5}),
    "effort, SGLang": (EFFORTS, SGLANG, EFFORT, {"custom_params": BUDGET}),
    "effort, SGLang, beside others": (
        EFFORTS,
        SGLANG,
        EFFORT | {"custom_params": {"a": 1}},
        {"custom_params": {"a": 1, **BUDGET}},
    ),
    "effort, beside specs": (EFFORTS, VLLM, xargs(GOOD, **EFFORT), {"thinking_token_budget": 5}),
    "another effort": (EFFORTS, VLLM, {"reasoning_effort": "medium"}, {}),
    "no effort": (EFFORTS, VLLM, {"reasoning_effort": None}, {}),
    "no effort, beside specs": (EFFORTS, VLLM, xargs(GOOD), {}),
    "effort of another type": (EFFORTS, VLLM, {"reasoning_effort": ["low"]}, {}),
    "a budget of its own": (EFFORTS, VLLM, EFFORT | {"thinking_token_budget": 7}, {}),
    "not an object": (EFFORTS, SGLANG, EFFORT | {"custom_params": [1]}, {}),
    "another form of body": (EFFORTS, TOKENS, EFFORT | {"sampling_params": {}}, {}),
    "no specs there": (EFFORTS, ("vllm", "/tokenize"), EFFORT, {}),
    "a budget of what is forbidden": (BOTH, VLLM, EFFORT, {"thinking_token_budget": 5}),
    "not forbidden": (FORBIDS, VLLM, {"prompt_logprobs": None, "logprobs": 1}, {}),
    "beams": (FORBIDS, VLLM, {"use_beam_search": True}, {}),
    "no beams": (GUARDED, VLLM, {"use_beam_search": False}, {}),
    "no rules": (Policy(), VLLM, EFFORT | {"max_tokens": 1 << 40, **native(None)}, {}),
}


@pytest.mark.parametrize(("policy", "asked", "body", "added"), FILLED.values(), ids=FILLED.keys())
def test_what_reaches_the_engine(
    policy: Policy, asked: Asked, body: dict[str, Any], added: Mapping[str, Any]
):
    reply = post(policy, body, asked)
    assert reply.status_code == 200
    assert json.loads(reply.content) == {**body, **added}
    assert int(reply.headers["x-length"]) == len(reply.content)
    if not added:
        assert reply.content == json.dumps(body).encode()


def refusal(*asked: Any) -> str:
    """The message with which a request is refused."""
    reply = post(*asked)
    assert reply.status_code == 400
    assert reply.text.count("logitport: ") == 1
    return json.loads(reply.content)["error"]["message"]


PROMPTS = {"sampling_params": [{}, {"max_new_tokens": 11}]}

# field | engine and route | body | path
FORBIDDEN: list[tuple[str, Asked, Any, str]] = [
    ("seed", VLLM, {"seed": 0}, "seed"),
    ("seed", VLLM, b'{"y": "\\ud800", "s\\u0065ed": 1}', "seed"),
    ("seed", ("vllm", "/x"), {"seed": 0}, "seed"),
    ("seed", ("sglang", "/generate"), {"sampling_params": {"seed": 0}}, "sampling_params.seed"),
    ("response_format", RESPONSES, {"text": {"format": {}}}, "text.format"),
    ("response_format", MESSAGES, {"output_config": {"format": {}}}, "output_config.format"),
    ("reasoning_effort", RESPONSES, {"reasoning": {"effort": "low"}}, "reasoning.effort"),
    ("reasoning_effort", MESSAGES, {"output_config": {"effort": "a"}}, "output_config.effort"),
    ("stop", MESSAGES, {"stop_sequences": ["a"]}, "stop_sequences"),
    ("max_tokens", VLLM, {"max_completion_tokens": 5}, "max_completion_tokens"),
    ("max_tokens", RESPONSES, {"max_output_tokens": 11}, "max_output_tokens"),
    ("max_tokens", TOKENS, {"sampling_params": {"max_tokens": 1}}, "sampling_params.max_tokens"),
    ("max_tokens", ("sglang", "/generate"), PROMPTS, "sampling_params[1].max_new_tokens"),
    ("max_tokens", ("sglang", "/api/chat"), {"options": {"num_predict": 1}}, "options.num_predict"),
    ("thinking_token_budget", SGLANG, {"custom_params": BUDGET}, "custom_params.thinking_budget"),
    (
        *("thinking_token_budget", MESSAGES, {"thinking": {"budget_tokens": 0}}),
        "thinking.budget_tokens",
    ),
]


@pytest.mark.parametrize(("name", "asked", "body", "path"), FORBIDDEN)
def test_forbidden(name: str, asked: Asked, body: Any, path: str):
    message = refusal(Policy(forbid_fields=frozenset({name})), body, asked)
    assert f"does not admit the field `{name}` - at `{path}`" in message


def test_a_guard_takes_no_beam_search():
    assert "no beam search" in refusal(GUARDED, {"use_beam_search": True})


def refusals(reason: str) -> float:
    return REGISTRY.get_sample_value("logitport_refusals_total", {"reason": reason}) or 0


@pytest.mark.parametrize(
    ("policy", "body", "reason", "line"),
    [
        (FORBIDS, {"prompt_logprobs": 1}, "fields", "does not admit the field `prompt_logprobs`"),
        (GUARDED, {"use_beam_search": True}, "fields", "no beam search"),
        (FORBIDS, xargs("?\n"), "specs", "not valid JSON"),
    ],
)
def test_a_refusal_is_logged_and_counted(
    caplog: pytest.LogCaptureFixture, policy: Policy, body: Any, reason: str, line: str
):
    before = refusals(reason)
    with caplog.at_level(logging.INFO, "logitport"):
        assert post(policy, body).status_code == 400
    (logged,) = [record.message for record in caplog.records if record.name.startswith("logitport")]
    assert logged.startswith("logitport: refused a request: ")
    assert line in logged
    assert refusals(reason) == before + 1
