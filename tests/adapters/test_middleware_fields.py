"""The operator's rules for the engine's own fields: efforts, ceilings, bans and defaults."""

import json
import logging
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from logitport.adapters import Backend, Policy, SpecMiddleware
from logitport.adapters.backend import backend
from logitport.adapters.vllm.admission import bound_fields
from logitport.spec import BannedTokensSpec
from prometheus_client import REGISTRY

from tests.support.servers import CHAT, GENERATE, GOOD, native, xargs

from . import test_middleware

EFFORTS = Policy(efforts={"low": 5, "high": 50})
CEILING = Policy(most_fields={"max_tokens": 10, "thinking_token_budget": 20})
FORBIDS = Policy(forbid_fields=frozenset({"prompt_logprobs"}))
DEFAULTS = Policy(default_fields={"temperature": 0.5, "stop": ["é"]})
COMPLETIONS = "/v1/completions"
MESSAGES, OUTPUT = "/v1/messages", {"output_config": {"format": {"schema": {}}}}
REASONING, EFFORT_OF_OUTPUT = "reasoning.effort", "output_config.effort"
BAN = BannedTokensSpec((5,))


def post(
    monkeypatch: pytest.MonkeyPatch, policy: Policy, path: str, body: Any, engine: str = "vllm"
) -> httpx.Response:
    made = Backend(**{**vars(backend(engine)), "policy": policy})
    monkeypatch.setattr(SpecMiddleware, "backend", lambda *_: made)
    return test_middleware.post(path, body, engine=engine)


EFFORT = {"reasoning_effort": "low"}
# policy | engine | route | body | what is added to it
FILLED: dict[str, tuple[Policy, str, str, dict[str, Any], dict[str, Any]]] = {
    "effort": (EFFORTS, "vllm", CHAT, EFFORT, {"thinking_token_budget": 5}),
    "effort, SGLang": (EFFORTS, "sglang", CHAT, EFFORT, {"custom_params": {"thinking_budget": 5}}),
    "effort, SGLang, beside others": (
        EFFORTS,
        "sglang",
        CHAT,
        EFFORT | {"custom_params": {"a": 1}},
        {"custom_params": {"a": 1, "thinking_budget": 5}},
    ),
    "another effort": (EFFORTS, "vllm", CHAT, {"reasoning_effort": "medium"}, {}),
    "no effort": (EFFORTS, "vllm", CHAT, {"reasoning_effort": None}, {}),
    "effort of another type": (EFFORTS, "vllm", CHAT, {"reasoning_effort": ["low"]}, {}),
    "a budget of its own": (EFFORTS, "vllm", CHAT, EFFORT | {"thinking_token_budget": 7}, {}),
    "defaults": (DEFAULTS, "vllm", COMPLETIONS, {}, DEFAULTS.default_fields),
    "null": (DEFAULTS, "vllm", CHAT, {"temperature": None, "stop": "a"}, {"temperature": 0.5}),
    "a value of its own": (DEFAULTS, "sglang", CHAT, {"temperature": 1, "stop": []}, {}),
    "another form of body": (DEFAULTS, "vllm", GENERATE, {"sampling_params": {}}, {}),
    "no specs there": (DEFAULTS, "vllm", "/tokenize", {}, {}),
    "below": (CEILING, "vllm", CHAT, {"max_tokens": 10, "thinking_token_budget": 0}, {}),
    "nothing asked for": (CEILING, "vllm", CHAT, {"max_tokens": None}, {}),
    "not forbidden": (FORBIDS, "vllm", CHAT, {"prompt_logprobs": None, "logprobs": 1}, {}),
    "beams": (FORBIDS, "vllm", CHAT, {"use_beam_search": True}, {}),
    "no beams": (CEILING, "vllm", CHAT, {"use_beam_search": False}, {}),
    "a default of what is forbidden": (
        Policy(default_fields={"seed": 1}, forbid_fields=frozenset({"seed"})),
        "vllm",
        CHAT,
        {},
        {"seed": 1},
    ),
    "a preset that is a default": (
        Policy(default_fields={"vllm_xargs": {"logitport": GOOD}}),
        "vllm",
        CHAT,
        {},
        {"vllm_xargs": {"logitport": GOOD}},
    ),
}


@pytest.mark.parametrize(
    ("policy", "engine", "path", "body", "added"), FILLED.values(), ids=FILLED.keys()
)
@pytest.mark.parametrize("specs", [False, True])
def test_what_reaches_the_engine(
    monkeypatch: pytest.MonkeyPatch,
    policy: Policy,
    engine: str,
    path: str,
    body: dict[str, Any],
    added: dict[str, Any],
    specs: bool,
):
    if specs:
        if engine != "vllm" or path != CHAT or "vllm_xargs" in added:
            pytest.skip("of one engine's chats")
        body = xargs(GOOD, **body)
    reply = post(monkeypatch, policy, path, body, engine)
    assert reply.status_code == 200
    assert json.loads(reply.content) == body | added
    assert int(reply.headers["x-length"]) == len(reply.content)
    if not added:
        assert reply.content == json.dumps(body).encode()


