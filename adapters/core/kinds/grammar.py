"""``grammar``, where the engine has none of its own, or its own cannot do what is asked."""

from collections.abc import Iterable

from ....spec import GrammarSpec
from ..automaton import Automaton, AutomatonBuilder
from ..parts import Grammar, Part
from .base import Context, compile_spec


@compile_spec.register
def _compile(spec: GrammarSpec, context: Context) -> Iterable[Part]:
    yield of_phase(spec, context, None)


def of_phase(spec: GrammarSpec, context: Context, closing: Automaton | None) -> Grammar:
    """Compile a grammar, which ends its phase with ``closing``, if there is one."""
    from ..text.grammars import compile_grammar  # llguidance is optional

    vocabulary = context.vocabulary_for(spec)
    ends = () if closing is not None else vocabulary.end_tokens
    return Grammar(compile_grammar(spec, vocabulary), vocabulary.size, ends, closing)


def close() -> Automaton:
    """Build an automaton that is complete in state 1, to which the grammar's matcher sets it."""
    builder = AutomatonBuilder()
    builder.default(builder.free(), 0)
    builder.free()
    return builder.build(check=False)
