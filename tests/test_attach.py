"""Attaching specs to a request: which workers are sent them, and what else stays as it was."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from logitport.adapters.vllm import KEY, attach
from logitport.spec import ForcedTokenSequenceSpec, PythonProcessorSpec, SpecError, Stage, encode

SPEC = ForcedTokenSequenceSpec((1, 2), 3)
OTHER_SPEC = ForcedTokenSequenceSpec((4,))

MakeParams = Callable[[dict[str, Any] | None], Any]


def vllm_params(extra_args: dict[str, Any] | None) -> Any:
    from vllm import SamplingParams

    return SamplingParams(extra_args=extra_args)


def stand_in(extra_args: dict[str, Any] | None) -> Any:
    return SimpleNamespace(extra_args=extra_args)


@pytest.fixture(params=[stand_in, vllm_params], ids=["stand-in", "SamplingParams"])
def make_params(request: pytest.FixtureRequest) -> MakeParams:
    return request.param


@pytest.mark.parametrize(
    ("stage", "generation_only", "sent"),
    [
        (Stage.AGGREGATED, True, True),
        (Stage.DECODE, True, True),
        (Stage.PREFILL, True, False),
        (Stage.ENCODE, True, False),
        (Stage.AGGREGATED, False, True),
        (Stage.DECODE, False, True),
        (Stage.PREFILL, False, True),
        (Stage.ENCODE, False, True),
    ],
)
def test_gate(make_params: MakeParams, stage: Stage, generation_only: bool, sent: bool):
    payload = encode(SPEC, generation_only=generation_only)
    for extra_args, rest in [(None, {}), ({}, {}), ({"a": [1]}, {"a": [1]}), ({KEY: "old"}, {})]:
        params = make_params(extra_args)
        attach(params, SPEC, stage=stage, generation_only=generation_only)
        assert params.extra_args == ({**rest, KEY: payload} if sent else rest or None)


def test_returns_its_argument(make_params: MakeParams):
    params = make_params(None)
    assert attach(params, SPEC) is params
    assert params.extra_args == {KEY: encode(SPEC)}


def test_the_callers_dict_stays(make_params: MakeParams):
    shared = {"seed": {"nested": 1}, KEY: "old"}
    first, second = make_params(shared), make_params(shared)
    attach(first, SPEC)
    attach(second, OTHER_SPEC)
    assert shared == {"seed": {"nested": 1}, KEY: "old"}
    assert first.extra_args == {"seed": {"nested": 1}, KEY: encode(SPEC)}
    assert second.extra_args == {"seed": {"nested": 1}, KEY: encode(OTHER_SPEC)}


def test_again_and_anew_and_off(make_params: MakeParams):
    params = make_params({"a": 1})
    for _ in range(2):
        attach(params, SPEC)
        assert params.extra_args == {"a": 1, KEY: encode(SPEC)}
    attach(params, [OTHER_SPEC], generation_only=False)
    assert params.extra_args == {"a": 1, KEY: encode(OTHER_SPEC, generation_only=False)}
    attach(params, ())
    assert params.extra_args == {"a": 1}
    attach(params, SPEC)
    attach(params, SPEC, stage=Stage.PREFILL)
    assert params.extra_args == {"a": 1}


@pytest.mark.parametrize("stage", Stage)
def test_refused_whatever_the_stage(make_params: MakeParams, stage: Stage):
    params = make_params({"a": 1, KEY: encode(OTHER_SPEC)})
    for bad in ([SPEC, OTHER_SPEC], [PythonProcessorSpec(dict)] * 17):
        with pytest.raises(SpecError):
            attach(params, bad, stage=stage)
        assert params.extra_args == {"a": 1, KEY: encode(OTHER_SPEC)}


def test_live_callables_are_attached_as_they_are(make_params: MakeParams):
    specs = (PythonProcessorSpec(dict), SPEC)
    params = attach(make_params({"a": 1}), specs)
    assert params.extra_args is not None
    assert params.extra_args.pop(KEY).specs == specs
    assert params.extra_args == {"a": 1}
    assert attach(params, specs, stage=Stage.PREFILL).extra_args == {"a": 1}
