"""The conformance suite for the toy engine: all that the test file of a backend needs."""

from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from logitport.adapters.conformance import ConformanceSuite, Generate, Output, Request
from logitport.spec import Stage

from .backend import BACKEND, LogitportEditor, attach
from .engine import Editor, Engine, Running

VOCABULARY, EOS = 96, 0


def model(history: Sequence[int]) -> torch.Tensor:
    """Make logits that look like chance, of the last token alone: outputs soon repeat themselves.

    The suite looks for repetitions, for the kinds that prevent them.
    """
    generator = torch.Generator().manual_seed(history[-1])
    return torch.randn(VOCABULARY, generator=generator)


def generate_with(make_editor: Callable[[int, int, Stage], Editor], eos: int = EOS) -> Generate:
    """Make the function that runs the suite's requests through the engine."""

    @cache  # the engine stays: some cases look for what it keeps of earlier requests
    def engine(stage: Stage, dtype: str) -> Engine:
        editor = make_editor(VOCABULARY, eos, stage)
        return Engine(model, eos, editor, ToySuite.slots, dtype=getattr(torch, dtype))

    def generate(requests: Sequence[Request]) -> list[Output]:
        ((stage, dtype),) = {(request.stage, request.dtype) for request in requests}
        running = [
            Running(
                [*request.prompt_ids],
                [*request.output_ids],
                request.max_tokens,
                attach({}, request.specs),
            )
            for request in requests
        ]
        engine(stage, dtype).run(running)
        # The suite reads scores with numpy, which has no bfloat16.
        return [
            Output(each.output_ids, None if each.scores is None else each.scores.float())
            for each in running
        ]

    return generate


class ToySuite(ConformanceSuite):
    """What the toy engine can do."""

    backend = BACKEND
    vocab_size = VOCABULARY
    eos_token_id = EOS
    slots = 4
    long_prompt = 100  # of which the engine prefills 16 at a time
    resumes = True
    has_stages = True
    shows_scores = True
    dtypes = ("float32", "float16", "bfloat16")

    @pytest.fixture
    def generate(self) -> Generate:
        """Run requests through the engine, with the backend's editor."""
        return generate_with(LogitportEditor)
