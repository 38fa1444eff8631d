"""Which workers of a disaggregated deployment act on a request's specs."""

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from logitport import spec as lp
from logitport.adapters.vllm import KEY, attach
from logitport.adapters.vllm.engine_config import role_of

from .in_process import FLAG, engine, params, refused

pytestmark = pytest.mark.engine

PROMPT = "The sea is wide and deep, and " * 12 + "the boat is"


AGG, PREFILL, DECODE = lp.Stage.AGGREGATED, lp.Stage.PREFILL, lp.Stage.DECODE


@pytest.mark.parametrize(
    ("kv_role", "variable", "stage"),
    [
        ("kv_producer", "", PREFILL),
        ("kv_consumer", "", DECODE),
        ("kv_both", "", AGG),
        (None, "", AGG),
        ("kv_both", "prefill", PREFILL),
        ("kv_producer", "decode", DECODE),
        (None, "encode", lp.Stage.ENCODE),
    ],
)
def test_role(monkeypatch: pytest.MonkeyPatch, kv_role: str | None, variable: str, stage: lp.Stage):
    """A request's own ``do_remote_decode`` counts where nothing else tells the engines apart."""
    monkeypatch.setenv("LOGITPORT_STAGE", variable)
    role = role_of(_config(kv_role))
    assert role.stage is stage
    assert ("LOGITPORT_STAGE" if variable else kv_role or "no KV transfer") in role.source
    follows_requests = kv_role == "kv_both" and not variable
    for transfer, is_prefill in [
        ({"do_remote_decode": True, "do_remote_prefill": False}, True),
        ({"do_remote_prefill": True}, False),
        ({"do_remote_decode": False}, False),
        ({}, False),
        (None, False),
        ("of a client that nobody checks", False),
    ]:
        request = params(extra_args={"kv_transfer_params": transfer})
        expected = PREFILL if follows_requests and is_prefill else stage
        assert role.stage_for(request) is expected
    assert role.stage_for(params()) is stage


def test_unknown_stage(monkeypatch: pytest.MonkeyPatch, model: Path):
    monkeypatch.setenv("LOGITPORT_STAGE", "decoding")
    with pytest.raises(
        lp.SpecError, match=r"LOGITPORT_STAGE: Expected a stage, one of agg, .* got 'decoding'"
    ):
        role_of(_config(None))


def _config(kv_role: str | None) -> Any:
    from vllm.config import KVTransferConfig, VllmConfig

    transfer = kv_role and KVTransferConfig(kv_connector="ExampleConnector", kv_role=kv_role)
    return VllmConfig(kv_transfer_config=transfer or None)


@pytest.mark.parametrize(
    ("kv_role", "variable", "said"),
    [
        ("kv_producer", "", "stage prefill (kv_role=kv_producer), {runner} model runner: acts on"),
        ("kv_consumer", "", "stage decode (kv_role=kv_consumer), {runner} model runner: realizes "),
        ("kv_both", "", "stage agg (kv_role=kv_both, prefill where do_remote_decode), {runner}"),
        ("kv_both", "prefill", "stage prefill (LOGITPORT_STAGE), {runner} model runner: acts on"),
    ],
)
def test_engine_acts_as_its_role_says(
    model: Path,
    tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    free: str,
    runner: str,
    kv_role: str,
    variable: str,
    said: str,
):
    spec = lp.ForcedTokenSequenceSpec.from_text(" made of paper.", tokenizer)
    payload, payload_for_all_stages = (
        {KEY: lp.encode(spec, generation_only=generation_only)} for generation_only in (True, False)
    )
    remote_decode = {"kv_transfer_params": {"do_remote_decode": True}}
    monkeypatch.setenv("LOGITPORT_ENABLE_TEST_LOGITS_PROCESSOR", "1")
    monkeypatch.setenv("LOGITPORT_STAGE", variable)
    caplog.set_level(logging.INFO, "logitport")
    before = _counts()

    # Named and found: asked twice about each request.
    with engine(model, logits_processors=FLAG, **_transfer(kv_role, tmp_path)) as running:
        texts = [
            running.generate([PROMPT], [params(max_tokens=12, extra_args=extra_args)])[0].text
            for extra_args in (
                None,
                payload,
                payload_for_all_stages,
                payload | remote_decode,
                remote_decode,
            )
        ]
        with refused("not valid JSON"):
            running.generate([PROMPT], [params(extra_args={KEY: "{"})])

    paper, hello = " made of paper.", "Hello world!"
    acts = [hello, paper, paper, paper, hello]
    stage = role_of(_config(kv_role)).stage
    if stage is PREFILL:
        assert texts == [free, free, paper, free, free]
        counted = {("gated", PREFILL): 2, ("admitted", PREFILL): 1, ("refused", PREFILL): 1}
    elif kv_role == "kv_both":
        assert texts == [*acts[:3], free, free]
        counted = {("admitted", AGG): 2, ("gated", PREFILL): 1, ("refused", AGG): 1}
    else:
        assert texts == acts
        counted = {("admitted", DECODE): 3, ("refused", DECODE): 1}
    assert _counts() - before == counted
    (line,) = [message for message in caplog.messages if message.startswith("logitport: stage")]
    assert said.format(runner=runner.upper()) in line


