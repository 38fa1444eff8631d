"""``grammar``, where the engine has none of its own, or its own cannot do what is asked."""

from collections.abc import Iterable, Sequence

from ....spec import GrammarSpec, LogitsProcessorSpec, PhasesSpec, SpecError
from ..automaton import Automaton, AutomatonBuilder
from ..parts import Grammar, Part
from ..text.grammar_work import MAX_WORK, work_of
from ..text.grammars import compile_grammar, form_of
from .base import Context, compile_spec


def check_work(specs: Sequence[LogitsProcessorSpec]) -> None:
    """Refuse more grammars than a request may bring, before any of them is compiled.

    Raises:
        SpecError: at the grammar that is too much.
    """
    work = 0.0
    for i, spec in enumerate(specs):
        within = spec.inner_specs() if isinstance(spec, PhasesSpec) else [((), spec)]
        for path, each in within:
            if isinstance(each, GrammarSpec):
                work += work_of(each)
                if work > MAX_WORK:
                    what = "Expected grammars that all compile in at most"
                    got = f"{what} {MAX_WORK} ms, by estimate, got {work:,.0f} ms with this one"
                    raise SpecError(got, "specs", i, *path, form_of(each))


@compile_spec.register
def _compile(spec: GrammarSpec, context: Context) -> Iterable[Part]:
    yield of_phase(spec, context, None)


def of_phase(spec: GrammarSpec, context: Context, closing: Automaton | None) -> Grammar:
    """Compile a grammar, which ends its phase with ``closing``, if there is one."""
    vocabulary = context.vocabulary_for(spec)
    ends = () if closing is not None else vocabulary.end_tokens
    return Grammar(compile_grammar(spec, vocabulary), vocabulary.size, ends, closing)


def close() -> Automaton:
    """Build an automaton that is complete in state 1, to which the grammar's matcher sets it."""
    builder = AutomatonBuilder()
    builder.default(builder.free(), 0)
    builder.free()
    return builder.build(check=False)
