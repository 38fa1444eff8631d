"""Whether a guard certainly stops what specs force: sets of tokens are compared, and no states.

Everything else is decided in the row, where the guard's edits come last.
"""

from collections.abc import Sequence

import numpy as np

from ....spec import LogitsProcessorSpec, SpecError
from ....spec.errors import Name
from ..automaton.arrays import distinct
from ..parts import Program
from .check import ends_of
from .follow import ALLOW
from .report import kinds_of, path_of, specs_of, why
from .sets import find_forced, offered_by, refusals, refused


def check_guard(
    specs: Sequence[LogitsProcessorSpec],
    program: Program,
    guard: Sequence[LogitsProcessorSpec],
    guarding: Program,
) -> None:
    """Refuse specs that force a token, or begin with a list of tokens, that a guard never leaves.

    Args:
        specs: the specs of a request, or one that means the same as a field of it.
        program: what they compile to.
        guard: the specs of the guard.
        guarding: what these compile to.

    Raises:
        SpecError: at a spec, with the spec of the guard.
    """
    of_guard = [each for each, phase, _ in guarding.lanes if not phase]
    found = find_forced(program, of_guard, ends_of(specs))
    for i, (automaton, phase, _) in enumerate(() if found else program.lanes):
        if automaton.edit[0] == ALLOW and program.since[phase] == 0:
            ends = np.append(0, automaton.set_ends)[automaton.operand[0] :]
            left = automaton.set_tokens[ends[0] : ends[1]]
            for k, each in enumerate(of_guard):
                left = left[~refused(each, left)]
                if not len(left):
                    found = found or (i, (k,), -1)
    if found is not None:
        part, (other,), token = found
        index = specs_of(token, specs, program.compared[part].specs)[-1]
        of_other = next(each.specs for each in guarding.parts if each.part is of_guard[other])
        named = Name(f"the server's guard[{specs_of(token, guard, of_other)[0]}]")
        raise SpecError(
            ("Conflicts with ", (named,), why(token, (of_guard[other],))),
            *("specs", index, *path_of(token, specs[index])),
        )


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