def test_prefill_logits_are_untouched(model: Path, tmp_path: Path, runner: str):
    """Bit for bit, at each of the tokens that a prefill worker samples for nobody."""
    specs = [lp.LogitBiasSpec({5: 3.0, 6: -3.0}), lp.BannedTokensSpec([7]), lp.NoRepeatNgramSpec(1)]
    transfer = _transfer("kv_producer", tmp_path)
    everything = {"logprobs_mode": "processed_logits", "max_logprobs": -1}
    with engine(model, logits_processors=FLAG, **everything, **transfer) as running:

        def logits(**extra_args: Any) -> list[dict[int, float]]:
            asked = params(max_tokens=2, logprobs=-1, extra_args=extra_args or None)
            (result,) = running.generate([PROMPT], [asked])
            return [
                {token: entry.logprob for token, entry in position.items()}
                for position in result.logprobs or ()
            ]

        plain = logits()
        assert [len(position) for position in plain] == [running.vocab_size] * 2
        assert logits(**{KEY: lp.encode(specs)}) == plain
        edited = logits(**{KEY: lp.encode(specs, generation_only=False)})
        assert edited[0] != plain[0]


def test_attached_and_gated_are_counted():
    before = _counts()
    spec = lp.ForcedTokenSequenceSpec([1, 2])
    for stage in (DECODE, DECODE, PREFILL):
        attach(params(), spec, stage=stage)
    attach(params(), spec, stage=PREFILL, generation_only=False)
    attach(params(), [], stage=DECODE)
    assert _counts() - before == {
        ("attached", DECODE): 2,
        ("gated", PREFILL): 1,
        ("attached", PREFILL): 1,
    }


def _counts() -> Counter[tuple[str, lp.Stage]]:
    """Of all requests of this process."""
    from prometheus_client import REGISTRY

    return Counter(
        {
            (sample.labels["decision"], lp.Stage(sample.labels["stage"])): sample.value
            for metric in REGISTRY.collect()
            for sample in metric.samples
            if sample.name == "logitport_requests_total"
        }
    )


@pytest.fixture(scope="module")
def free(model: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a prefill engine says without our processor."""
    transfer = _transfer("kv_producer", tmp_path_factory.mktemp("kv"))
    with engine(model, entry_point=False, **transfer) as plain:
        return plain.generate([PROMPT], [params(max_tokens=12)])[0].text


def _transfer(kv_role: str, folder: Path) -> dict[str, Any]:
    return {
        "block_size": 32,  # tokens; whole blocks of the prompt are stored
        "kv_transfer_config": {
            "kv_connector": "ExampleConnector",
            "kv_role": kv_role,
            "kv_connector_extra_config": {"shared_storage_path": str(folder)},
        },
    }
