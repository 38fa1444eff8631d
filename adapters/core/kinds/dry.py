"""``dry``: batched as it is."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ....spec import DrySpec
from ....spec.limits import MAX_BIAS
from ..automaton import Ints
from .base import Part, compile_spec

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..logits import Floats  # whose module needs torch

    Values = float | npt.NDArray[np.float64]


@compile_spec.register
def _compile(spec: DrySpec) -> Iterable[Part]:
    yield spec


def penalties(
    multiplier: "Values", base: "Values", allowed_length: "Values", lengths: Ints
) -> "Floats":
    """Compute what is added after matches of some lengths, up to ``MAX_MATCH``.

    The fields of the specs are numbers, or arrays with one for each length.
    """
    further = lengths - allowed_length
    penalties = np.minimum(multiplier * base ** np.maximum(further, 0.0), MAX_BIAS)
    return np.where(further < 0, 0, -penalties).astype(np.float32)
