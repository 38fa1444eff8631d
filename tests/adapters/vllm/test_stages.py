"""Which workers of a disaggregated deployment act on a request's specs."""

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from logitport import spec as lp
from logitport.adapters.vllm import KEY, attach
from logitport.adapters.vllm.engine_config import role_of

from .in_process import FLAG, Engine, engine, params, refused

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


ACTS = {
    "prefill": "stage prefill (kv_role=kv_producer), {runner} model runner: acts on",
    "decode": "stage decode (kv_role=kv_consumer), {runner} model runner: realizes ",
    "either": "stage agg (kv_role=kv_both, prefill where do_remote_decode), {runner}",
}
KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer", "either": "kv_both"}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one engine leaves the keys and values of a prompt for the other."""
    return tmp_path_factory.mktemp("kv")


ONLY_V2 = pytest.mark.only(
    "v2", reason="under V1, test_disaggregated.py decodes what is handed over"
)
DOES = [pytest.param(does, marks=[ONLY_V2] * (does == "decode")) for does in ACTS]


@pytest.mark.parametrize("does", DOES)
def test_engine_acts_as_its_role_says(
    model: Path,
    tokenizer: Any,
    storage: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    runner: str,
    does: str,
):
    spec = lp.ForcedTokenSequenceSpec.from_text(" made of paper.", tokenizer)
    payload, payload_for_all_stages = (
        {KEY: lp.encode(spec, generation_only=generation_only)} for generation_only in (True, False)
    )
    remote_decode = {"kv_transfer_params": {"do_remote_decode": True}}
    monkeypatch.setenv("LOGITPORT_ENABLE_TEST_LOGITS_PROCESSOR", "1")
    caplog.set_level(logging.INFO, "logitport")
    before = _counts()
    everything = {"logprobs_mode": "processed_logits", "max_logprobs": -1}

    # Named and found: asked twice about each request.
    arguments = _transfer(KV_ROLES[does], storage) | everything
    with engine(model, logits_processors=FLAG, **arguments) as running:

        def say(extra_args: Any) -> str:
            asked = params(max_tokens=12, extra_args=extra_args)
            return running.generate([PROMPT], [asked])[0].text

        texts = [
            say(extra_args)
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
        counts = _counts() - before
        if does == "prefill":
            assert_untouched(running)

    paper, hello, free = " made of paper.", "Hello world!", texts[0]
    match does:
        case "prefill":
            assert free not in (paper, hello)
            assert texts == [free, free, paper, free, free]
            expected = {("gated", PREFILL): 2, ("admitted", PREFILL): 1, ("refused", PREFILL): 1}
        case "decode":
            assert texts == [hello, paper, paper, paper, hello]
            expected = {("admitted", DECODE): 3, ("refused", DECODE): 1}
        case _:
            assert texts[:3] == [hello, paper, paper]
            assert texts[3] == texts[4] not in (paper, hello)
            expected = {("admitted", AGG): 2, ("gated", PREFILL): 1, ("refused", AGG): 1}
    assert counts == expected
    (line,) = [message for message in caplog.messages if message.startswith("logitport: stage")]
    assert ACTS[does].format(runner=runner.upper()) in line


def assert_untouched(running: Engine) -> None:
    """Compare all logits, at each of the tokens that a prefill worker samples for nobody."""
    specs = [lp.LogitBiasSpec({5: 3.0, 6: -3.0}), lp.BannedTokensSpec([7]), lp.NoRepeatNgramSpec(1)]

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


def _transfer(kv_role: str, folder: Path) -> dict[str, Any]:
    return {
        "block_size": 32,  # tokens; whole blocks of the prompt are stored
        "kv_transfer_config": {
            "kv_connector": "ExampleConnector",
            "kv_role": kv_role,
            "kv_connector_extra_config": {"shared_storage_path": str(folder)},
        },
    }
