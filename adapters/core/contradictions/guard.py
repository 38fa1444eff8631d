"""Whether a guard certainly stops what specs force: sets of tokens are compared, and no states.

Everything else is decided in the row, where the guard's edits come last.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....spec import LogitsProcessorSpec, SpecError
from ....spec.errors import Name
from ..automaton import Automaton, Edit
from ..automaton.arrays import distinct
from ..parts import Program
from .check import bans_any, is_any, offered_by
from .follow import BAN
from .report import path_of, specs_of, why


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
    for source, automaton in zip(program.sources, program.automata, strict=False):
        stays = (automaton.timer != 0) | (automaton.timeout < 0)  # others are left at once
        forced = distinct(automaton.operand[stays & (automaton.edit == Edit.FORCE)])
        first = automaton.set_tokens[:0]
        if automaton.edit[0] == Edit.ALLOW:
            ends = np.append(0, automaton.set_ends)[automaton.operand[0] :]
            first = automaton.set_tokens[ends[0] : ends[1]]
        left = first
        for of_guard, refusing in zip(guarding.sources, guarding.automata, strict=False):
            left = left[~refused(refusing, left)]
            found = forced[refused(refusing, forced)].tolist()
            if found or (len(first) and not len(left)):
                token = found[0] if found else -1
                index = specs_of(token, specs, source)[-1]
                named = Name(f"the server's guard[{specs_of(token, guard, of_guard)[0]}]")
                raise SpecError(
                    ("Conflicts with ", (named,), why(token, (refusing,))),
                    *("specs", index, *path_of(token, specs[index])),
                )


def may_stop(
    specs: Sequence[LogitsProcessorSpec], program: Program, guarding: Program
) -> tuple[str, ...]:
    """Return the kinds that force or list a token that a guard does not always leave.

    The arguments are those of ``check_guard``.
    """
    indices = set[int]()
    others = bool(guarding.history_rules or guarding.per_request)
    for source, automaton in zip(program.sources, program.automata, strict=False):
        offered = distinct(offered_by(automaton))
        if len(offered) and (
            others
            or any(
                bans_any(each, offered) or is_any(each, Edit.ALLOW) for each in guarding.automata
            )
        ):
            indices.update(source)
    return tuple(dict.fromkeys(specs[i].kind for i in sorted(indices)))


def refused(automaton: Automaton, tokens: Any) -> Any:
    """Return which of some ascending tokens an automaton refuses in each of its states."""
    sets = len(automaton.set_ends)
    adding = np.bincount(automaton.operand[automaton.edit == Edit.ADD], minlength=sets)
    is_limiting = np.isin(automaton.edit, (Edit.ALLOW, Edit.BAN_OTHERS))
    limiting = np.bincount(automaton.operand[is_limiting], minlength=sets)
    of_cell = np.repeat(np.arange(sets), automaton.set_sizes)
    at = np.searchsorted(tokens, automaton.set_tokens)
    is_asked = tokens.take(at, mode="clip") == automaton.set_tokens if len(tokens) else at < 0
    # A state refuses a token that its set bans, and one that its list does not have.
    bans = np.where(automaton.set_values < BAN, adding[of_cell], 0) - limiting[of_cell]
    counts = np.bincount(at[is_asked], bans[is_asked], len(tokens))
    return counts + is_limiting.sum() == automaton.states
