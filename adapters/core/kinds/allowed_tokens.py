"""``allowed_tokens``: one state, which leaves some tokens."""

from collections.abc import Iterable

from ....spec import AllowedTokensSpec
from ..automaton import Automaton, AutomatonBuilder
from .base import Part, compile_spec


def _allowing() -> Automaton:
    builder = AutomatonBuilder()
    builder.allow(builder.token_set((0,)))
    return builder.build()


_ALLOWING = _allowing()
"""What differs from one request to another only in the tokens is made once."""


@compile_spec.register
def _compile(spec: AllowedTokensSpec) -> Iterable[Part]:
    yield _ALLOWING.of_tokens(spec.token_ids)
