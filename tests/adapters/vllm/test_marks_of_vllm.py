"""Marks as vLLM's own watermark makes them, token for token."""

from typing import Any

import numpy as np
import pytest
import torch
from logitport.adapters.core import Mark
from logitport.adapters.core.host.draw import draw, drawing_of, is_repeated

gumbel = pytest.importorskip("vllm.v1.watermarking.gumbel")
masks = pytest.importorskip("vllm.v1.worker.gpu.sample.watermark")


@pytest.mark.slow
@pytest.mark.parametrize("key", [0, 42, 2**32, 2**64 - 1])
@pytest.mark.parametrize("width", [1, 4, 5, 16])
def test_a_generation_is_that_of_vllms_own_watermark(key: int, width: int):
    watermarker = gumbel.GumbelWatermarker(key, width, "philox")
    drawing = drawing_of(Mark("a", key, width=width, searched=0))
    rng, tokens = np.random.default_rng(key % 97), list[int]()
    for at in range(200):
        row = (rng.normal(size=999) * 3).astype(np.float32)
        context = torch.tensor([[*[-1] * width, *tokens][-width:]])
        expected = watermarker.sample(torch.from_numpy(row)[None], context).token_ids.item()
        history = np.array([7, 8, *tokens], np.int32)  # the prompt does not count
        assert draw(row, history, len(history), 2, drawing) == expected, at
        tokens.append(expected)


@pytest.mark.parametrize("how", ["none", "single_turn", "all"])
@pytest.mark.parametrize("searched", [1, 7, 8192])
@pytest.mark.parametrize("width", [1, 3, 5])
def test_contexts_repeat_as_for_vllm(how: str, searched: int, width: int):
    rng, found = np.random.default_rng(width), 0
    for _ in range(60):
        length, origin = int(rng.integers(1, 60)), 0
        origin = int(rng.integers(0, length + 1))
        tokens = rng.integers(0, rng.integers(1, 4), length).astype(np.int32)
        context = [*[-1] * width, *tokens[origin:].tolist()][-width:]
        counts: Any = [torch.tensor([each]) for each in (0, origin, length)]
        expected = how != "none" and masks._repeated_context_mask_cpu(
            torch.from_numpy(tokens)[None],
            *counts,
            torch.tensor([context]),
            searched,
            include_prompt=how == "all",
            skip_partial_context=how == "all",
        )
        window = 0 if how == "none" else searched
        assert is_repeated(tokens, length, origin, width, window, how == "all") == bool(expected)
        found += bool(expected)
    assert (found > 0) is (how != "none")
