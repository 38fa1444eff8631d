"""``thinking_budget``: states outside and inside a block, and a timer that closes it."""

from collections.abc import Iterable

from ....spec import ThinkingBudgetSpec
from ..automaton import CARRY, AutomatonBuilder
from ..automaton.patterns import match
from .base import Part, compile_spec


@compile_spec.register
def _compile(spec: ThinkingBudgetSpec) -> Iterable[Part]:
    builder = AutomatonBuilder(reads_prompt=True)
    start, end = spec.start_token_ids, spec.end_token_ids
    outside = builder.watching(len(start))
    opened = builder.free(timer=spec.budget)  # like inside[0], but that the count starts
    inside = builder.watching(len(end), timer=CARRY)
    closing = builder.chain(end, then=outside[0])
    message = builder.chain(spec.message_token_ids, then=closing)
    if next(iter(spec.message_token_ids), end[0]) != end[0]:
        # Another token may come in place of the message's first, and be the end tag's.
        after_each = [*range(closing + 1, closing + len(end)), outside[0]]
        builder.edge(message, end[0], after_each[0])
    match(builder, outside, start, found=opened)
    match(builder, inside, end, found=outside[0])
    builder.edge(opened, end[0], inside[1] if len(end) > 1 else outside[0])
    builder.default(opened, inside[0])
    builder.timeout(opened, message)
    builder.timeout(inside[0], message)
    for i in range(1, len(end)):  # half an end tag is out: go on with it
        builder.timeout(inside[i], closing + i)
    yield builder.build()
