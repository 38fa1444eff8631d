"""``min_tokens``: a state that bans the stop tokens until a timer has run out."""

from collections.abc import Iterable

from ....spec import MinTokensSpec
from ..automaton import CARRY, AutomatonBuilder
from ..parts import Part
from .base import Context, compile_spec

_builder = AutomatonBuilder()
_stops = _builder.token_set((0,))
_counting, _waiting = _builder.add(_stops, timer=1), _builder.add(_stops, timer=CARRY)
_enough = _builder.free()
_builder.default(_counting, _waiting)
_builder.timeout(_counting, _enough)
_builder.timeout(_waiting, _enough)
_HOLDING_BACK = _builder.build()
"""Made once: the automata of different requests differ only in the tokens and the timer."""


@compile_spec.register
def _compile(spec: MinTokensSpec, _: Context) -> Iterable[Part]:
    timer = _HOLDING_BACK.timer.copy()
    timer[0] = spec.n
    yield _HOLDING_BACK.of_tokens(spec.stop_token_ids, timer=timer)
