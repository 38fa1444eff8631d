"""``no_loop``: batched as it is, with an automaton that forces and one that follows blocks."""

from collections.abc import Iterable, Sequence

import numpy as np

from ....spec import NoLoopSpec
from ....spec.tags import end_tags, start_tags
from ..automaton import NO_TIMER, Automaton, AutomatonBuilder
from ..automaton.history import Tokens
from ..automaton.patterns import Matcher, first_end
from ..parts import LoopRule, Part
from .base import Context, Merge, merge

NEVER = np.iinfo(np.int32).max

merge.register(NoLoopSpec, lambda spec: Merge(_compile, spec))


def _compile(specs: Sequence[NoLoopSpec], _: Context) -> Iterable[Part]:
    """Let one of several equal rules act."""
    spec, forcing, block, inside = specs[0], None, None, 0
    if spec.then_token_ids:
        forcing = _on_demand(spec.then_token_ids)
        yield forcing
    if spec.start_token_ids:
        block, inside = _block(spec)
        yield block
    yield LoopRule(spec, forcing, block, inside)


def _on_demand(token_ids: Sequence[int]) -> Automaton:
    """Force each token in a state of its own, from state 1 on.

    The rule sets the state before each step. The time-out, which never comes, only says that the
    text may.
    """
    builder = AutomatonBuilder()
    waiting = builder.free(timer=NO_TIMER - 1)
    builder.default(waiting, waiting)
    builder.timeout(waiting, len(builder))
    builder.chain(token_ids, then=waiting)
    return builder.build()


def _block(spec: NoLoopSpec) -> tuple[Automaton, int]:
    """Follow the tags; return the first state within a block, too."""
    builder = AutomatonBuilder(reads_prompt=True)
    starts, ends = Matcher.of(start_tags(spec)), Matcher.of(end_tags(spec))
    outside, inside = builder.watching(len(starts.edges)), builder.watching(len(ends.edges))
    starts.link(builder, outside, outside, found=inside[0])
    ends.link(builder, inside, inside, found=outside[0])
    return builder.build(), inside[0]


def needs(spec: NoLoopSpec) -> Tokens:
    """Compute how many newest tokens must equal those a period earlier, ``[1 + max_period]``.

    A rule that bans acts one token before the loop is complete.
    """
    periods, lacking = range(spec.min_period, spec.max_period + 1), not spec.then_token_ids
    enough = [(spec.copies(period) - 1) * period - lacking for period in periods]
    return np.array([NEVER] * spec.min_period + enough, np.int32)


def closes(spec: NoLoopSpec) -> int:
    """Return how many of the forced tokens it takes to end the block."""
    then = spec.then_token_ids
    end = first_end(end_tags(spec), then) if spec.start_token_ids else None
    return len(then) if end is None else end
