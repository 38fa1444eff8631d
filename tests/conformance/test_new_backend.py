"""The toy engine of the documentation passes the conformance suite; wrong backends do not."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from logitport.adapters.conformance import ConformanceSuite, Generate, Output, Request
from logitport.adapters.conformance.kinds import REALIZED
from logitport.adapters.conformance.suite import DTYPES
from logitport.adapters.core import Program, Realizer
from logitport.spec import (
    ForcedTokenSequenceSpec,
    LogitBiasSpec,
    PluginSpec,
    PromptBiasSpec,
    Stage,
    decode,
)

from examples.new_backend.backend import BACKEND, KEY, LogitportEditor, attach
from examples.new_backend.engine import Editor, Engine, Running

VOCABULARY, EOS = 96, 0


def model(history: Sequence[int]) -> torch.Tensor:
    """Logits that look like chance, and are a function of the history."""
    generator = torch.Generator().manual_seed(hash(tuple(history)) % (1 << 31))
    return torch.randn(VOCABULARY, generator=generator)


def generate_with(editor: Editor, eos: int = EOS) -> Generate:
    def generate(requests: Sequence[Request]) -> list[Output]:
        ((stage, dtype),) = {(request.stage, request.dtype) for request in requests}
        editing = editor
        if stage is not Stage.AGGREGATED:
            editing = type(editor)(VOCABULARY, eos, stage)  # pyright: ignore
        running = [
            Running(
                [*request.prompt_ids],
                [*request.output_ids],
                request.max_tokens,
                attach({}, request.specs),
            )
            for request in requests
        ]
        engine = Engine(model, eos, editing, ToySuite.slots, dtype=getattr(torch, dtype))
        engine.run(running)
        return [
            # numpy, with which the suite looks at them, has no bfloat16.
            Output(each.output_ids, None if each.scores is None else each.scores.float())
            for each in running
        ]

    return generate


class ToySuite(ConformanceSuite):
    backend = BACKEND
    vocab_size = VOCABULARY
    eos_token_id = EOS
    resumes = True
    has_stages = True
    dtypes = DTYPES


class TestToyBackend(ToySuite):
    @pytest.fixture
    def generate(self) -> Generate:
        return generate_with(LogitportEditor(VOCABULARY, EOS))


class CountsCalls(LogitportEditor):
    """Takes each call for a token."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY, EOS)
        self._calls: dict[int, list[int]] = {}

    def enter(self, row: int, running: Running) -> None:
        self._calls[row] = []
        counted = Running(running.prompt_ids, self._calls[row], 0, running.extra)
        super().enter(row, counted)

    def edit(self, logits: torch.Tensor) -> None:
        super().edit(logits)
        for row, calls in self._calls.items():
            calls += [int(logits[row].argmax())] if row < len(logits) else []


class ForgetsARemovedSlot(LogitportEditor):
    """And enters no request that has no specs, which would clean the slot."""

    def enter(self, row: int, running: Running) -> None:
        if KEY in running.extra:
            super().enter(row, running)

    def leave(self, row: int) -> None:
        pass


class IgnoresThePrompt(LogitportEditor):
    def enter(self, row: int, running: Running) -> None:
        super().enter(row, replace(running, prompt_ids=[]))


class Raises(LogitportEditor):
    def edit(self, logits: torch.Tensor) -> None:
        super().edit(logits)
        if self._realizer.failed_requests:
            raise RuntimeError("a request has failed")


class AppliesTwice(LogitportEditor):
    def edit(self, logits: torch.Tensor) -> None:
        super().edit(logits)
        super().edit(logits)


class ActsInAnyStage(LogitportEditor):
    def __init__(self, vocab_size: int, eos_token_id: int, stage: Stage = Stage.DECODE) -> None:
        super().__init__(vocab_size, eos_token_id)


class DropsCode(LogitportEditor):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._realizer = Realizer(VOCABULARY, self._without_code)

    def _without_code(self, payload: Any) -> Program | None:
        program = self._program_of(payload)
        return program and replace(program, per_request=())


class EditsACopy(LogitportEditor):
    """``float`` copies what is not float32."""

    def edit(self, logits: torch.Tensor) -> None:
        super().edit(logits.float())


