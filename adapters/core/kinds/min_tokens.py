"""``min_tokens``: a state that bans the stop tokens until a timer has run out."""

from collections.abc import Iterable

from ....spec import MinTokensSpec
from ..automaton import CARRY, Automaton, AutomatonBuilder
from .base import Part, compile_spec


def _holding_back() -> Automaton:
    builder = AutomatonBuilder()
    stops = builder.token_set((0,))
    counting, waiting = builder.add(stops, timer=1), builder.add(stops, timer=CARRY)
    enough = builder.free()
    builder.default(counting, waiting)
    builder.timeout(counting, enough)
    builder.timeout(waiting, enough)
    return builder.build()


_HOLDING_BACK = _holding_back()
"""What differs from one request to another only in the tokens is made once."""


@compile_spec.register
def _compile(spec: MinTokensSpec) -> Iterable[Part]:
    timer = _HOLDING_BACK.timer.copy()
    timer[0] = spec.n
    yield _HOLDING_BACK.of_tokens(spec.stop_token_ids, timer=timer)