# policy | engine | route | body | what the message has
REFUSED: dict[str, tuple[Policy, str, str, dict[str, Any], tuple[str, ...]]] = {
    "max_tokens": (CEILING, "vllm", CHAT, {"max_tokens": 11}, ("at most 10", "got 11")),
    "streamed": (CEILING, "vllm", CHAT, {"max_tokens": 11, "stream": True}, ("`max_tokens`",)),
    "OpenAI's new name": (
        CEILING,
        "vllm",
        CHAT,
        {"max_completion_tokens": 11},
        ("at `max_completion_tokens`",),
    ),
    "responses": (
        CEILING,
        "vllm",
        "/v1/responses",
        {"max_output_tokens": 11},
        ("at `max_output_tokens`",),
    ),
    "tokens": (
        CEILING,
        "vllm",
        GENERATE,
        {"sampling_params": {"max_tokens": 11}},
        ("at `sampling_params.max_tokens`",),
    ),
    "one of several prompts": (
        CEILING,
        "sglang",
        "/generate",
        {"sampling_params": [{}, {"max_new_tokens": 11}]},
        ("at `sampling_params[1].max_new_tokens`",),
    ),
    "Ollama": (
        CEILING,
        "sglang",
        "/api/chat",
        {"options": {"num_predict": 11}},
        ("at `options.num_predict`",),
    ),
    "a text": (CEILING, "vllm", CHAT, {"max_tokens": "9"}, ("an integer", "got '9'")),
    "a fraction": (CEILING, "vllm", CHAT, {"max_tokens": 9.0}, ("an integer", "got 9.0")),
    "no end": (CEILING, "vllm", CHAT, {"thinking_token_budget": -1}, ("at most 20", "got -1")),
    "thinking": (CEILING, "vllm", COMPLETIONS, {"thinking_token_budget": 21}, ("at most 20",)),
    "thinking, SGLang": (
        CEILING,
        "sglang",
        CHAT,
        {"custom_params": {"thinking_budget": 21}},
        ("at `custom_params.thinking_budget`",),
    ),
    "thinking, Anthropic": (
        CEILING,
        "vllm",
        "/v1/messages",
        {"thinking": {"type": "enabled", "budget_tokens": 21}},
        ("at `thinking.budget_tokens`",),
    ),
    "forbidden": (
        FORBIDS,
        "vllm",
        CHAT,
        {"prompt_logprobs": 0},
        ("does not admit the field `prompt_logprobs`",),
    ),
    "forbidden, on any route": (FORBIDS, "vllm", "/x", {"prompt_logprobs": 0}, ("not admit",)),
    **{
        f"forbidden, as {path}": (
            Policy(forbid_fields=frozenset({name})),
            "vllm",
            route,
            body,
            (f"not admit the field `{name}`", f"at `{path}`"),
        )
        for name, route, body, path in (
            ("response_format", "/v1/responses", {"text": {"format": {}}}, "text.format"),
            ("response_format", MESSAGES, OUTPUT, "output_config.format"),
            ("reasoning_effort", "/v1/responses", {"reasoning": {"effort": "low"}}, REASONING),
            ("reasoning_effort", MESSAGES, {"output_config": {"effort": "low"}}, EFFORT_OF_OUTPUT),
            ("stop", MESSAGES, {"stop_sequences": ["a"]}, "stop_sequences"),
            ("max_tokens", CHAT, {"max_completion_tokens": 5}, "max_completion_tokens"),
        )
    },
    "forbidden, within": (
        FORBIDS,
        "sglang",
        "/generate",
        {"sampling_params": {"prompt_logprobs": 0}},
        ("at `sampling_params.prompt_logprobs`",),
    ),
    **{
        f"beams, {name}": (policy, "vllm", CHAT, {"use_beam_search": True}, ("no beam search",))
        for name, policy in {"guard": Policy(guard=(BAN,)), "ceiling": CEILING}.items()
    },
    "a default is wrong": (
        Policy(default_fields={"vllm_xargs": {"logitport": "?"}}),
        "vllm",
        CHAT,
        {},
        ("not valid JSON",),
    ),
}


@pytest.mark.parametrize(
    ("policy", "engine", "path", "body", "parts"), REFUSED.values(), ids=REFUSED.keys()
)
def test_refused(
    monkeypatch: pytest.MonkeyPatch,
    policy: Policy,
    engine: str,
    path: str,
    body: Any,
    parts: tuple[str, ...],
):
    reply = post(monkeypatch, policy, path, body, engine)
    assert reply.status_code == 400
    assert reply.text.count("logitport: ") == 1
    for part in parts:
        assert part in json.loads(reply.content)["error"]["message"]


def test_no_way_of_writing_hides_a_field(monkeypatch: pytest.MonkeyPatch):
    body = b'{"y": "\\ud800", "prompt_\\u006cogprobs": 1}'
    assert post(monkeypatch, FORBIDS, CHAT, body).status_code == 400


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
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    policy: Policy,
    body: Any,
    reason: str,
    line: str,
):
    before = refusals(reason)
    with caplog.at_level(logging.INFO):
        assert post(monkeypatch, policy, CHAT, body).status_code == 400
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


def test_without_rules_the_policy_is_all_the_same(monkeypatch: pytest.MonkeyPatch):
    body = {"max_tokens": 1 << 40, "reasoning_effort": "low", **native(None)}
    assert post(monkeypatch, Policy(), CHAT, body).json() == body
