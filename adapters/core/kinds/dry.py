"""``dry``: batched as it is."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ....spec import DrySpec
from ....spec.kinds.dry import MAX_MATCH
from ....spec.limits import MAX_BIAS
from ..parts import Part
from .base import Context, compile_spec

if TYPE_CHECKING:
    from ..logits import Floats  # whose module needs torch


@compile_spec.register
def _compile(spec: DrySpec, _: Context) -> Iterable[Part]:
    yield spec


def penalties(spec: DrySpec) -> "Floats":
    """Compute what is added after a match of each length, ``[1 + MAX_MATCH]``."""
    further = np.arange(1 + MAX_MATCH) - spec.allowed_length
    penalties = np.minimum(spec.multiplier * spec.base ** np.maximum(further, 0.0), MAX_BIAS)
    return np.where(further < 0, 0, -penalties).astype(np.float32)
