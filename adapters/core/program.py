"""Programs: the specs of a request, compiled."""

from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from typing import Any

from ...spec import LogitsProcessorSpec, NativeSpec, SpecError
from ...spec.errors import Path
from ...spec.limits import (
    MAX_HISTORY_RULES,
    MAX_LOOP_RULES,
    MAX_PROGRAM_BYTES,
    MAX_PROMPT_RULES,
    MAX_TEXT_RULES,
)
from .automaton import Automaton
from .kinds import Context, VocabularyOf, compile_spec, merge
from .kinds.base import Merge, check_size
from .kinds.grammar import check_work
from .parts import Acting, Program

ProgramOf = Callable[[Any], Program | None]
"""A function from a request, as its adapter has it, to its program; ``None`` if it has none."""


def compile_specs(
    specs: Sequence[LogitsProcessorSpec], vocabulary: VocabularyOf | None = None
) -> Program:
    """Compile the specs of a request.

    Args:
        specs: the specs of a payload.
        vocabulary: returns the vocabulary of the engine's tokenizer. It is called only if a spec
            needs one.

    Raises:
        SpecError: with the path, for a plugin that is not installed or refuses its parameters, for
            a kind that the engine implements itself or that needs a vocabulary where none is known,
            and beyond ``MAX_WORK``, ``MAX_TEXT_RULES``, ``MAX_CELLS``, ``MAX_HISTORY_RULES``,
            ``MAX_LOOP_RULES``, ``MAX_PROMPT_RULES`` and ``MAX_PROGRAM_BYTES``.
    """
    groups: dict[Hashable, list[int]] = {}
    for i, spec in enumerate(specs):
        try:
            groups.setdefault(merge(spec) or i, []).append(i)
        except SpecError as error:
            raise error.at("specs", i) from None
    check_work(specs)
    _check_texts(specs, [members[-1] for members in groups.values()])
    context, parts, cells = Context(vocabulary), list[Acting](), 0
    since = [0]
    for how, members in groups.items():
        together = [specs[i] for i in members]
        try:
            if isinstance(how, Merge):
                made = [*how.compile(together, context)]
            else:
                made = [*compile_spec(together[0], context)]
            acting = [each if isinstance(each, Acting) else Acting(each) for each in made]
            parts += (each._replace(specs=members) for each in acting)
            since += [0, *[-1] * context.phases][: context.phases - len(since)]
            automata = [part for part, *_ in acting if isinstance(part, Automaton)]
            context.room -= sum(each.table_bytes for each in automata)
            if not together[0].needs_vocabulary:  # else their memory is bounded
                cells += sum(each.cells for each in automata)
                check_size(cells)
        except SpecError as error:
            raise error.at("specs", members[-1]) from error.__cause__
    # The first of several forced tokens counts: once the text of an `at_end` has begun, its own.
    parts.sort(key=lambda each: not (isinstance(each.part, Automaton) and each.part.moves))
    _check(program := Program(tuple(parts), tuple(since)))
    return program


def _check_texts(specs: Sequence[LogitsProcessorSpec], compiled: Sequence[int]) -> None:
    """Check the number of passes over the vocabulary, before any of them."""
    paths: list[Path] = [("specs", i, *path) for i in compiled for path in specs[i].text_rules]
    if len(paths) > MAX_TEXT_RULES:
        what = f"Expected at most {MAX_TEXT_RULES} rules about text on a request, got {len(paths)}"
        named = chain.from_iterable((", " if i else ": ", path) for i, path in enumerate(paths))
        how = "; in one spec, texts with equal options count as one"
        raise SpecError((what, *named, how), "specs")


def _check(program: Program) -> None:
    """Check the numbers that depend on what all specs together compile to."""
    for got, most, what in (
        (len(program.ngrams + program.dry), MAX_HISTORY_RULES, "rules about the history"),
        (len(program.dry), 1, "`dry`"),
        (sum(each.moves for each in program.automata), 1, "`at_end`"),
        (len(program.loops), MAX_LOOP_RULES, "rules about loops"),
        (program.prompt_rules, MAX_PROMPT_RULES, "rules that read the prompt"),
        (program.memory, MAX_PROGRAM_BYTES, "bytes of tables"),
    ):
        if got > most:
            raise SpecError(f"Expected specs with at most {most} {what}, got {got}", "specs")


def unsupported(
    specs: Sequence[LogitsProcessorSpec],
    asks: Callable[[Program], bool],
    why: str,
    vocabulary: VocabularyOf | None = None,
) -> SpecError:
    """Make the error for a feature that an engine lacks, at the spec whose program ``asks`` for it.

    Args:
        specs: specs that have been compiled together.
        asks: whether a program needs the feature.
        why: the text after the spec's kind in the message.
        vocabulary: as for ``compile_specs``.
    """
    for i, spec in enumerate(specs):
        if not isinstance(spec, NativeSpec) and asks(compile_specs((spec,), vocabulary)):
            return SpecError(f"`{spec.kind}` {why}", "specs", i)
    raise AssertionError("unreachable: what the whole asks for, one of the specs does")
