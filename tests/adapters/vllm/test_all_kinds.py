"""One batch of all kinds on the real engine, and what is refused before it gets there."""

from typing import Any
from unittest.mock import patch

import pytest
from logitport import spec as lp
from logitport.adapters.vllm import KEY

from tests.support.seeds import seeds

from . import mixed_batch
from .in_process import Engine, params, refused


@pytest.fixture
def running(mixed: Engine) -> Engine:
    return mixed


@pytest.mark.only("v1", reason="under V2, in four parts")
def test_all_kinds(running: Engine, tokenizer: Any, caplog: pytest.LogCaptureFixture):
    mixed_batch.check(running, tokenizer, caplog)


@pytest.mark.only("v2", reason="under V1, all at once")
@pytest.mark.parametrize("first", seeds(1, 4))
def test_every_fourth_kind(
    running: Engine, tokenizer: Any, caplog: pytest.LogCaptureFixture, first: int
):
    mixed_batch.check(running, tokenizer, caplog, every=slice(first, None, 4))


def test_texts_at_the_end(running: Engine, tokenizer: Any):
    mixed_batch.check_texts_at_the_end(running, tokenizer)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (lp.encode(lp.PluginSpec("refuses", {"this": 1})), r"its parameters: what is this\?"),
        (
            lp.encode(lp.BannedTokensSpec((5,)), continued=99),
            r"Expected at most \d+, the prompt's tokens, got 99 - at `\$\.continued`",
        ),
    ],
    ids=["plugin's parameters", "continued"],
)
def test_refused_at_admission(running: Engine, tokenizer: Any, payload: Any, message: str):
    with refused(message):
        running.generate(["Hello"], [params(extra_args={KEY: payload})])
    spec = lp.ForcedTokenSequenceSpec.from_text("Still here.", tokenizer)
    (output,) = running.generate(["Hello"], [params(spec, max_tokens=20)])
    assert (output.text, output.finish_reason) == ("Still here.", "stop")


def test_what_fails_goes_on_freely_when_nothing_can_end_it(running: Engine, tokenizer: Any):
    sampling = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}
    (free,) = running.generate(["Hello"], [params(**sampling)])
    beyond = lp.encode(lp.ForcedTokenSequenceSpec([1 << 20]))
    with patch.object(type(running.acting), "validate_params"):
        (failed,) = running.generate(["Hello"], [params(extra_args={KEY: beyond}, **sampling)])
    assert failed.token_ids == free.token_ids


@pytest.mark.only("v2", reason="V1 passes the prompt to its processors")
def test_the_host_reads_what_a_request_has(running: Engine, tokenizer: Any):
    """The device would take long. A request that comes again has an output."""
    from logitport.adapters.core.device import requests

    prompts = [tokenizer.encode(f"Count from {i}:") for i in range(9)]
    sampling = params(lp.ThinkingBudgetSpec(3, (1,), (2,)), max_tokens=60, ignore_eos=True)
    place, read = requests.place, list[tuple[list[int], int]]()

    def placing(lanes: Any, since: Any, history: Any) -> Any:
        # The prompt may be the engine's own list, which grows.
        read.append(([*history.prompt_ids], len(history.output_ids)))
        return place(lanes, since, history)

    running.preempted.clear()
    with patch.object(requests, "place", placing):
        running.generate([{"prompt_token_ids": ids} for ids in prompts], [sampling] * 9)
    assert read[:9] == [(prompt, 0) for prompt in prompts]
    assert running.preempted
    assert sorted(length for _, length in read[9:]) == sorted(running.preempted)
    assert all(prompt in prompts for prompt, _ in read)
