"""Asynchronous scheduling under the V1 model runner: steps begin before their tokens are known.

vLLM's platform for CPUs turns it off. Here it is left on: the engine, its asynchronous scheduler
and the model runner are vLLM's own. Stand-ins are only the CUDA streams and events with which the
runner waits for the sampled ids to arrive on the host, where they are from the outset.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from logitport import spec as lp
from logitport.adapters.core import plugins
from logitport.adapters.vllm import LogitportProcessor, attach, processor
from logitport.adapters.vllm.placeholders import provides_output_ids

from .in_process import FLAG, Engine, engine, params, refused
from .test_all_kinds import LENGTH, PLUGINS, REQUESTS, STORY, Free, listed

pytestmark = [pytest.mark.engine, pytest.mark.only("v1", reason="about the V1 runner")]

LOADERS = {name: Mock(return_value=make) for name, make in PLUGINS.items()}
LOADING = {"flag": {"logits_processors": FLAG}, "entry point": {}}

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

COUNTS = {"plugin, automaton"}
"""The catalogue's requests with another kind that is exact there too."""


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
        patch.object(plugins, "_plugins", return_value=LOADERS),
        engine(model, runner="v1", **LOADING[loading], **arguments) as running,
    ):
        core = running.client.engine_core
        runner = core.model_executor.driver_worker.worker.model_runner
        assert isinstance(core.scheduler, AsyncScheduler)
        assert runner.use_async_scheduling
        yield running


@dataclass
class Seen:
    """Output ids of requests with specs, as one instance of ours has seen them.

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


@pytest.fixture(scope="module", params=list(LOADING))
def loading(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def running(model: Path, loading: str, catalogue: "Catalogue") -> Iterator[Engine]:
    with asynchronous(model, loading, **ARGUMENTS) as running:
        yield running


ARGUMENTS = {"max_num_seqs": 64, "enable_prefix_caching": False}


@dataclass
class Catalogue:
    """All kinds, as they come out where nothing is asynchronous, by the name of the request.

    Attributes:
        sampling: the parameters.
        specs: what is attached to them.
        free: output ids without specs.
        expected: output ids with them.
        steps: the shapes of the batches.
    """

    sampling: dict[str, Any]
    specs: dict[str, list[lp.LogitsProcessorSpec]]
    free: dict[str, list[int]]
    expected: dict[str, list[int]]
    steps: list[list[int]]

    @property
    def need_contents(self) -> dict[str, str]:
        """The requests that have to know what was sampled, with the first kind that does."""
        reading = {
            name: next((spec.kind for spec in specs if spec.kind not in COUNT_ALONE), None)
            for name, specs in self.specs.items()
            if name not in COUNTS
        }
        return {name: kind for name, kind in reading.items() if kind}


@pytest.fixture(scope="module")
def catalogue(model: Path, tokenizer: Any) -> Catalogue:
    sampling = {
        name: params(temperature=1.0, seed=i, max_tokens=LENGTH, ignore_eos=True)
        for i, name in enumerate(REQUESTS)
    }
    with (
        patch.object(plugins, "_plugins", return_value=LOADERS),
        engine(model, runner="v1", logits_processors=FLAG, **ARGUMENTS) as running,
    ):
        free = generate(running, sampling)
        frees = {
            name: Free(tokenizer.encode(request.prompt), free[name], tokenizer)
            for name, request in REQUESTS.items()
        }
        specs = {
            name: listed(request.specs(frees[name]))
            for name, request in REQUESTS.items()
            if request.specs
        }
        running.steps.clear()
        expected = generate(running, with_specs(sampling, specs))
        steps = shapes(running)
    assert all(free[name] != expected[name] for name in specs)
    return Catalogue(sampling, specs, free, expected, steps)


def shapes(running: Engine) -> list[list[int]]:
    return [list(step.values()) for step in running.steps if step]


def with_specs(
    sampling: dict[str, Any], specs: dict[str, list[lp.LogitsProcessorSpec]]
) -> dict[str, Any]:
    return {name: attach(copy.copy(of), specs.get(name, ())) for name, of in sampling.items()}


def generate(running: Engine, sampling: dict[str, Any]) -> dict[str, list[int]]:
    """Output ids by the name of the catalogue's request, all requests at once."""
    outputs = running.generate([REQUESTS[name].prompt for name in sampling], [*sampling.values()])
    return {name: list(output.token_ids) for name, output in zip(sampling, outputs, strict=True)}


