"""What admission looks at, with vLLM's classes and no engine."""

from dataclasses import replace
from functools import partial, reduce
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from logitport import spec as lp
from logitport.adapters import Policy, extra_body
from logitport.adapters.core import compile_specs
from logitport.adapters.vllm import BACKEND, LogitportProcessor, SpecMiddleware, admission
from logitport.adapters.vllm.admission import Admitting, admitting_engine, check_engine
from logitport.adapters.vllm.engine_config import Role
from logitport.adapters.vllm.middleware import _Params
from logitport.adapters.vllm.processor import _program_of
from prometheus_client import REGISTRY
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
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


@pytest.mark.parametrize("specs", [[{"kind": "dry"}], '[{"kind": "dry"}]'])
@pytest.mark.parametrize("name", ["specs", "payload"])
def test_specs_without_the_key_are_refused(name: str, specs: Any):
    asked: Any = SimpleNamespace(extra_args={name: specs})
    with pytest.raises(ValueError, match=rf"`extra_args.logitport` - at `extra_args.{name}`"):
        LogitportProcessor.validate_params(asked)


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
    inner = body[owner] if owner else body
    role, asked = Role(lp.Stage.AGGREGATED, "kv_both", True), _Params(body, inner, "{}")
    assert (role.stage_for(asked) is lp.Stage.PREFILL) is is_prefill  # pyright: ignore


FORCING = (
    lp.ForcedTokenSequenceSpec((5,)),
    lp.ChoiceSpec(((1,), (2, 3)), eos_token_id=0),
    lp.ForcedEndSpec(9, (7,)),
    lp.TriggerSpec((7,), (5,)),
)


# route | the fields around the format | another format, beside which nothing is forced
@pytest.mark.parametrize(
    ("path", "names", "other"),
    [
        ("/v1/chat/completions", ["response_format"], {"type": "json_object"}),
        ("/v1/responses", ["text", "format"], {"type": "json_object"}),
        ("/v1/messages", ["output_config", "format"], {"type": "json_schema"}),
    ],
)
@pytest.mark.parametrize("spec", FORCING, ids=lambda spec: spec.kind)
def test_the_schema_that_carries_specs_is_no_grammar(
    path: str, names: list[str], other: Any, spec: Any
):
    async def echo(request: Request) -> Response:
        return Response(await request.body())

    routes = [Route(path, echo, methods=["POST"])]
    app = Starlette(routes=routes, middleware=[Middleware(SpecMiddleware)])
    (given,) = extra_body("vllm", spec, carrier="schema").values()
    form = given if len(names) == 1 else {"type": "json_schema", **given["json_schema"]}

    def ask(form: Any, **more: Any) -> Any:
        body = reduce(lambda value, name: {name: value}, reversed(names), form)
        return TestClient(app).post(path, json={**body, **more})

    assert ask(form).json() == {"vllm_xargs": {"logitport": lp.encode(spec)}}
    refusal = ask(other, vllm_xargs={"logitport": lp.encode(spec)})
    assert (refusal.status_code, names[0] in refusal.text) == (400, True)
    empty = {names[0]: {}, "vllm_xargs": {"logitport": lp.encode(spec)}}
    assert TestClient(app).post(path, json=empty).status_code == 200


@pytest.mark.parametrize("regex", [None, "a+"])
@pytest.mark.parametrize("default", [lp.BannedTokensSpec((5,)), lp.ForcedTokenSequenceSpec((5,))])
def test_only_what_forces_gives_way_to_a_grammar(regex: str | None, default: Any):
    """Of the default specs, in a worker."""
    from vllm.sampling_params import StructuredOutputsParams

    grammar = StructuredOutputsParams(regex=regex) if regex else None
    role = Role(lp.Stage.AGGREGATED, "a test")
    asked = params(structured_outputs=grammar)
    backend = replace(BACKEND, policy=Policy((default,)))
    program = _program_of(role, backend, 100, None, asked)
    gives_way = bool(regex) and isinstance(default, lp.ForcedTokenSequenceSpec)
    assert (program is None) is gives_way


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
