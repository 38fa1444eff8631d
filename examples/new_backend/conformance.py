"""The conformance suite for the toy engine: all that the test file of a backend needs."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from logitport.adapters.conformance import ConformanceSuite, Generate, Output, Request
from logitport.spec import Stage

from .backend import BACKEND, HAS_TORCH, LogitportEditor, attach
from .engine import Editor, Engine, Running

VOCABULARY, EOS = 96, 0


def model(history: Sequence[int]) -> np.ndarray:
    """Make logits that look like chance, of five sorts of a last token: outputs repeat themselves.

    The suite looks for repetitions, for the kinds that prevent them.
    """
    return np.random.default_rng(history[-1] % 5).standard_normal(VOCABULARY, np.float32)


def stack(dtype: str, rows: list[np.ndarray]) -> Any:
    """Make a batch of tensors; without torch, of arrays, which have no bfloat16."""
    if not HAS_TORCH:
        return np.stack(rows).astype(dtype)
    import torch

    return torch.from_numpy(np.stack(rows)).to(getattr(torch, dtype))


def generate_with(
    make_editor: Callable[[int, int, Stage], Editor],
    eos: int = EOS,
    attach: Callable[..., dict[str, Any]] = attach,
) -> Generate:
    """Make the function that runs the suite's requests through the engine."""

    @cache  # the engine stays: some cases look for what it keeps of earlier requests
    def engine(stage: Stage, dtype: str) -> Engine:
        editor = make_editor(VOCABULARY, eos, stage)
        return Engine(model, eos, editor, ToySuite.slots, stack=partial(stack, dtype))

    def generate(requests: Sequence[Request]) -> list[Output]:
        ((stage, dtype),) = {(request.stage, request.dtype) for request in requests}
        running = [
            Running(
                [*request.prompt_ids],
                [*request.output_ids],
                request.max_tokens,
                attach(
                    {},
                    request.specs,
                    stage=request.attached_for,
                    generation_only=request.generation_only,
                    continued=request.continued,
                ),
            )
            for request in requests
        ]
        engine(stage, dtype).run(running)
        # The suite reads scores with numpy, which has no bfloat16.
        return [
            Output(each.output_ids, each.scores.float() if HAS_TORCH else each.scores)
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
    attaches = True
    shows_scores = True
    dtypes = ("float32", "float16", *(["bfloat16"] if HAS_TORCH else []))

    @pytest.fixture
    def generate(self) -> Generate:
        """Run requests through the engine, with the backend's editor."""
        return generate_with(LogitportEditor)
