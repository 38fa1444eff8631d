"""The operator's rules for the engine's own fields: efforts, and no beams beside a guard."""

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
GUARDED = Policy(guard=(BannedTokensSpec((5,)),))

Asked = tuple[str, str]
"""An engine, and a route of its server."""

VLLM, SGLANG = ("vllm", CHAT), ("sglang", CHAT)
TOKENS = ("vllm", GENERATE)


def post(policy: Policy, body: Any, asked: Asked = VLLM) -> httpx.Response:
    engine, path = asked
    made = replace(backend(engine), policy=policy)
    with patch.object(SpecMiddleware, "backend", lambda *_: made):
        return servers.post(path, body, engine=engine)


EFFORT: dict[str, Any] = {"reasoning_effort": "low"}
BUDGET = {"thinking_budget": 5}
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
    "beams": (EFFORTS, VLLM, {"use_beam_search": True}, {}),
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


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"use_beam_search": True}, "use_beam_search"),
        (b'{"y": "\\ud800", "u\\u0073e_beam_search": 1}', "use_beam_search"),
        ({"extra_body": {"use_beam_search": 1}}, "extra_body.use_beam_search"),
    ],
)
def test_a_guard_takes_no_beam_search(body: Any, path: str):
    assert f"its guard would not act on it - at `{path}`" in refusal(GUARDED, body)


def refusals() -> float:
    labels = {"decision": "refused", "stage": "agg"}
    return REGISTRY.get_sample_value("logitport_requests_total", labels) or 0


@pytest.mark.parametrize(
    ("body", "line"),
    [({"use_beam_search": True}, "no beam search"), (xargs("?\n"), "not valid JSON")],
)
def test_a_refusal_is_logged_and_counted(caplog: pytest.LogCaptureFixture, body: Any, line: str):
    before = refusals()
    with caplog.at_level(logging.INFO, "logitport"):
        assert post(GUARDED, body).status_code == 400
    (logged,) = [record.message for record in caplog.records if record.name.startswith("logitport")]
    assert logged.startswith("logitport: refused a request: ")
    assert line in logged
    assert refusals() == before + 1
