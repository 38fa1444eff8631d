"""The operator's rules for the engine's own fields: efforts, ceilings, bans and defaults."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from logitport.adapters import Policy, SpecMiddleware
from logitport.adapters.backend import backend
from logitport.adapters.vllm.admission import bound_fields
from logitport.spec import BannedTokensSpec
from prometheus_client import REGISTRY

from tests.support import servers
from tests.support.servers import CHAT, GENERATE, GOOD, native, xargs

EFFORTS = Policy(efforts={"low": 5, "high": 50})
CEILING = Policy(most_fields={"max_tokens": 10, "thinking_token_budget": 20})
FORBIDS = Policy(forbid_fields=frozenset({"prompt_logprobs"}))
DEFAULTS = Policy(default_fields={"temperature": 0.5, "stop": ["é"]})

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
PRESET: dict[str, Any] = {"vllm_xargs": {"logitport": GOOD}}
SEED = Policy(default_fields={"seed": 1}, forbid_fields=frozenset({"seed"}))
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
    "defaults": (DEFAULTS, ("vllm", "/v1/completions"), {}, DEFAULTS.default_fields),
    "null": (DEFAULTS, VLLM, {"temperature": None, "stop": "a"}, {"temperature": 0.5}),
    "a value of its own": (DEFAULTS, SGLANG, {"temperature": 1, "stop": []}, {}),
    "another form of body": (DEFAULTS, TOKENS, {"sampling_params": {}}, {}),
    "no specs there": (DEFAULTS, ("vllm", "/tokenize"), {}, {}),
    "below": (CEILING, VLLM, {"max_tokens": 10, "thinking_token_budget": 0}, {}),
    "nothing asked for": (CEILING, VLLM, {"max_tokens": None}, {}),
    "not forbidden": (FORBIDS, VLLM, {"prompt_logprobs": None, "logprobs": 1}, {}),
    "beams": (FORBIDS, VLLM, {"use_beam_search": True}, {}),
    "no beams": (CEILING, VLLM, {"use_beam_search": False}, {}),
    "a default of what is forbidden": (SEED, VLLM, {}, {"seed": 1}),
    "a preset that is a default": (Policy(default_fields=PRESET), VLLM, {}, PRESET),
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
# engine and route | body | part of the message
ABOVE: list[tuple[Asked, dict[str, Any], str]] = [
    (VLLM, {"max_tokens": 11}, "at most 10, and an integer from 0; got 11 - at `max_tokens`"),
    (VLLM, {"max_completion_tokens": 11}, "got 11 - at `max_completion_tokens`"),
    (RESPONSES, {"max_output_tokens": 11}, "at `max_output_tokens`"),
    (TOKENS, {"sampling_params": {"max_tokens": 11}}, "at `sampling_params.max_tokens`"),
    (("sglang", "/generate"), PROMPTS, "at `sampling_params[1].max_new_tokens`"),
    (("sglang", "/api/chat"), {"options": {"num_predict": 11}}, "at `options.num_predict`"),
    (VLLM, {"max_tokens": "9"}, "an integer from 0; got '9'"),
    (VLLM, {"max_tokens": 9.0}, "an integer from 0; got 9.0"),
    (VLLM, {"thinking_token_budget": -1}, "at most 20, and an integer from 0; got -1"),
    (VLLM, {"thinking_token_budget": 21}, "at most 20"),
    (SGLANG, {"custom_params": {"thinking_budget": 21}}, "at `custom_params.thinking_budget`"),
    (MESSAGES, {"thinking": {"budget_tokens": 21}}, "at `thinking.budget_tokens`"),
    (VLLM, {"use_beam_search": True}, "no beam search"),
]


@pytest.mark.parametrize(("asked", "body", "part"), ABOVE)
def test_above_a_ceiling(asked: Asked, body: Any, part: str):
    assert part in refusal(CEILING, body, asked)


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
]


@pytest.mark.parametrize(("name", "asked", "body", "path"), FORBIDDEN)
def test_forbidden(name: str, asked: Asked, body: Any, path: str):
    message = refusal(Policy(forbid_fields=frozenset({name})), body, asked)
    assert f"does not admit the field `{name}` - at `{path}`" in message


def test_a_guard_takes_no_beam_search():
    guarded = Policy(guard=(BannedTokensSpec((5,)),))
    assert "no beam search" in refusal(guarded, {"use_beam_search": True})


def test_a_default_that_is_wrong():
    wrong = Policy(default_fields={"vllm_xargs": {"logitport": "?"}})
    assert "not valid JSON" in refusal(wrong, {})


def refusals(reason: str) -> float:
    return REGISTRY.get_sample_value("logitport_refusals_total", {"reason": reason}) or 0


@pytest.mark.parametrize(
    ("policy", "body", "reason", "line"),
    [
        (FORBIDS, {"prompt_logprobs": 1}, "fields", "does not admit the field `prompt_logprobs`"),
        (CEILING, {"max_tokens": 11}, "fields", "at most 10"),
        (CEILING, xargs("?\n"), "specs", "not valid JSON"),
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


@pytest.mark.parametrize(
    ("max_tokens", "budget", "expected"),
    [(None, None, (10, 20)), (99, 99, (10, 20)), (3, 0, (3, 0))],
)
def test_ceilings_at_admission(max_tokens: Any, budget: Any, expected: tuple[int, int]):
    params = SimpleNamespace(max_tokens=max_tokens, thinking_token_budget=budget)
    bound_fields(CEILING, params)
    assert (params.max_tokens, params.thinking_token_budget) == expected
    bound_fields(None, params)
