"""What admission looks at, with vLLM's classes and no engine."""

import json
from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from logitport import spec as lp
from logitport.adapters.core import compile_specs
from logitport.adapters.gateway.json_body import parse
from logitport.adapters.vllm import BACKEND, LogitportProcessor, SpecMiddleware, admission
from logitport.adapters.vllm.admission import check_engine
from logitport.adapters.vllm.engine_config import Role
from logitport.adapters.vllm.middleware import _Params
from logitport.adapters.vllm.processor import _program_of
from prometheus_client import REGISTRY
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.testclient import TestClient

from .in_process import params
from .stand_ins import configuration

pytestmark = pytest.mark.engine

MARK = {"kv_transfer_params": {"do_remote_decode": True}}


def raise_it(*_: Any) -> None:
    raise lp.SpecError("not a configuration")


class LiveProcessor:
    def __call__(self, token_ids: list[int], logits: Any) -> Any:
        return logits


def test_live_callable_is_refused_by_an_engine_in_another_process():
    with pytest.raises(ValueError, match="cannot reach an engine in another process"):
        LogitportProcessor.validate_params(params(lp.PythonProcessorSpec(LiveProcessor)))


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
    config: Any = SimpleNamespace(
        model_config=model_config, speculative_config=None, use_v2_model_runner=True
    )
    specs = (lp.ForcedTokenSequenceSpec((5,)),)
    with pytest.raises(lp.SpecError, match="vLLM's diffusion models choose tokens without"):
        check_engine(config, lp.Payload(1, specs), compile_specs(specs))


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
    fields = parse(json.dumps(body).encode())
    assert fields is not None
    inner = fields.object(owner) if owner else fields
    assert inner is not None
    role, asked = Role(lp.Stage.AGGREGATED, "kv_both", True), _Params(fields, inner, "{}")
    assert (role.stage_for(asked) is lp.Stage.PREFILL) is is_prefill  # pyright: ignore


@pytest.mark.parametrize("regex", [None, "a+"])
@pytest.mark.parametrize("default", [lp.BannedTokensSpec((5,)), lp.ForcedTokenSequenceSpec((5,))])
def test_only_what_forces_gives_way_to_a_grammar(regex: str | None, default: Any):
    """Of the default specs, in a worker."""
    from vllm.sampling_params import StructuredOutputsParams

    grammar = StructuredOutputsParams(regex=regex) if regex else None
    role = Role(lp.Stage.AGGREGATED, "a test")
    asked = params(structured_outputs=grammar)
    program = _program_of(role, BACKEND, 100, lp.encode(default), None, asked)
    gives_way = bool(regex) and isinstance(default, lp.ForcedTokenSequenceSpec)
    assert (program is None) is gives_way
