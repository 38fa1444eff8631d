"""Specs that cannot be realized: refused at admission; what slips through ends one request."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from logitport import spec as lp
from logitport.adapters.core import compile_specs
from logitport.adapters.gateway.json_body import parse
from logitport.adapters.vllm import BACKEND, KEY, LogitportProcessor, SpecMiddleware
from logitport.adapters.vllm.admission import check_engine
from logitport.adapters.vllm.engine_config import Role
from logitport.adapters.vllm.middleware import _Params
from logitport.adapters.vllm.processor import _program_of
from prometheus_client import REGISTRY

from .in_process import Engine, engine, params, refused

pytestmark = pytest.mark.engine


MARK = {"kv_transfer_params": {"do_remote_decode": True}}


class LiveProcessor:
    def __call__(self, token_ids: list[int], logits: Any) -> Any:
        return logits


@pytest.fixture(scope="module")
def running(model: Path) -> Iterator[Engine]:
    with engine(model) as running:
        yield running


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


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (LiveProcessor(), r"an object of type LiveProcessor$"),
        ({"version": 1, "specs": [LiveProcessor()]}, r"LiveProcessor.* - at `\$\.specs\[0\]`"),
    ],
    ids=["an object", "an object as spec"],
)
def test_objects_are_refused_in_process(
    running: Engine, tokenizer: Any, payload: Any, message: str
):
    _assert_refused(running, tokenizer, payload, message)


def test_tokens_beyond_the_vocabulary_are_refused(running: Engine, tokenizer: Any):
    size = len(tokenizer)
    payload = {"version": 1, "specs": [{"kind": "forced_sequence", "token_ids": [1, size]}]}
    message = (
        rf"{size} is beyond the vocabulary of {size} tokens - at `\$\.specs\[0\]\.token_ids\[1\]`"
    )
    _assert_refused(running, tokenizer, payload, message)


def _assert_refused(running: Engine, tokenizer: Any, payload: Any, message: str) -> None:
    with refused(message):
        running.generate(["Hello"], [params(extra_args={KEY: payload})])
    _assert_forces(running, tokenizer)


@pytest.mark.parametrize("parsed", [False, True], ids=["text", "parsed"])
def test_what_fails_in_the_worker_ends_one_request(
    running: Engine, tokenizer: Any, caplog: pytest.LogCaptureFixture, parsed: bool
):
    size = len(tokenizer)
    beyond: Any = {"version": 1, "specs": [{"kind": "forced_sequence", "token_ids": [size]}]}
    if not parsed:
        beyond = lp.encode(lp.ForcedTokenSequenceSpec([size]))
    prompts = [f"Tell me about the number {i}." for i in range(6)]
    sampling = {"temperature": 1.0, "max_tokens": 12, "ignore_eos": True}
    neighbours = [params(**sampling, seed=i) for i in range(6)]
    # On a CPU, vLLM 0.28 ignores the seeds of a batch in which one request has none.
    seeded = {"temperature": 1.0, "seed": 4}
    # The failing ones' place is held by requests that end at the same step.
    held = params(max_tokens=1, **seeded)
    expected = running.generate(prompts, [*neighbours[:4], held, neighbours[5]])
    (processor,) = running.processors
    failed_before = processor._realizer.failed_requests

    failing = params(extra_args={KEY: beyond}, max_tokens=12, **seeded)
    with patch.object(type(processor), "validate_params"):
        outputs = running.generate(prompts, [*neighbours[:4], failing, neighbours[5]])

    failed = outputs[4]
    assert (failed.text, failed.finish_reason) == ("", "stop")
    assert list(failed.token_ids) == [tokenizer.eos_token_id]
    assert processor._realizer.failed_requests == failed_before + 1
    assert caplog.text.count(f"The specs of request {running.numbers[4]}-") == 1
    assert caplog.text.count("cannot be realized") == 1
    for i in (0, 1, 2, 3, 5):
        assert outputs[i].token_ids == expected[i].token_ids
    _assert_forces(running, tokenizer)
    assert running.held_requests() == 0


def test_what_fails_goes_on_freely_when_nothing_can_end_it(running: Engine, tokenizer: Any):
    sampling = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
    (free,) = running.generate(["Hello"], [params(**sampling)])
    (processor,) = running.processors
    beyond = lp.encode(lp.ForcedTokenSequenceSpec([len(tokenizer)]))
    with patch.object(type(processor), "validate_params"):
        (failed,) = running.generate(["Hello"], [params(extra_args={KEY: beyond}, **sampling)])
    assert failed.token_ids == free.token_ids
    assert running.held_requests() == 0


def _assert_forces(running: Engine, tokenizer: Any) -> None:
    spec = lp.ForcedTokenSequenceSpec.from_text("Still here.", tokenizer)
    (output,) = running.generate(["Hello"], [params(spec, max_tokens=20)])
    assert (output.text, output.finish_reason) == ("Still here.", "stop")


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
