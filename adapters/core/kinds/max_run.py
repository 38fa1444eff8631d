"""``max_run``: the texts of one symbol more than a run may have, times the vocabulary."""

from collections.abc import Iterable

from ....spec import MaxRunSpec
from ..parts import Part
from .base import Context, compile_spec
from .simple import adding


@compile_spec.register
def _compile(spec: MaxRunSpec, context: Context) -> Iterable[Part]:
    """Ban the text of ``n + 1`` symbols, each of which is any of the texts."""
    vocabulary = context.vocabulary_for(spec)
    from ..text.token_product import completing_texts  # imports numba

    symbol = tuple(text.encode() for text in spec.characters)
    too_long, room = [symbol] * (spec.n + 1), context.room  # half of all tokens begin so
    everywhere, automaton = completing_texts([too_long], vocabulary, room)
    if len(everywhere):
        yield adding(everywhere)
    if automaton is not None:
        yield automaton
