"""Asynchronous scheduling under the V1 model runner: steps begin before their tokens are known.

vLLM's platform for CPUs turns it off. Here it is left on: the engine, its asynchronous scheduler
and the model runner are vLLM's own. Stand-ins are only the CUDA streams and events with which the
runner waits for the sampled ids to arrive on the host, where they are from the outset.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from logitport import spec as lp
from logitport.adapters.vllm import processor
from logitport.adapters.vllm.placeholders import provides_output_ids

from . import mixed_batch
from .in_process import FLAG, Engine, engine, params, refused
from .mixed_batch import Case

pytestmark = [pytest.mark.engine, pytest.mark.only("v1", reason="about the V1 runner")]

LOADING = {"flag": {"logits_processors": FLAG}, "entry point": {}}
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
    if name in ("plugin, automaton", "automaton 0"):  # which count
        return None
    return next((spec.kind for spec in case.specs if spec.kind not in COUNT_ALONE), None)


class _Stream:
    def wait_stream(self, other: object) -> None:
        pass


class _Event:
    def __init__(self, blocking: bool) -> None:
        pass

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


@contextmanager
def asynchronous(model: Path, loading: str, **arguments: Any) -> Iterator[Engine]:
    """An engine that schedules asynchronously, as any does that has an accelerator."""
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    check_and_update = CpuPlatform.check_and_update_config

    def leave_on(vllm_config: Any) -> None:
        check_and_update(vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    with (
        patch.object(CpuPlatform, "check_and_update_config", staticmethod(leave_on)),
        patch("torch.cuda.Stream", _Stream),
        patch("torch.cuda.Event", _Event),
        patch("torch.cuda.current_stream", _Stream),
        patch("torch.cuda.stream", nullcontext),
        engine(model, runner="v1", **LOADING[loading], **arguments) as running,
    ):
        core = running.client.engine_core
        runner = core.model_executor.driver_worker.worker.model_runner
        assert isinstance(core.scheduler, AsyncScheduler)
        assert runner.use_async_scheduling
        yield running


@pytest.fixture(scope="module", params=list(LOADING))
def loading(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def running(
    model: Path, loading: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    with (
        mixed_batch.plugins_installed(tmp_path_factory.mktemp("site")),
        asynchronous(model, loading, **mixed_batch.ARGUMENTS) as running,
    ):
        yield running


@dataclass
class Seen:
    """Output ids of requests with specs, as our instance has seen them.

    Attributes:
        lengths: of each list that is not empty, at the newest step, by ``id``.
        unknown_before: how often the newest id was not known before the forward pass.
        unknown_after: how often not after it either.
        shortened: how often a list became shorter in between.
    """

    lengths: dict[int, int]
    unknown_before: int = 0
    unknown_after: int = 0
    shortened: int = 0


@contextmanager
def watching(running: Engine) -> Iterator[Seen]:
    acting = running.acting
    update_state, apply = acting.update_state, acting.apply
    seen = Seen({})

    def watched_update_state(*args: Any) -> None:
        update_state(*args)
        outputs = [output_ids for output_ids in acting._realizer.outputs if output_ids]
        seen.lengths = {id(output_ids): len(output_ids) for output_ids in outputs}
        seen.unknown_before += sum(output_ids[-1] == -1 for output_ids in outputs)

    def watched_apply(*args: Any) -> Any:
        outputs = [output_ids for output_ids in acting._realizer.outputs if output_ids]
        seen.unknown_after += sum(output_ids[-1] == -1 for output_ids in outputs)
        seen.shortened += sum(
            len(output_ids) < seen.lengths[id(output_ids)] for output_ids in outputs
        )
        return apply(*args)

    with (
        patch.object(acting, "update_state", watched_update_state),
        patch.object(acting, "apply", watched_apply),
    ):
        yield seen


def test_all_kinds(running: Engine, loading: str, tokenizer: Any, caplog: pytest.LogCaptureFixture):
    """Exact, or ended with a reason where vLLM does not show what the kind has to know."""
    unseen = None if loading == "flag" else kind_that_needs_contents
    with watching(running) as seen:
        mixed_batch.check(running, tokenizer, caplog, unseen=unseen)
    assert seen.unknown_before > 100
    if unseen:
        assert seen.unknown_after > 100
        assert "turn asynchronous scheduling off. It is ended" in caplog.text
    else:
        assert seen.unknown_after == 0


@pytest.mark.parametrize("loading", ["entry point"], indirect=True)
def test_what_needs_contents_is_refused_where_there_are_none(running: Engine, tokenizer: Any):
    free = tokenizer.encode(" three four five")
    cases = mixed_batch.cases(free, tokenizer)
    kinds = {name: kind_that_needs_contents(name, case) for name, case in cases.items()}
    for name, case in cases.items():
        asked = params(case.specs, max_tokens=1)
        if not (kind := kinds[name]):
            running.generate([STORY], [asked])
            continue
        index = [spec.kind for spec in case.specs].index(kind)
        message = (
            rf"`{kind}` needs the ids .* --logits-processors logitport\.adapters\.vllm:"
            rf"LogitportProcessor, or with --no-async-scheduling - at `\$\.specs\[{index}\]`"
        )
        with refused(message):
            running.generate([STORY], [asked])


@pytest.mark.parametrize(
    ("model_runner", "is_asynchronous", "flag", "tells"),
    [
        ("v1", False, None, True),
        ("v1", True, None, False),
        ("v1", True, [], False),
        ("v1", True, FLAG, True),
        ("v2", True, None, True),
    ],
)
def test_which_engines_tell_what_is_sampled(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    model_runner: str,
    is_asynchronous: bool,
    flag: list[str] | None,
    tells: bool,
):
    from vllm import EngineArgs

    config = EngineArgs(str(model), logits_processors=flag).create_engine_config()
    # Afterwards: a machine without a GPU gets neither from vLLM.
    monkeypatch.setattr(type(config), "use_v2_model_runner", model_runner == "v2")
    config.scheduler_config.async_scheduling = is_asynchronous
    assert provides_output_ids(config) == tells


def test_neighbours_with_penalties_come_and_go(running: Engine, loading: str, tokenizer: Any):
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

    with watching(running) as seen:
        outputs = run(running, arrivals)

    eos = tokenizer.eos_token_id
    assert outputs["forced"] == [*forced[0].token_ids, eos]
    assert outputs["late"] == [*forced[1].token_ids, eos]
    assert outputs["closing"] == [*free.token_ids, *closing.token_ids, eos]
    # For the first two of them, and for the last one, of all three lists.
    assert seen.shortened == (6 if loading == "entry point" else 0)
    assert seen.unknown_before > 0


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


# Last: with an engine that ends, vLLM ends what engines in one process have in common.
def test_default_specs_that_need_contents_keep_an_engine_from_starting(model: Path):
    with (
        patch.object(processor, "default_specs", return_value=[lp.NoRepeatNgramSpec(2)]),
        pytest.raises(ValueError, match="`no_repeat_ngram` needs the ids"),
        asynchronous(model, "entry point"),
    ):
        pass
