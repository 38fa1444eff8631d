"""``phases``: the parts of each phase, and beside them what ends it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ....spec import ForcedEndSpec, GrammarSpec, PhaseEnd, PhasesSpec, SpecError, ThinkingBudgetSpec
from ....spec.kinds.phases import end_texts
from ..automaton import CARRY, Automaton, AutomatonBuilder, Edit
from ..automaton.automaton import end_code
from ..automaton.patterns import Matcher
from ..parts import Acting, Part
from .base import Context, compile_spec
from .grammar import close, of_phase
from .simple import adding, ending
from .thinking_budget import thinking


@compile_spec.register
def _compile(spec: PhasesSpec, context: Context) -> Iterable[Part | Acting]:
    """Number the phases that some output leads to, after those of other specs."""
    indices = reachable(spec)
    number = {index: context.phases + at for at, index in enumerate(indices)}
    number[len(spec.phases)] = number[0] if spec.repeat else context.phases + len(indices)
    context.phases += len(indices) + (not spec.repeat)
    for i in indices:
        try:
            for part, end in _parts(spec, i, number, context):
                yield Acting(part, number[i], end)
        except SpecError as error:
            raise error.at("phases", i) from error.__cause__
    if spec.eos_token_id is not None:
        yield Acting(ending(spec.eos_token_id), number[len(spec.phases)])


def _parts(
    spec: PhasesSpec, i: int, number: Mapping[int, int], context: Context
) -> Iterator[tuple[Any, int]]:
    """Yield the parts of a phase, each with the code of the end that it decides."""
    phase, completed = spec.phases[i], 0
    codes = [
        end_code(k, number[i + 1 if end.phase is None else end.phase], is_shared=end.complete)
        for k, end in enumerate(phase.ends)
    ]
    for end, code in zip(phase.ends, codes, strict=True):
        completed = completed or code * end.complete
    counts = [end.n for end in phase.ends if end.n is not None]
    for j, each in enumerate(phase.specs):
        try:
            if isinstance(each, GrammarSpec):
                closing = _completing(close()) if completed else None
                if closing is not None:
                    yield closing, completed
                yield of_phase(each, context, closing), 0
            elif completed and isinstance(each, ThinkingBudgetSpec):
                yield thinking(each, completes=True), completed
            elif completed and each.can_complete:
                for part in compile_spec(each, context):
                    yield _completing(part), completed
            elif not isinstance(each, ForcedEndSpec) or min([*counts, each.after + 1]) > each.after:
                for part in compile_spec(each, context):  # else the phase is over before
                    yield part, 0
        except SpecError as error:
            raise error.at("specs", j) from error.__cause__
    if spec.stop_token_ids and i < len(spec.phases) - 1:
        yield adding(spec.stop_token_ids), 0
    texts = end_texts(phase, i + 1)
    for k, end in enumerate(phase.ends):
        is_too_late = end.n is not None and min(counts) < end.n
        try:
            if k in texts:
                yield _text_detector(texts[k], spec, context), codes[k]
            elif not (end.complete or end.text or is_too_late):
                yield _detector(end), codes[k]
        except SpecError as error:
            raise error.at("ends", k, "text") from None


def reachable(spec: PhasesSpec) -> list[int]:
    """List the phases that some output leads to, in ascending order. The first is among them."""
    seen, front = {0}, [0]
    while front:
        i = front.pop()
        for end in spec.phases[i].ends:
            following = i + 1 if end.phase is None else end.phase
            if following < len(spec.phases) and following not in seen:
                seen.add(following)
                front.append(following)
    return sorted(seen)


def _text_detector(texts: Iterable[str], spec: PhasesSpec, context: Context) -> Automaton:
    """Build an automaton that is complete in its last state, when one of the texts is out."""
    from ..text.token_product import detecting  # imports numba

    encoded = [text.encode() for text in texts]
    made = detecting(encoded, context.vocabulary_for(spec), context.text_room)
    context.text_room -= made.table_bytes
    return _completing(made)


def _detector(end: PhaseEnd) -> Automaton:
    """Build an automaton that is complete in its last state, when the end has come."""
    builder = AutomatonBuilder()
    if end.n is not None:
        counting, waiting = builder.free(timer=end.n), builder.free(timer=CARRY)
        builder.default(counting, waiting)
        for state in (counting, waiting):
            builder.timeout(state, len(builder))
    else:
        matcher = Matcher.of((end.token_ids,))
        watching = builder.watching(len(matcher.edges))
        matcher.link(builder, watching, watching, found=len(builder))
    builder.free()
    return _completing(builder.build(check=False))


def _completing(part: Any) -> Automaton:
    """Mark the states in which an automaton is complete.

    The last state stays free, and so do states that can only lead to it.
    """
    leads = part.default_target == part.states - 1
    leads &= (part.edit == Edit.FREE) & (part.timeout < 0)
    leads[part.keys >> 32] = False
    return replace(part, is_complete=leads)
