"""``banned_sequences``: what would complete one is banned, in the state of its beginning."""

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from ....spec import BannedSequencesSpec
from ..parts import Part
from .banned_tokens import adding
from .base import Context, Merge, check_size, merge

merge.register(BannedSequencesSpec, lambda spec: Merge(_compile))


def _compile(specs: Sequence[BannedSequencesSpec], _: Context) -> Iterable[Part]:
    """Look for all sequences in one automaton."""
    return adding_at_ends([*chain.from_iterable(spec.sequences for spec in specs)])


def adding_at_ends(
    sequences: Sequence[Sequence[int]], values: npt.NDArray[np.float64] | None = None
) -> Iterable[Part]:
    """Add to the tokens that would complete a sequence.

    Single tokens have an automaton of their own, as these are added to in every state.

    Args:
        sequences: of one token or more.
        values: the value to add for each, no two sequences equal; ``None`` bans the tokens.
    """
    from ..automaton.tries import completing  # imports numba

    is_single = np.array([*map(len, sequences)]) == 1
    if is_single.any():
        tokens = [sequence[0] for sequence in sequences if len(sequence) == 1]
        yield adding(tokens) if values is None else adding(tokens, values[is_single])
    if not is_single.all():
        longer = [sequence for sequence in sequences if len(sequence) > 1]
        yield completing(longer, None if values is None else values[~is_single], check_size)
