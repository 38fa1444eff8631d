"""``banned_tokens``: one state, which bans some tokens."""

from collections.abc import Iterable
from typing import Any

import numpy.typing as npt

from ....spec import BannedTokensSpec
from ..automaton import Automaton, AutomatonBuilder, Ints
from ..parts import Part
from .base import Context, compile_spec

_builder = AutomatonBuilder()
_builder.add(_builder.token_set((0,)))
ADDING = _builder.build()
"""Made once: the automata of different requests differ only in the tokens."""


def adding(
    token_ids: Iterable[int] | Ints, *values: Iterable[float] | npt.NDArray[Any] | float
) -> Automaton:
    """Build an automaton that adds to some tokens in any state; by default it bans them."""
    return ADDING.of_tokens(token_ids, *values)


@compile_spec.register
def _compile(spec: BannedTokensSpec, _: Context) -> Iterable[Part]:
    yield adding(spec.token_ids)
