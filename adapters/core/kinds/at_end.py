"""``at_end``: a state that moves the mass of the ends, and the chain that follows."""

from collections.abc import Iterable

from ....spec import AtEndSpec
from ..automaton import AutomatonBuilder
from ..parts import Part
from .base import Context, compile_spec

GREEDY = 1e-6
"""The temperature in place of 0: the likeliest end counts."""


@compile_spec.register
def _compile(spec: AtEndSpec, _: Context) -> Iterable[Part]:
    builder, ends = AutomatonBuilder(), spec.stop_token_ids
    values = max(spec.temperature, GREEDY), *(0.0 for _ in ends)
    waiting = builder.move(builder.token_set((spec.token_ids[0], *ends), values))
    builder.edge(waiting, spec.token_ids[0], len(builder))
    builder.chain(spec.token_ids[1:])
    builder.force(ends[0])
    yield builder.build(check=False)
