"""Whether a guard certainly stops what specs force or list.

Everything else is decided in the row, where the guard's edits come last.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ....spec import LogitsProcessorSpec, SpecError
from ....spec.errors import Name
from ..automaton import Automaton
from ..automaton.arrays import distinct
from ..parts import Program
from .check import budget, ends_of, follow_all
from .follow import ALLOW, FORCE, MOVE
from .report import kinds_of, path_of, specs_of, why
from .sets import find_forced, is_any, offered_by, refusals, refused


def check_guard(
    specs: Sequence[LogitsProcessorSpec],
    program: Program,
    guard: Sequence[LogitsProcessorSpec],
    guarding: Program,
) -> None:
    """Refuse specs that force or list tokens where a guard leaves none of them.

    Args:
        specs: the specs of a request, or one that means the same as a field of it.
        program: what they compile to.
        guard: the specs of the guard.
        guarding: what these compile to.

    Raises:
        SpecError: at a spec, with the spec of the guard.
    """
    of_guard: list[Any] = [each for each in guarding.parts if isinstance(each.part, Automaton)]
    of_guard = [each for each in of_guard if not each.phase]
    ends, left, count = ends_of(specs), budget(), len(program.automata)
    found = find_forced(program, [each.part for each in of_guard], ends, left)
    if found is not None:
        part, others, token = found
    elif any(is_any(each, FORCE, ALLOW) for each in program.automata):
        # What the guard forces itself cuts a text, as the operator wants it.
        of_guard = [each for each in of_guard if not is_any(each.part, FORCE, MOVE)]
        both = replace(program, parts=(*program.parts, *of_guard))
        part, others, token = follow_all(both, None, ends, left) or (-1, (), -1)
        found = [i for i in (part, *others) if i >= 0]
        part, others = min(found, default=count), [i - count for i in found if i >= count]
        if part < count and _stays(program.automata[part], [each.part for each in of_guard]):
            return
    else:
        return
    if part < count and others:
        other = of_guard[others[0]]
        index = specs_of(token, specs, program.compared[part].specs)[-1]
        named = Name(f"the server's guard[{specs_of(token, guard, other.specs)[0]}]")
        raise SpecError(
            ("Conflicts with ", (named,), why(token, (other.part,))),
            *("specs", index, *path_of(token, specs[index])),
        )


def _stays(automaton: Automaton, of_guard: Sequence[Automaton]) -> bool:
    """Whether a list is the same in all states, and a guard leaves some of it in any of its own.

    The reply may then end after some of its tokens, as the operator wants it.
    """
    if automaton.states > 1:
        return False
    left = automaton.set_tokens
    for each in of_guard:
        left = left[~refused(each, left)]
    return len(left) > 0


def may_stop(
    specs: Sequence[LogitsProcessorSpec], program: Program, guarding: Program
) -> tuple[str, ...]:
    """Return the kinds that force or list a token that a guard does not always leave.

    The arguments are those of ``check_guard``.
    """
    has_rules = bool(guarding.history_rules or guarding.per_request)
    stopped = [
        i
        for i, each in enumerate(program.automata)
        if len(offered := distinct(offered_by(each)))
        and (has_rules or any(refusals(each, offered).any() for each in guarding.automata))
    ]
    return kinds_of(stopped, specs, program)
