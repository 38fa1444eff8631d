"""Which workers of a disaggregated deployment act on a request's specs."""

import logging
import math
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from logitport import spec as lp
from logitport.adapters.vllm import KEY, attach
from logitport.adapters.vllm.engine_config import role_of

from .in_process import FLAG, Engine, engine, params, refused

PROMPT = "The sea is wide and deep, and " * 12 + "the boat is"

AGG, PREFILL, DECODE = lp.Stage.AGGREGATED, lp.Stage.PREFILL, lp.Stage.DECODE
MARK = {"kv_transfer_params": {"do_remote_decode": True}}


def _config(kv_role: str | None) -> Any:
    from vllm.config import KVTransferConfig, VllmConfig

    transfer = kv_role and KVTransferConfig(kv_connector="ExampleConnector", kv_role=kv_role)
    return VllmConfig(kv_transfer_config=transfer or None)


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


def test_unknown_stage(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOGITPORT_STAGE", "decoding")
    message = r"LOGITPORT_STAGE: Expected a stage, one of agg, .* got 'decoding'"
    with pytest.raises(lp.SpecError, match=message):
        role_of(_config(None))


class Acts(NamedTuple):
    """What an engine of a role does with requests without specs, with some, and so on."""

    kv_role: str
    log: str
    texts: str
    counts: dict[tuple[str, lp.Stage], int]


ACTS = {
    "prefill": Acts(
        "kv_producer",
        "stage prefill (kv_role=kv_producer), {runner} model runner: acts on",
        "free free paper free free",
        {("gated", PREFILL): 2, ("admitted", PREFILL): 1, ("refused", PREFILL): 1},
    ),
    "decode": Acts(
        "kv_consumer",
        "stage decode (kv_role=kv_consumer), {runner} model runner: realizes ",
        "hello paper paper paper hello",
        {("admitted", DECODE): 3, ("refused", DECODE): 1},
    ),
    "either": Acts(
        "kv_both",
        "stage agg (kv_role=kv_both, prefill where do_remote_decode), {runner}",
        "hello paper paper free free",
        {("admitted", AGG): 2, ("gated", PREFILL): 1, ("refused", AGG): 1},
    ),
}
ONLY_V2 = pytest.mark.only(
    "v2", reason="under V1, test_disaggregated.py decodes what is handed over"
)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one engine leaves the keys and values of a prompt for the other."""
    return tmp_path_factory.mktemp("kv")


@pytest.mark.slow
@pytest.mark.parametrize(
    "does", [pytest.param(does, marks=[ONLY_V2] * (does == "decode")) for does in ACTS]
)
def test_engine_acts_as_its_role_says(
    model: Path,
    tokenizer: Any,
    storage: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    runner: str,
    does: str,
):
    acts = ACTS[does]
    spec = lp.ForcedTokenSequenceSpec.from_text(" made of paper.", tokenizer)
    payload, for_all_stages = (
        {KEY: lp.encode(spec, generation_only=only)} for only in (True, False)
    )
    monkeypatch.setenv("LOGITPORT_ENABLE_TEST_LOGITS_PROCESSOR", "1")
    caplog.set_level(logging.INFO, "logitport")
    before = _counts()
    transfer = {
        "kv_connector": "ExampleConnector",
        "kv_role": acts.kv_role,
        "kv_connector_extra_config": {"shared_storage_path": str(storage)},
    }
    # Whole blocks of the prompt are stored.
    arguments = {"block_size": 32, "logprobs_mode": "processed_logits", "max_logprobs": -1}

    # Named and found: asked twice about each request.
    with engine(model, logits_processors=FLAG, kv_transfer_config=transfer, **arguments) as running:
        texts = [
            running.generate([PROMPT], [params(max_tokens=12, extra_args=extra_args)])[0].text
            for extra_args in (None, payload, for_all_stages, payload | MARK, MARK)
        ]
        with refused("not valid JSON"):
            running.generate([PROMPT], [params(extra_args={KEY: "{"})])
        counts = _counts() - before
        if does == "prefill":
            assert_untouched(running)

    names = {" made of paper.": "paper", "Hello world!": "hello"}
    assert " ".join(names.get(text, "free") for text in texts) == acts.texts
    assert len({*texts}) == len({*acts.texts.split()})
    assert counts == acts.counts
    (line,) = [message for message in caplog.messages if message.startswith("logitport: stage")]
    assert acts.log.format(runner=runner.upper()) in line


def assert_untouched(running: Engine) -> None:
    """Compare all logits, at each of the tokens that a prefill worker samples for nobody."""
    specs = [lp.LogitBiasSpec({5: 3.0, 6: -3.0}), lp.BannedTokensSpec([7]), lp.NoRepeatNgramSpec(1)]

    def logits(extra_args: Any, **fields: Any) -> list[dict[int, float]]:
        asked = params(max_tokens=2, logprobs=-1, extra_args=extra_args, **fields)
        (result,) = running.generate([PROMPT], [asked])
        return [{token: each.logprob for token, each in row.items()} for row in result.logprobs]

    plain = logits(None)
    assert [len(position) for position in plain] == [running.vocab_size] * 2
    assert logits({KEY: lp.encode(specs)}) == plain
    assert logits({KEY: lp.encode(specs, generation_only=False)})[0] != plain[0]
    chain = lp.encode(lp.ChainSpec((lp.ChainStep(top_k=3),)), generation_only=False)
    for row in logits({KEY: chain}, temperature=0.7):  # it is bound to the temperature here, too
        assert sum(logit > -math.inf for logit in row.values()) == 3


def test_attached_and_gated_are_counted():
    before = _counts()
    spec = lp.ForcedTokenSequenceSpec([1, 2])
    for stage in (DECODE, DECODE, PREFILL):
        attach(params(), spec, stage=stage)
    attach(params(), spec, stage=PREFILL, generation_only=False)
    attach(params(), [], stage=DECODE)
    counts = {("attached", DECODE): 2, ("gated", PREFILL): 1, ("attached", PREFILL): 1}
    assert _counts() - before == counts


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
