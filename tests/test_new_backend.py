"""The toy engine of the documentation passes the conformance suite; wrong back ends do not."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from logitport.adapters.conformance import ConformanceSuite, Generate, Output, Request
from logitport.adapters.conformance.meaning import MEANING
from logitport.spec import ForcedTokenSequenceSpec, LogitBiasSpec, PromptBiasSpec

from examples.new_backend.back_end import BACK_END, LogitportEditor, attach
from examples.new_backend.engine import Editor, Engine, Running

VOCABULARY, EOS = 96, 0


def model(history: Sequence[int]) -> torch.Tensor:
    """Logits that look like chance, and are a function of the history."""
    generator = torch.Generator().manual_seed(hash(tuple(history)) % (1 << 31))
    return torch.randn(VOCABULARY, generator=generator)


def generate_with(editor: Editor) -> Generate:
    def generate(requests: Sequence[Request]) -> list[Output]:
        running = [
            Running(
                [*request.prompt_ids],
                [*request.output_ids],
                request.max_tokens,
                attach({}, request.specs),
            )
            for request in requests
        ]
        Engine(model, EOS, editor, slots=ToySuite.slots).run(running)
        return [Output(each.output_ids, each.scores) for each in running]

    return generate


class ToySuite(ConformanceSuite):
    back_end = BACK_END
    vocab_size = VOCABULARY
    eos_token_id = EOS
    resumes = True


class TestToyBackEnd(ToySuite):
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
        (RealizesNothing, "test_mixed_batch", ()),
        *((RealizesNothing, "test_kind", (kind,)) for kind in MEANING),
    ],
)
def test_wrong_back_end_fails(wrong: type[LogitportEditor], case: str, arguments: tuple[Any, ...]):
    editor = wrong() if wrong is CountsCalls else wrong(VOCABULARY, EOS)
    suite = ToySuite()
    run = getattr(suite, case)
    run(generate_with(LogitportEditor(VOCABULARY, EOS)), *arguments)
    with pytest.raises((AssertionError, RuntimeError, pytest.fail.Exception)):
        run(generate_with(editor), *arguments)
