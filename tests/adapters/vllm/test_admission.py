"""What admission looks at, with vLLM's classes and no engine."""

from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from logitport import spec as lp
from logitport.adapters.core import compile_specs
from logitport.adapters.vllm import KEY, LogitportProcessor, SpecMiddleware, admission
from logitport.adapters.vllm.admission import Admitting, admitting_engine, check_engine
from logitport.adapters.vllm.engine_config import Role
from logitport.adapters.vllm.middleware import _Params
from prometheus_client import REGISTRY
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.testclient import TestClient

from .in_process import params
from .stand_ins import configuration

MARK = {"kv_transfer_params": {"do_remote_decode": True}}


def raise_it(*_: Any) -> None:
    raise lp.SpecError("not a configuration")


LIVE = "cannot reach an engine in another process"
NO_KEY = r"`extra_args.logitport` - at `extra_args.(specs|payload)`"


@pytest.mark.parametrize(
    ("extra_args", "message"),
    [
        ({KEY: lp.InProcessPayload(1, (lp.PythonProcessorSpec(lambda: print),))}, LIVE),
        ({"specs": [{"kind": "dry"}]}, NO_KEY),
        ({"payload": '[{"kind": "dry"}]'}, NO_KEY),
    ],
)
def test_refused(extra_args: Any, message: str):
    with pytest.raises(ValueError, match=message):
        LogitportProcessor.validate_params(params(extra_args=extra_args))


def test_what_may_lose_is_counted_and_in_the_receipt():
    ban, trigger = lp.MinTokensSpec(9, (5,)), lp.TriggerSpec((7,), (5,))
    count = partial(REGISTRY.get_sample_value, "logitport_may_lose_total", {"kind": ban.kind})
    before = count() or 0
    for specs in ((trigger, ban), (trigger, lp.MinTokensSpec(9, (6,)))):
        LogitportProcessor.validate_params(params(list(specs)))
    assert (count() or 0) == before + 1
    assert SpecMiddleware(lambda *_: None).may_lose({}, lp.encode((trigger, ban))) == (ban.kind,)


@pytest.mark.parametrize(("policy", "is_right"), [(lambda *_: None, True), (raise_it, False)])
def test_a_server_loads_what_requests_need_before_the_first(
    policy: Any, is_right: bool, monkeypatch: pytest.MonkeyPatch
):
    is_read = Event()
    monkeypatch.setattr(admission, "tokenizer_of", lambda model_config: is_read.set())
    monkeypatch.setattr(admission, "policy_of", policy)
    app = Starlette(middleware=[Middleware(SpecMiddleware)])
    app.state.vllm_config = configuration()
    with TestClient(app):
        assert is_read.wait(60 * is_right) is is_right


def test_a_diffusion_model_takes_no_specs():
    """It brings a sampler of its own, which asks no processors."""
    model_config = SimpleNamespace(is_diffusion=True)
    config = configuration(model_config=model_config, use_v2_model_runner=True)
    specs = (lp.ForcedTokenSequenceSpec((5,)),)
    with pytest.raises(lp.SpecError, match="vLLM's diffusion models choose tokens without"):
        check_engine(config, lp.Payload(1, specs), compile_specs(specs))


NEEDS = "logitport: `effort` sets thinking_token_budget, which vLLM refuses: add --reasoning-parser"


@pytest.mark.parametrize(
    ("settings", "reasoning", "warns"),
    [
        ({"effort": {"low": 5}}, None, True),
        ({"effort": {"low": 5}}, SimpleNamespace(enabled=False), True),
        ({"effort": {"low": 5}}, SimpleNamespace(enabled=True), False),
        ({"effort": {"low": 5}}, SimpleNamespace(), False),
        ({"forbid": ["dry"]}, None, False),
        (None, None, False),
        ({"effort": {"low": "x"}}, None, False),  # the engine does not start
    ],
)
def test_effort_without_a_reasoning_parser(
    settings: Any, reasoning: Any, warns: bool, caplog: pytest.LogCaptureFixture
):
    """A client would get vLLM's error about a field that it did not send."""
    caplog.set_level("WARNING", "logitport")
    config = configuration(reasoning_config=reasoning, additional_config={"logitport": settings})
    app: Any = SimpleNamespace(state=SimpleNamespace(vllm_config=config))
    SpecMiddleware(app).start({"type": "lifespan", "app": app})
    assert (NEEDS in caplog.text) is warns


# a body, the object with its sampling fields | whether the mark for prefill is found
@pytest.mark.parametrize(
    ("body", "owner", "is_prefill"),
    [
        (MARK, "", True),
        ({"sampling_params": {"extra_args": MARK}}, "sampling_params", True),
        ({"sampling_params": {}, **MARK}, "sampling_params", True),
        ({"kv_transfer_params": {"do_remote_decode": False}}, "", False),
        ({"kv_transfer_params": None}, "", False),
        ({}, "", False),
    ],
)
def test_the_mark_for_prefill_in_a_body(body: dict[str, Any], owner: str, is_prefill: bool):
    """Of /inference/v1/generate, it is where the specs are."""
    inner = body[owner] if owner else body
    role, asked = Role(lp.Stage.AGGREGATED, "kv_both", True), _Params(body, inner, "{}")
    assert (role.stage_for(asked) is lp.Stage.PREFILL) is is_prefill  # pyright: ignore


class Frontend:
    """As vLLM's: two methods have the prompt, and the second, or one that it calls, asks."""

    vllm_config = object()

    def add_request(self, prompt: Any, rendered: Any) -> Admitting:
        return self.process_inputs(rendered)

    def process_inputs(self, prompt: Any) -> Admitting:
        return admitting_engine()

    def process(self, prompt: Any) -> Admitting:
        return self.validate()

    def validate(self) -> Admitting:
        return admitting_engine()


# what comes in | what vLLM has made of it | whether it has token ids | how many, if that is certain
@pytest.mark.parametrize(
    ("given", "rendered", "has_ids", "length"),
    [
        ("Hello", {"type": "token", "prompt_token_ids": [1, 2]}, True, 2),
        ("Hello", "Hello", True, None),
        ({"prompt_token_ids": [1, 2]}, "Hello", True, None),
        # The beginning of a stream of inputs, and a prompt that may be cut.
        ("Hello", {"prompt_token_ids": [0]}, True, None),
        ("Hello", {"type": "embeds", "prompt_embeds": ()}, False, None),
        ({"prompt_embeds": ()}, {"type": "token", "prompt_token_ids": [1]}, False, 1),
    ],
)
def test_what_is_known_of_a_prompt(given: Any, rendered: Any, has_ids: bool, length: int | None):
    found = Frontend().add_request(given, rendered)
    assert (found.has_prompt_ids, found.prompt_length) == (has_ids, length)
    below = Frontend().process(rendered)
    assert below.prompt_length == length
    assert below.has_prompt_ids or not has_ids