class EditsInFloat32(LogitportEditor):
    """What wins in float32 is infinite in float16, and so is no probability."""

    def edit(self, logits: torch.Tensor) -> None:
        wide = logits.float()
        super().edit(wide)
        logits.copy_(wide)


class KeepsTheFirst(LogitportEditor):
    """Of a request's specs."""

    def enter(self, row: int, running: Running) -> None:
        if KEY in running.extra:
            (first, *_) = decode(running.extra[KEY]).specs
            running = replace(running, extra=attach({}, first))
        super().enter(row, running)


class RealizesNothing(LogitportEditor):
    def enter(self, row: int, running: Running) -> None:
        pass


@pytest.mark.parametrize(
    ("wrong", "case", "arguments"),
    [
        (CountsCalls, "test_long_prompt", ()),
        (CountsCalls, "test_resumption", (ForcedTokenSequenceSpec,)),
        (ForgetsARemovedSlot, "test_slots_are_left_clean", ()),
        (IgnoresThePrompt, "test_prompt_counts", ()),
        (IgnoresThePrompt, "test_scores", (PromptBiasSpec,)),
        (Raises, "test_failure_ends_one_request", ()),
        (AppliesTwice, "test_scores", (LogitBiasSpec,)),
        (ActsInAnyStage, "test_stages", (Stage.PREFILL,)),
        (DropsCode, "test_code_of_a_request", ()),
        (DropsCode, "test_failure_ends_one_request", ()),
        (KeepsTheFirst, "test_several_specs", ()),
        (RealizesNothing, "test_mixed_batch", ()),
        *((RealizesNothing, "test_kind", (kind,)) for kind in REALIZED),
        *((EditsACopy, "test_dtype", ("float16", kind)) for kind in REALIZED),
        *((EditsACopy, "test_dtype", ("bfloat16", kind)) for kind in REALIZED),
        # The scores that a suite sees are those of the first token: a kind that forces that one.
        (EditsInFloat32, "test_dtype", ("float16", ForcedTokenSequenceSpec)),
    ],
)
def test_wrong_backend_fails(wrong: type[LogitportEditor], case: str, arguments: tuple[Any, ...]):
    editor = wrong() if wrong is CountsCalls else wrong(VOCABULARY, EOS)
    suite = ToySuite()
    run = getattr(suite, case)
    run(generate_with(LogitportEditor(VOCABULARY, EOS)), *arguments)
    found = RuntimeError if wrong is Raises else (AssertionError, pytest.fail.Exception)
    with pytest.raises(found):
        run(generate_with(editor), *arguments)


@pytest.mark.parametrize("wrong", [EditsACopy, EditsInFloat32])
def test_only_narrow_logits_find_it(wrong: type[LogitportEditor]):
    """Whatever else a suite asks, such a backend answers."""
    suite, generate = ToySuite(), generate_with(wrong(VOCABULARY, EOS))
    for kind in REALIZED:
        suite.test_kind(generate, kind)
        suite.test_scores(generate, kind)
        suite.test_resumption(generate, kind)
        suite.test_dtype(generate, "float32", kind)
    suite.test_mixed_batch(generate)
    suite.test_long_prompt(generate)
    suite.test_slots_are_left_clean(generate)
    suite.test_failure_ends_one_request(generate)


@pytest.mark.parametrize("eos", range(18, 34))
def test_any_token_may_end_an_output(eos: int):
    class Suite(ToySuite):
        eos_token_id = eos

    Suite().test_code_of_a_request(generate_with(LogitportEditor(VOCABULARY, eos), eos))


def test_a_worker_without_the_plugin_ends_the_request():
    """Somebody else has admitted it."""
    free, other = (Running([5, 6, 7], [], 5) for _ in range(2))
    lacking = Running([1, 2], [], 5, attach({}, PluginSpec("not-here")))
    editor = LogitportEditor(VOCABULARY, EOS)
    editor.admit = lambda extra: None
    Engine(model, EOS, LogitportEditor(VOCABULARY, EOS)).run([free])
    Engine(model, EOS, editor).run([lacking, other])
    assert lacking.output_ids == [EOS]
    assert other.output_ids == free.output_ids
