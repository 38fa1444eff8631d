"""``choice``: a trie, in whose nodes the tokens that go on are allowed."""

from collections.abc import Iterable

from ....spec import ChoiceSpec
from ..parts import Part
from .base import Context, compile_spec


@compile_spec.register
def _compile(spec: ChoiceSpec, _: Context) -> Iterable[Part]:
    from ..automaton.tries import choice  # imports numba

    yield choice(spec.choices, spec.eos_token_id)
