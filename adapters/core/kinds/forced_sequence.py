"""``forced_sequence``: a chain of states, each of which forces a token."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from ....spec import ForcedTokenSequenceSpec
from ..automaton import CARRY, Automaton, AutomatonBuilder
from ..parts import Part
from .base import Context, compile_spec


@compile_spec.register
def _compile(spec: ForcedTokenSequenceSpec, _: Context) -> Iterable[Part]:
    yield forced_chain(spec.token_ids, spec.eos_token_id)


def forced_chain(
    token_ids: Sequence[int], eos_token_id: int | None, *, after: int = 0
) -> Automaton:
    """Force ``token_ids`` from output index ``after`` on, then EOS forever, if it is given."""
    builder = AutomatonBuilder()
    if after:
        counting, waiting = builder.free(timer=after), builder.free(timer=CARRY)
        builder.default(counting, waiting)
        builder.timeout(counting, len(builder))
        builder.timeout(waiting, len(builder))
    builder.chain(token_ids)
    if eos_token_id is None:
        builder.free()
    else:
        builder.force(eos_token_id)
    return builder.build()


@lru_cache(maxsize=64)
def ending(eos_token_id: int) -> Automaton:
    """Build the automaton that ends a request whose specs have failed."""
    return forced_chain((), eos_token_id)
