"""What vLLM's front end and workers do with a mark that is required, with no engine."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from logitport import spec as lp
from logitport.adapters import Policy
from logitport.adapters.core import Mark, Realizer
from logitport.adapters.vllm import KEY, LogitportProcessor, admission, processor
from logitport.adapters.vllm.admission import Admitting
from logitport.adapters.vllm.backend import BACKEND
from logitport.adapters.vllm.engine_config import Role
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from .in_process import params
from .stand_ins import configuration

END = 3
NEWS, ALL = Mark("news", 42), Mark("all", 42, reads_prompt=True)
POLICY = Policy(profiles={"news": NEWS, "all": ALL})
REQUIRED = replace(POLICY, required="news", unmarked=frozenset({"json"}))
BY_DEFAULT = replace(POLICY, default=(lp.WatermarkSpec("news"),))
BAN = lp.encode(lp.BannedTokensSpec((5,)))
PREFILL = {"kv_transfer_params": {"do_remote_decode": True}}


def asked(patch: pytest.MonkeyPatch, policy: Policy, sampling: Any, *prompt: Any, **config: Any):
    """A request to the front end of an engine with a policy."""
    patch.setattr(admission, "policy_of", lambda *_: policy)
    made = configuration(**config)
    patch.setattr(processor, "admitting_engine", lambda: Admitting(made, None, *prompt))
    LogitportProcessor.validate_params(sampling)


def sampling_of(fields: dict[str, Any], extra_args: Any) -> Any:
    made = SamplingParams(**{"temperature": 1.0, **fields})
    made.extra_args = extra_args
    return made


JSON = {"structured_outputs": StructuredOutputsParams(json_object=True)}


BEAMS = {"max_tokens": 1, "logprobs": 2, "detokenize": False}
LABELS = {"max_tokens": 1, "logprobs": 2, "logprob_token_ids": [1, 2]}


# fields of a request | its other arguments | why it is refused where each text is to be marked
@pytest.mark.parametrize(
    ("fields", "extra_args", "why"),
    [
        *(
            (fields, extra_args, why)
            for fields, why in (
                ({}, ""),
                ({"temperature": 0.0}, "temperature"),
                ({"top_p": 0.1}, "top_p"),
                ({"n": 2}, "one reply"),
                ({"presence_penalty": 0.5}, "presence_penalty"),
            )
            for extra_args in (None, {KEY: BAN}, PREFILL, {KEY: BAN, **PREFILL})
        ),
        ({"temperature": 0.0, **JSON}, None, ""),
        ({"temperature": 0.0, "ignore_eos": True, **JSON}, None, "temperature"),
        (BEAMS, None, "no beam search"),  # a step of one
        (BEAMS, PREFILL, ""),  # of none, so its token is marked
        ({"temperature": 0.0, **LABELS}, None, ""),
        ({"temperature": 0.0, **LABELS}, {KEY: BAN}, "temperature"),
    ],
)
@pytest.mark.parametrize("kv_role", [None, "kv_both"])
def test_each_request_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, fields: Any, extra_args: Any, why: str, kv_role: Any
):
    with pytest.raises(ValueError, match=why) if why else nullcontext():
        asked(monkeypatch, REQUIRED, sampling_of(fields, extra_args), kv_role=kv_role)


def test_a_prefill_worker_marks_nothing(monkeypatch: pytest.MonkeyPatch):
    """Its token is not the reply's."""
    greedy = sampling_of({"temperature": 0.0}, None)
    asked(monkeypatch, REQUIRED, greedy, kv_role="kv_producer")


@pytest.mark.parametrize(
    ("fields", "extra_args", "is_refused"),
    [
        ({}, None, False),
        ({"temperature": 0.0}, None, True),
        ({"temperature": 0.02}, None, False),
        ({"temperature": 0.0}, {KEY: BAN}, False),  # its own specs replace the default
        ({"temperature": 0.0}, PREFILL, False),
        ({"temperature": 0.0, "max_tokens": 1, "logprobs": 2, "detokenize": False}, None, False),
    ],
)
def test_default_specs_with_a_mark(
    monkeypatch: pytest.MonkeyPatch, fields: Any, extra_args: Any, is_refused: bool
):
    with pytest.raises(ValueError, match="temperature") if is_refused else nullcontext():
        asked(monkeypatch, BY_DEFAULT, sampling_of(fields, extra_args), kv_role="kv_both")


@pytest.mark.parametrize("policy", [REQUIRED, BY_DEFAULT])
def test_an_engine_that_would_drop_the_mark(monkeypatch: pytest.MonkeyPatch, policy: Policy):
    with pytest.raises(ValueError, match="The server adds specs, but vLLM's V1 model runner"):
        asked(monkeypatch, policy, params(), speculative_config=SimpleNamespace())
    replay = SimpleNamespace(extra_args={}, max_tokens=9, trace_decode_token_ids=[5])
    with pytest.raises(ValueError, match="A replay replaces the tokens"):
        asked(monkeypatch, policy, replay)
    config = configuration(scheduler_config=SimpleNamespace(async_scheduling=True))
    with pytest.raises(ValueError, match="`watermark` needs the sampled token ids"):
        LogitportProcessor(config, torch.device("cpu"))


@pytest.mark.parametrize("extra_args", [None, {KEY: BAN}])
def test_a_prompt_without_tokens(monkeypatch: pytest.MonkeyPatch, extra_args: Any):
    for profile, is_refused in (("news", False), ("all", True)):
        policy = replace(REQUIRED, required=profile)
        with pytest.raises(ValueError, match="of embeddings") if is_refused else nullcontext():
            asked(monkeypatch, policy, sampling_of({}, extra_args), False)


# fields that a front end may let pass which checks nothing | the end token of the model
@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {"n": 2}, {"presence_penalty": 1.0}])
@pytest.mark.parametrize("extra_args", [None, {KEY: BAN}])
@pytest.mark.parametrize("end_token", [END, None])
def test_what_slips_by_ends(fields: Any, extra_args: Any, end_token: int | None):
    """Also with `ignore_eos`, where a request has no stop token."""
    role = Role(lp.Stage.AGGREGATED, "no KV transfer", False)
    args = role, replace(BACKEND, policy=REQUIRED), 8, end_token
    sampling = sampling_of(fields, extra_args)
    if end_token is None:
        with pytest.raises(lp.SpecError, match="because the text is marked"):
            processor._program_of(*args, sampling)
        return
    program, reports = processor._program_of(*args, sampling), list[str]()
    assert program is not None
    realizer = Realizer(8, report=lambda row, error, ends: reports.append(str(error)))
    output: list[int] = []
    realizer.add(0, program, [1], output)
    for _ in range(3):
        logits = torch.zeros(1, 8)
        realizer.apply(logits)
        assert logits[0].isfinite().nonzero().flatten().tolist() == [END]
        output.append(END)
    (reason,) = reports
    assert "because the text is marked" in reason


def test_a_mark_that_fails_ends():
    """Also with `ignore_eos`: here, of a token that the host does not know."""
    role = Role(lp.Stage.AGGREGATED, "no KV transfer", False)
    program = processor._program_of(
        role, replace(BACKEND, policy=REQUIRED), 8, END, sampling_of({}, {KEY: BAN})
    )
    assert program is not None
    realizer = Realizer(8, report=lambda *_: None)
    realizer.add(0, program, [1], [2, -1])
    logits = torch.zeros(1, 8)
    realizer.apply(logits)
    assert int(logits.argmax()) == END
