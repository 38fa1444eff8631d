"""Adapters' own bookkeeping, on the life of requests that ``tests/support/lives.py`` leads."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from logitport.adapters.core.logits import FORCED_LOGIT
from logitport.adapters.tensorrt_llm import LogitportProcessor, processor
from logitport.spec import encode

from tests.support.lives import STOP, VOCABULARY, Driver, Life, lead
from tests.support.seeds import seeds


class LlamaCpp(Driver):
    """Each of a few models generates one thing at a time; some of them draft."""

    one_each = True
    repeats = False

    def __init__(self, groups: Sequence[Sequence[Any]], patch: pytest.MonkeyPatch) -> None:
        from logitport.adapters.llama_cpp.processor import HIGHEST, LogitportProcessor

        self._highest = float(HIGHEST)
        self._llms = [
            SimpleNamespace(
                n_vocab=lambda: VOCABULARY,
                token_eos=lambda: STOP,
                draft_model=i % 2 or None,
                _sampler=None,
            )
            for i in range(len(groups))
        ]
        self._processors = [
            LogitportProcessor(llm, specs) for llm, specs in zip(self._llms, groups, strict=True)
        ]

    def come(self, life: Life) -> None:
        if life.of_engine is None:
            life.of_engine = self._llms[life.group]._sampler = object()

    def step(self, lives: Sequence[Life], logits: torch.Tensor) -> torch.Tensor:
        for life, row in zip(lives, logits, strict=True):
            tokens = [*life.prompt, *life.outputs[0]]
            if self._llms[life.group].draft_model and life.outputs[0]:
                tokens += [row.argmax().item()] * (len(tokens) % 3)
            spread = np.zeros((VOCABULARY, 3), np.float32)  # as in llama.cpp's own arrays
            spread[:, 0] = row.numpy()
            self._processors[life.group](np.array(tokens, np.intc), spread[:, 0])
            edited = torch.from_numpy(spread[:, 0].copy())
            # llama.cpp gets a lower one than other engines.
            row[:] = torch.where(edited == self._highest, FORCED_LOGIT, edited)
        return logits


class Mlx(Driver):
    """Generations that are told apart by their tokens; two may have one prompt."""

    beams = 2
    takes_back = True

    def __init__(self, groups: Sequence[Sequence[Any]], patch: pytest.MonkeyPatch) -> None:
        from logitport.adapters.mlx import LogitportProcessor, processor

        patch.setattr(processor, "MAX_RUNNING", 3)
        model = SimpleNamespace(args=SimpleNamespace(vocab_size=VOCABULARY))
        tokenizer = SimpleNamespace(eos_token_id=STOP)
        self._processors = [LogitportProcessor(model, tokenizer, specs) for specs in groups]

    def step(self, lives: Sequence[Life], logits: torch.Tensor) -> torch.Tensor:
        import mlx.core as mx

        row = 0
        for life in lives:
            for output in life.outputs:
                tokens = mx.array([*life.prompt, *output])
                given = mx.array(logits[row : row + 1].numpy())
                edited = self._processors[life.group](tokens, given)
                logits[row] = torch.from_numpy(np.array(edited))[0]
                row += 1
        return logits


class Transformers(Driver):
    """One call of ``generate``: all rows in each step, several for each prompt, as beams are."""

    beams = 2
    comes_and_goes = any_part = repeats = False
    takes_back = swaps = True

    def begin(self, lives: Sequence[Life]) -> None:
        from logitport.adapters.transformers import LogitportProcessor

        for life in lives:  # of all prompts as many
            life.outputs = [[] for _ in lives[0].outputs]
        self.normalizes = len(lives[0].outputs) > 1  # pyright: ignore
        if life.of_engine is None:
            config = SimpleNamespace(
                is_encoder_decoder=False,
                get_text_config=lambda: SimpleNamespace(vocab_size=VOCABULARY),
            )
            model = SimpleNamespace(
                config=config, generation_config=SimpleNamespace(eos_token_id=STOP)
            )
            prompts = torch.tensor([life.prompt for life in lives])
            made = LogitportProcessor(model, [life.specs for life in lives], prompts)
            for life in lives:
                life.of_engine = made

    def step(self, lives: Sequence[Life], logits: torch.Tensor) -> torch.Tensor:
        ids = [[*life.prompt, *output] for life in lives for output in life.outputs]
        return lives[0].of_engine(torch.tensor(ids), logits)


class TensorRt(Driver):
    """A processor for each of the requests, which may share one; it is shown beams."""

    beams = 2
    takes_back = swaps = True

    def __init__(self, groups: Sequence[Sequence[Any]], patch: pytest.MonkeyPatch) -> None:
        patch.setattr(processor, "KEPT_ROWS", 2)
        self._processors = [
            LogitportProcessor(encode(tuple(specs)), stop_token_id=STOP) for specs in groups
        ]
        self._ids = 0

    def come(self, life: Life) -> None:
        if life.of_engine is None:
            self._ids += 1
            life.of_engine = self._ids

    def step(self, lives: Sequence[Life], logits: torch.Tensor) -> torch.Tensor:
        row = 0
        for life in lives:
            tokens = [[*life.prompt, *output] for output in life.outputs]
            shown = logits[row : row + len(tokens)].unsqueeze(1)
            self._processors[life.group](life.of_engine, shown, tokens, None, None)
            row += len(tokens)
        return logits


@pytest.mark.parametrize("driver", [LlamaCpp, Mlx, Transformers, TensorRt])
@pytest.mark.parametrize("seed", seeds(3, 12))
def test_any_lives(driver: type[Driver], seed: int) -> None:
    lead(driver, seed)
