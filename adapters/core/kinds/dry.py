"""``dry``: batched as it is."""

from collections.abc import Iterable, Sequence

import numpy as np

from ....spec import DrySpec, SpecError
from ....spec.kinds.dry import MAX_MATCH
from ....spec.limits import MAX_BIAS
from ..logits import Floats
from ..parts import Part
from .base import Context, Merge, merge

merge.register(DrySpec, lambda spec: Merge(_compile))


def _compile(specs: Sequence[DrySpec], _: Context) -> Iterable[Part]:
    """Let one act: the sum of several penalties would depend on their order."""
    if len(specs) > 1:
        raise SpecError("Expected at most 1 `dry` on a request")
    return specs


def penalties(spec: DrySpec) -> Floats:
    """Compute what is added after a match of each length, ``[1 + MAX_MATCH]``."""
    further = np.arange(1 + MAX_MATCH) - spec.allowed_length
    penalties = np.minimum(spec.multiplier * spec.base ** np.maximum(further, 0.0), MAX_BIAS)
    return np.where(further < 0, 0, -penalties).astype(np.float32)
