"""Additions to logits: cells, rows, and the values of bans and forced tokens.

Host and device, editors and callables all follow the rules of this module. Those of torch tensors
are in ``tensors``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .automaton import Ints

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]

FORCED_LOGIT = 1e9
"""A logit that wins any softmax or argmax, and is finite at any usual temperature.

Raising one logit touches one cell. Filling the rest of the row with -inf has the same effect, but
costs a pass over the vocabulary. vLLM's thinking budget uses the same value.
"""

HIGHEST_SHARE = 0.75
"""In a narrow type (float16), the share of a forced logit that other edited logits may reach. No
sum of biases is higher, and no sum of bans is lower than minus a forced logit. A forced logit stays
one beside biases, such as a guard's."""

FORCED_SHARE = 0.875
"""The share of a forced logit from which on a token counts as forced: no other logit is there."""


def bounded(before: Any, sums: Any, limit: float, where: Callable[..., Any]) -> Any:
    """Bound what edits make of logits in a narrow type; ``limit`` is its forced logit."""
    highest = HIGHEST_SHARE * limit
    stays_forced = (before > FORCED_SHARE * limit) & (sums > 0) & (sums < np.inf)
    within = where(sums > highest, highest, where(sums < -limit, -limit, sums))
    return where(stays_forced, limit, within)


@dataclass(slots=True)
class Additions:
    """Cells of the logits, and what is added to them; ``[cells]`` each."""

    rows: Ints
    token_ids: Ints | npt.NDArray[np.int32]
    values: Floats


def merge(additions: Additions) -> Additions:
    """Add up what is added to the same cell."""
    cells = additions.rows << 32 | additions.token_ids
    keys, index = np.unique(cells, return_inverse=True)
    sums = np.bincount(index.ravel(), additions.values, len(keys)).astype(np.float32)
    return Additions(keys >> 32, keys & 0xFFFFFFFF, sums)


def write_twice(write: Callable[..., object], *arguments: Any, **keywords: Any) -> None:
    """Write a part of the edits, in a second try if need be.

    ``write`` writes in its last call, if at all: what fails has written nothing.
    """
    try:
        write(*arguments, **keywords)
    except Exception:
        write(*arguments, **keywords)
