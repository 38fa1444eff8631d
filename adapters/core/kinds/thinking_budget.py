"""``thinking_budget``: states outside and inside a block, and a timer that closes it."""

from collections.abc import Iterable

from ....spec import ThinkingBudgetSpec
from ..automaton import CARRY, Automaton, AutomatonBuilder
from ..automaton.patterns import match
from .base import Part, compile_spec


@compile_spec.register
def _compile(spec: ThinkingBudgetSpec) -> Iterable[Part]:
    yield thinking(spec)[0]


def thinking(spec: ThinkingBudgetSpec, *, completes: bool = False) -> tuple[Automaton, range]:
    """Build the automaton.

    Args:
        spec: the spec.
        completes: whether to make states of their own for a request that has closed a block and
            has none open. Their timer is 0: a time-out is due before the next output token.

    Returns:
        The automaton, and its states outside of blocks after the first block.
    """
    builder = AutomatonBuilder(reads_prompt=True)
    start, end = spec.start_token_ids, spec.end_token_ids
    outside = builder.watching(len(start))
    opened = builder.free(timer=spec.budget)  # like inside[0], but that the count starts
    inside = builder.watching(len(end), timer=CARRY)
    closed = builder.watching(len(start), timer=0) if completes else outside
    closing = builder.chain(end, then=closed[0])
    message = builder.chain(spec.message_token_ids, then=closing)
    if next(iter(spec.message_token_ids), end[0]) != end[0]:
        # Another token may come in place of the message's first, and be the end tag's.
        after_each = [*range(closing + 1, closing + len(end)), closed[0]]
        builder.edge(message, end[0], after_each[0])
    match(builder, outside, start, found=opened)
    if completes:
        match(builder, closed, start, found=opened)
    match(builder, inside, end, found=closed[0])
    builder.edge(opened, end[0], inside[1] if len(end) > 1 else closed[0])
    builder.default(opened, inside[0])
    builder.timeout(opened, message)
    builder.timeout(inside[0], message)
    for i in range(1, len(end)):  # half an end tag is out: go on with it
        builder.timeout(inside[i], closing + i)
    return builder.build(), closed
