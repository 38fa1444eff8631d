"""What host and device read of a rule about loops."""

import numpy as np

from ...spec import NoLoopSpec
from ...spec.tags import end_tags
from .automaton.history import Tokens
from .automaton.patterns import first_end

_NEVER = np.iinfo(np.int32).max


def needs(spec: NoLoopSpec) -> Tokens:
    """Compute how many newest tokens must equal those a period earlier, ``[1 + max_period]``.

    A rule that bans acts one token before the loop is complete.
    """
    periods, lacking = range(spec.min_period, spec.max_period + 1), not spec.then_token_ids
    enough = [(spec.copies(period) - 1) * period - lacking for period in periods]
    return np.array([_NEVER] * spec.min_period + enough, np.int32)


def closes(spec: NoLoopSpec) -> int:
    """Return how many of the forced tokens it takes to end the block."""
    then = spec.then_token_ids
    end = first_end(end_tags(spec), then) if spec.start_token_ids else None
    return len(then) if end is None else end