def failures(running: Engine) -> int:
    return sum(instance._realizer.failed_requests for instance in running.processors)


def test_all_kinds_that_are_admitted_are_exact(running: Engine, loading: str, catalogue: Catalogue):
    refused = {} if loading == "flag" else catalogue.need_contents
    admitted = {name: specs for name, specs in catalogue.specs.items() if name not in refused}
    running.steps.clear()

    with watching(running) as seen:
        outputs = generate(running, with_specs(catalogue.sampling, admitted))

    assert shapes(running) == catalogue.steps
    for name, output in outputs.items():
        expected = catalogue.free if name in refused else catalogue.expected
        assert output == expected[name], name
    # One token less: there is none before the first step.
    tokens = len(admitted) * (LENGTH - 1)
    assert seen.unknown_before == tokens
    assert seen.unknown_after == (0 if loading == "flag" else tokens)
    assert failures(running) == 0


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


@pytest.mark.parametrize("loading", ["entry point"], indirect=True)
def test_what_needs_contents_is_refused_where_there_are_none(running: Engine, catalogue: Catalogue):
    for name, kind in catalogue.need_contents.items():
        place = [spec.kind for spec in catalogue.specs[name]].index(kind)
        message = (
            rf"`{kind}` needs the ids .* --logits-processors logitport\.adapters\.vllm:"
            rf"LogitportProcessor, or with --no-async-scheduling - at `\$\.specs\[{place}\]`"
        )
        with refused(message):
            generate(running, with_specs({name: params()}, catalogue.specs))
    (output,) = running.generate(["Hello"], [params(max_tokens=3)])
    assert len(output.token_ids) == 3


@pytest.mark.parametrize("loading", ["entry point"], indirect=True)
def test_what_gets_past_admission_ends_with_a_reason(
    running: Engine, catalogue: Catalogue, tokenizer: Any, caplog: pytest.LogCaptureFixture
):
    """It is exact as long as what it does not know was forced, and ends with the first other."""
    sampling = catalogue.sampling
    failing = {
        name: params(temperature=1.0, seed=sampling[name].seed, max_tokens=LENGTH)
        for name in catalogue.need_contents
    }
    neighbours = [name for name in sampling if name not in failing]
    failed_before = failures(running)
    running.steps.clear()

    with patch.object(LogitportProcessor, "validate_params"):
        outputs = generate(running, with_specs(sampling | failing, catalogue.specs))

    assert failures(running) == failed_before + len(failing)
    assert caplog.text.count("turn asynchronous scheduling off. It is ended") == len(failing)
    for name in failing:
        *said, end = outputs[name]
        assert said == catalogue.expected[name][: len(said)], name
        assert end == tokenizer.eos_token_id, name
        forced = catalogue.specs[name][0]
        if isinstance(forced, lp.ForcedTokenSequenceSpec):
            assert len(said) > len(forced.token_ids), name

    # The neighbours once more, in batches of the same shapes: what ends by a token has a place for
    # a step more, because the next one begins before it is known.
    steps = shapes(running)
    places = {name: params(max_tokens=len(outputs[name]) + 1, ignore_eos=True) for name in failing}
    specs = {name: specs for name, specs in catalogue.specs.items() if name in neighbours}
    running.steps.clear()
    expected = generate(running, with_specs(sampling | places, specs))
    assert shapes(running) == steps
    assert all(outputs[name] == expected[name] for name in neighbours)
    assert running.held_requests() == 0


