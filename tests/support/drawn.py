"""What a mark draws, by vLLM's definition, in numpy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from logitport.adapters.core import Mark
from logitport.adapters.detection.philox import uniforms

KEY = 0x1234_5678_9ABC_DEF1


def values_of(row: Any, mark: Mark, output: Sequence[int]) -> np.ndarray:
    """The logits with noise of what a mark leaves; -inf for other tokens."""
    with np.errstate(over="ignore"):
        logits = np.asarray(row, np.float32) / np.float32(mark.temperature)
    logits[np.isnan(logits)] = -np.inf
    top = logits.max()
    kept = logits >= (top + np.log(np.float32(mark.min_p)) if mark.min_p else -np.inf)
    ordered = np.sort(logits[kept])[::-1]
    if 0 < mark.top_k < len(ordered):
        kept &= logits >= ordered[mark.top_k - 1]
        ordered = np.sort(logits[kept])[::-1]
    shares = np.exp(ordered.astype(np.float64) - top)
    before = np.append(0, shares.cumsum()[:-1])
    if mark.top_p < 1:
        kept &= logits >= ordered[before < np.float32(mark.top_p) * shares.sum()].min()
    context = np.array([*[-1] * mark.width, *output][-mark.width :], np.int64)
    tokens = np.arange(len(logits))
    noise = -np.log(-np.log(uniforms(mark.key, np.tile(context, (len(tokens), 1)), tokens)))
    return np.where(kept, logits + noise, -np.inf)


def is_repeated(prompt: Sequence[int], output: Sequence[int], mark: Mark) -> bool:
    """Whether a context was there before, position by position."""
    if mark.reads_prompt and len(output) < mark.width:
        return True
    history = [*prompt, *output] if mark.reads_prompt else [*output]
    padded, newest = [-1] * mark.width + history, ([-1] * mark.width + [*output])[-mark.width :]
    first = max(0, len(history) - mark.searched)
    return any(padded[at : at + mark.width] == newest for at in range(first, len(history)))


def assert_drawn(token: int, row: Any, mark: Mark, output: Sequence[int] = ()) -> None:
    """Logarithms of float32 differ by a bit from machine to machine."""
    assert np.isfinite(np.asarray(row)).any()
    values = values_of(row, mark, output)
    assert values[token] >= values.max() - 4e-6, (token, int(values.argmax()))
