"""``trigger``: states that watch for a phrase, and a chain that forces the answer."""

from collections.abc import Iterable

from ....spec import TriggerSpec
from ..automaton import CARRY, CLEAR, KEEP, AutomatonBuilder
from ..automaton.patterns import Matcher
from ..parts import Part
from .base import Context, compile_spec


@compile_spec.register
def _compile(spec: TriggerSpec, _: Context) -> Iterable[Part]:
    """Build one round: watch for the trigger, force the phrase. A timer counts the rounds."""
    builder = AutomatonBuilder()
    counts = spec.times is not None and spec.times > 1
    timer = KEEP if counts else CLEAR
    start = builder.free(timer=spec.times or 0) if counts else None
    matcher = Matcher.of((spec.trigger_token_ids,))
    watching = builder.watching(len(matcher.edges), timer=timer)
    matcher.link(builder, watching, watching, found=len(builder))
    then = watching[0] if spec.times is None else None
    builder.chain(spec.token_ids, then=then, timer=timer)
    if start is not None:
        again = builder.free(timer=CARRY)
        for state in (start, again):
            builder.failure_link(state, watching[0])
        builder.timeout(again, len(builder))
    if spec.times is not None:
        builder.free()
    yield builder.build(check=False)