def test_a_trigger_sees_what_another_spec_forces(running: Engine, tokenizer: Any):
    """All of the output is forced: nothing depends on what is not known."""
    one, two, three = (tokenizer.encode(text)[0] for text in (" one", " two", " three"))
    specs = [lp.ForcedTokenSequenceSpec([one, one, two]), lp.TriggerSpec([one, two], [three] * 2)]
    failed_before = failures(running)
    with patch.object(LogitportProcessor, "validate_params"):
        (output,) = running.generate([STORY], [attach(params(max_tokens=5), specs)])
    assert list(output.token_ids) == [one, one, two, three, three]
    assert failures(running) == failed_before


def test_neighbours_with_penalties_come_and_go(running: Engine, loading: str, tokenizer: Any):
    """For these, vLLM fills in the ids of the whole batch, and drops placeholders on the way."""
    text = "Request {}: " + "so it goes, and on, and on, " * 3 + "until the end."
    forced = [lp.ForcedTokenSequenceSpec.from_text(text.format(i), tokenizer) for i in range(2)]
    closing = lp.ForcedEndSpec.from_text(30, " The end.", tokenizer)
    (free,) = running.generate([STORY], [params(max_tokens=30, ignore_eos=True)])
    unwanted = lp.MinTokensSpec(20, sorted(set(free.token_ids)))
    (without,) = running.generate([STORY], [params(unwanted, max_tokens=40, ignore_eos=True)])
    penalised = params(max_tokens=3, repetition_penalty=1.2)
    arrivals = {
        0: {"forced": params(forced[0], max_tokens=100), "closing": params(closing)},
        2: {"late": params(forced[1], max_tokens=100)},
        4: {"unwanted": params(unwanted, max_tokens=40, ignore_eos=True)},
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
    assert outputs["unwanted"] == list(without.token_ids)
    assert not set(without.token_ids[20:]).isdisjoint(unwanted.stop_token_ids)
    # For the first two of them, and for the last one, of all four lists.
    assert seen.shortened == (8 if loading == "entry point" else 0)
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


def test_default_specs_that_need_contents_keep_an_engine_from_starting(model: Path):
    with (
        patch.object(processor, "default_specs", return_value=[lp.NoRepeatNgramSpec(2)]),
        pytest.raises(ValueError, match="`no_repeat_ngram` needs the ids"),
        asynchronous(model, "entry point"),
    ):
        pass


# Last: with an engine that ends, vLLM ends what engines in one process have in common.
def test_chunks_and_preemptions(model: Path, loading: str, tokenizer: Any):
    texts = [f"Request {i}: " + f"{i} and {i + 1}, then " * (8 + i) + "end." for i in range(8)]
    requests = [
        params(
            lp.ForcedTokenSequenceSpec.from_text(text, tokenizer), max_tokens=200, temperature=1.5
        )
        for text in texts
    ]
    never_twice = params(lp.NoRepeatNgramSpec(1), max_tokens=120, ignore_eos=True)
    if loading == "flag":
        requests[6:] = [never_twice, never_twice]
    prompts = [f"Count from {i}, and then on, and on, and so on:" for i in range(8)]

    # 16 blocks of 32 tokens, one of them vLLM's own: the 8 requests end at 2.5 times as much.
    cache = {"block_size": 32, "num_gpu_blocks_override": 16, "max_model_len": 256}
    chunks = {"max_num_batched_tokens": 16, "enable_chunked_prefill": True}
    with asynchronous(model, loading, max_num_seqs=8, **cache, **chunks) as running:
        with watching(running) as seen:
            outputs = running.generate(prompts, requests)
        assert sum(so_far > 0 for so_far in running.preempted) >= 3
        assert running.held_requests() == 0
        assert failures(running) == 0

    assert seen.unknown_before > 0
    for prompt, request, text, output in zip(prompts, requests, texts, outputs, strict=True):
        if request is never_twice:
            tokens = tokenizer.encode(prompt) + list(output.token_ids)
            assert len(output.token_ids) == 120
            assert len(set(tokens)) == 120 + len(set(tokenizer.encode(prompt)))
        else:
            assert (output.text, output.finish_reason) == (text, "stop")
