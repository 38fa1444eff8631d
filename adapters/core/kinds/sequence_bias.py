"""``sequence_bias``: a value for each sequence, added in the state of its beginning."""

from collections.abc import Iterable

import numpy as np

from ....spec import SequenceBiasSpec
from ..parts import Part
from .banned_sequences import adding_at_ends
from .base import Context, compile_spec


@compile_spec.register
def _compile(spec: SequenceBiasSpec, _: Context) -> Iterable[Part]:
    return adding_at_ends(spec.sequences, np.array(spec.biases))
