"""Asynchronous scheduling under V1, where vLLM does not show all tokens to the processor.

It comes from the entry point alone; in ``test_all_kinds.py``, it is that of the command line.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from logitport import spec as lp
from logitport.adapters import Policy
from logitport.adapters.vllm import LogitportProcessor, admission
from logitport.adapters.vllm.placeholders import Placeholders, provides_output_ids

from . import mixed_batch
from .asynchronous import asynchronous
from .in_process import FLAG, Engine, params, refused
from .mixed_batch import Case
from .stand_ins import configuration

pytestmark = pytest.mark.only("v1", reason="about the V1 runner")

STORY = "Once upon a time, there was"

COUNT_ALONE = {
    "forced_sequence",
    "allowed_tokens",
    "banned_tokens",
    "logit_bias",
    "min_tokens",
    "forced_end",
    "prompt_bias",
}
"""The kinds that are exact where no more is known than how many tokens are out."""


def kind_that_needs_contents(name: str, case: Case) -> str | None:
    """Of a request, the first kind that has to know what was sampled."""
    if name == "automaton 0":  # which counts
        return None
    return next((spec.kind for spec in case.specs if spec.kind not in COUNT_ALONE), None)


@pytest.fixture(scope="module")
def running(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with (
        mixed_batch.plugins_installed(tmp_path_factory.mktemp("site")),
        asynchronous(model, **mixed_batch.ARGUMENTS) as running,
    ):
        yield running


@pytest.mark.slow
def test_all_kinds(running: Engine, tokenizer: Any, caplog: pytest.LogCaptureFixture):
    """Exact, or ended with a reason where vLLM does not show what the kind has to know."""
    mixed_batch.check(running, tokenizer, caplog, unseen=kind_that_needs_contents)
    assert "turn asynchronous scheduling off. It is ended" in caplog.text


@pytest.mark.slow
def test_what_needs_contents_is_refused_where_there_are_none(running: Engine, tokenizer: Any):
    free = tokenizer.encode(" three four five")
    for name, case in mixed_batch.cases(free, tokenizer).items():
        asked = params(case.specs, max_tokens=1)
        if not (kind := kind_that_needs_contents(name, case)):
            running.generate([STORY], [asked])
            continue
        index = [spec.kind for spec in case.specs].index(kind)
        message = (
            rf"`{kind}` needs the sampled token ids.*--logits-processors logitport\.adapters\.vllm:"
            rf"LogitportProcessor, or with --no-async-scheduling - at `\$\.specs\[{index}\]`"
        )
        with refused(message):
            running.generate([STORY], [asked])


@pytest.mark.parametrize(
    ("is_asynchronous", "flag", "v2", "tells"),
    [
        (False, None, False, True),
        (True, None, False, False),
        (True, [], False, False),
        (True, FLAG, False, True),
        (True, None, True, True),
    ],
)
def test_which_engines_tell_what_is_sampled(
    is_asynchronous: bool, flag: Any, v2: bool, tells: bool
):
    """If none of it is known, default specs that need it keep the engine from starting."""
    scheduler = SimpleNamespace(async_scheduling=is_asynchronous)
    config = configuration(scheduler_config=scheduler, use_v2_model_runner=v2)
    config.model_config.logits_processors = flag
    assert provides_output_ids(config) == tells
    if not tells:
        with (
            patch.object(admission, "policy_of", return_value=Policy((lp.NoRepeatNgramSpec(2),))),
            pytest.raises(ValueError, match="`no_repeat_ngram` needs the sampled token ids"),
        ):
            LogitportProcessor(config, torch.device("cpu"))


@pytest.mark.slow
def test_neighbours_with_penalties_come_and_go(running: Engine, tokenizer: Any):
    """For these, vLLM fills in the ids of the whole batch, and drops placeholders on the way."""
    text = "Request {}: " + "so it goes, and on, and on, " * 3 + "until the end."
    forced = [lp.ForcedTokenSequenceSpec.from_text(text.format(i), tokenizer) for i in range(2)]
    closing = lp.ForcedEndSpec.from_text(30, " The end.", tokenizer)
    (free,) = running.generate([STORY], [params(max_tokens=30, ignore_eos=True)])
    penalised = params(max_tokens=3, repetition_penalty=1.2)
    arrivals = {
        0: {"forced": params(forced[0], max_tokens=100), "closing": params(closing)},
        2: {"late": params(forced[1], max_tokens=100)},
        9: {"penalised": penalised},
        10: {"penalised, too": penalised},
        20: {"penalised, later": penalised},
    }
    arrivals[0]["closing"].max_tokens = 100

    put_back, shortened = Placeholders.put_back, list[int]()

    def counting(placeholders: Placeholders) -> None:
        shortened.extend(length for ids, length in placeholders._noted if len(ids) < length)
        put_back(placeholders)

    with patch.object(Placeholders, "put_back", counting):
        outputs = run(running, arrivals)

    eos = tokenizer.eos_token_id
    assert outputs["forced"] == [*forced[0].token_ids, eos]
    assert outputs["late"] == [*forced[1].token_ids, eos]
    assert outputs["closing"] == [*free.token_ids, *closing.token_ids, eos]
    # For the first two of them, and for the last one, of all three lists.
    assert len(shortened) == 6


def run(running: Engine, arrivals: dict[int, dict[str, Any]]) -> dict[str, list[int]]:
    """Output ids by the name of the request; ``arrivals`` says at which step which ones come."""
    llm_engine, outputs = running.llm.llm_engine, {}
    for step in range(1000):
        for name, sampling in arrivals.get(step, {}).items():
            llm_engine.add_request(name, STORY, sampling)
        for output in llm_engine.step():
            outputs[output.request_id] = list(output.outputs[0].token_ids)
        if step > max(arrivals) and not llm_engine.has_unfinished_requests():
            break
    return outputs
