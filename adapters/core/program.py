"""Programs: the specs of a request, compiled."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ...spec import LogitsProcessorSpec, NativeSpec, SpecError
from ...spec.limits import (
    MAX_DRY_RULES,
    MAX_NGRAM_RULES,
    MAX_PROMPT_BIASES,
    MAX_WORK,
    SPEC_WORK,
    TEXT_BYTE_WORK,
    TEXT_RULE_WORK,
    TEXT_TABLE_BYTES,
)
from .automaton import Automaton
from .automaton.failure_links import TooManyEdgesError
from .kinds import Context, VocabularyOf, compile_spec, merge
from .kinds.base import Merge, check_size
from .parts import Part, Program

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
            and beyond ``MAX_WORK``, ``MAX_CELLS``, ``MAX_PROMPT_BIASES`` and ``MAX_NGRAM_RULES``.
    """
    groups: dict[Hashable, list[int]] = {}
    for i, spec in enumerate(specs):
        try:
            groups.setdefault(merge(spec) or i, []).append(i)
        except SpecError as error:
            raise error.at("specs", i) from None
    room = TEXT_TABLE_BYTES * (MAX_WORK - _check_work(specs, groups))
    context, parts, cells = Context(vocabulary, room), list[Part](), 0
    for how, members in groups.items():
        together = [specs[i] for i in members]
        try:
            if isinstance(how, Merge):
                made = [*how.compile(together, context)]
            else:
                made = [*compile_spec(together[0], context)]
            parts += made
            automata = [part for part in made if isinstance(part, Automaton)]
            # The sizes of these depend on the vocabulary, and are bounded by their memory.
            if together[0].needs_vocabulary:
                taken = sum(automaton.table_bytes for automaton in automata)
                context.text_room = max(context.text_room - taken, 0)
            else:
                cells += sum(automaton.cells for automaton in automata)
            check_size(cells)
            _check_rules(Program.of(parts))
        except TooManyEdgesError as error:
            raise SpecError(f"Expected a simpler spec: {error}", "specs", members[-1]) from None
        except SpecError as error:
            raise error.at("specs", members[-1]) from error.__cause__
    return Program.of(parts)


def _check_rules(program: Program) -> None:
    if len(program.prompt_biases) > MAX_PROMPT_BIASES:
        raise SpecError(f"Expected at most {MAX_PROMPT_BIASES} prompt biases on a request")
    if len(program.dry) > MAX_DRY_RULES:
        raise SpecError(f"Expected at most {MAX_DRY_RULES} `dry` on a request")
    if len(program.history_rules) > MAX_NGRAM_RULES:
        raise SpecError(
            f"Expected at most {MAX_NGRAM_RULES} different `no_repeat_ngram` and `dry` on a request"
        )


def _check_work(specs: Sequence[LogitsProcessorSpec], groups: dict[Hashable, list[int]]) -> int:
    """Bound the work to compile specs, before any of it is done. Return its units."""
    sizes = [spec.sizes() for spec in specs]
    rules = [specs[members[-1]] for members in groups.values()]
    parts = {
        "token ids": sum(each.token_ids for each in sizes),
        "rules about text": TEXT_RULE_WORK * sum(spec.text_rules for spec in rules),
        "bytes of texts": TEXT_BYTE_WORK * sum(each.text_bytes for each in sizes),
        "the rest": SPEC_WORK * (len(specs) - 1) + sum(spec.work for spec in rules),
    }
    if (work := sum(parts.values())) > MAX_WORK:
        of = ", ".join(f"{units} for {what}" for what, units in parts.items() if units)
        raise SpecError(
            f"Expected specs that take at most {MAX_WORK} units of work, got {work}: {of}",
            "specs",
        )
    return work


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
