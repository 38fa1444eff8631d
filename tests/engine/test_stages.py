"""Which workers of a disaggregated deployment act on a request's specs."""

from pathlib import Path
from typing import Any

import pytest
from logitport.adapters.vllm import KEY, attach
from logitport.spec import ForcedTokenSequenceSpec, Stage, encode

from .in_process import engine, params

pytestmark = pytest.mark.engine

PROMPT = "The sea is wide and deep, and " * 12 + "the boat is"


@pytest.mark.parametrize(
    ("stage", "generation_only", "is_sent"),
    [
        (Stage.AGGREGATED, True, True),
        (Stage.DECODE, True, True),
        (Stage.PREFILL, True, False),
        (Stage.ENCODE, True, False),
        (Stage.PREFILL, False, True),
    ],
)
def test_attach(stage: Stage, generation_only: bool, is_sent: bool):
    spec = ForcedTokenSequenceSpec([1, 2])
    sampling_params = params(extra_args={"others": "stay", KEY: "of an earlier stage"})
    for _ in range(2):
        attach(sampling_params, spec, stage=stage, generation_only=generation_only)
    sent = {KEY: encode(spec, generation_only=generation_only)} if is_sent else {}
    assert sampling_params.extra_args == {"others": "stay"} | sent


@pytest.mark.parametrize(
    ("kv_role", "generates"), [("kv_producer", False), ("kv_consumer", True), ("kv_both", True)]
)
def test_engine_knows_its_role(
    model: Path,
    tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    free: str,
    kv_role: str,
    generates: bool,
):
    spec = ForcedTokenSequenceSpec.from_text(" made of paper.", tokenizer)
    payload, payload_for_all_stages = (
        {KEY: encode(spec, generation_only=generation_only)} for generation_only in (True, False)
    )
    monkeypatch.setenv("LOGITPORT_ENABLE_TEST_LOGITS_PROCESSOR", "1")

    with engine(model, **_transfer(kv_role, tmp_path)) as running:
        texts = [
            running.generate([PROMPT], [params(max_tokens=12, extra_args=extra_args)])[0].text
            for extra_args in (None, payload, payload_for_all_stages)
        ]

    paper = " made of paper."
    assert texts == (["Hello world!", paper, paper] if generates else [free, free, paper])


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
