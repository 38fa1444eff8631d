"""``automaton``: the spec's own states, edges and token sets."""

from collections.abc import Iterable
from itertools import chain

import numpy as np

from ....spec import AutomatonSpec, AutomatonState
from ..automaton import BAN_BIAS, CARRY, CLEAR, KEEP, AutomatonBuilder, Edit, Ints
from ..automaton.arrays import TOKEN, differ, distinct, members, token_array
from ..parts import Part
from .base import Context, check_size, compile_spec


@compile_spec.register
def _compile(spec: AutomatonSpec, _context: Context) -> Iterable[Part]:
    builder, states = AutomatonBuilder(), spec.states
    tokens, starts, lengths = _sets(spec)
    used: dict[tuple[int, float], int] = {}  # token sets with their values
    edits = [_edit(state, used) for state in states]
    of_used = np.array([index for index, _ in used], np.int64)
    check_size(len(states) + int(lengths[of_used].sum()))
    _, place = members(starts[of_used], lengths[of_used])
    values = np.repeat([value for _, value in used], lengths[of_used])
    builder.token_sets(tokens[place], lengths[of_used], values)
    edit, operand = np.array(edits).T
    defaults = [i if state.default is None else state.default for i, state in enumerate(states)]
    builder.extend(edit, operand, np.array(defaults), timer=_timers(spec))
    for i, state in enumerate(states):
        if state.timeout is not None:
            builder.timeout(i, state.timeout)
    edges = [(i, to.token_set, to.state) for i, each in enumerate(states) for to in each.edges]
    if edges:
        sources, sets, targets = np.array(edges).T
        owner, place = members(starts[sets], lengths[sets])
        keys = sources[owner] << 32 | tokens[place]
        order = keys.argsort(kind="stable")
        order = order[differ(keys[order])]  # of several edges, the first counts
        keys = keys[order]
        builder.edges(keys >> 32, keys & TOKEN, targets[owner[order]])
    yield builder.build()


def _sets(spec: AutomatonSpec) -> tuple[Ints, Ints, Ints]:
    """Sort the tokens of all token sets; return them with the start and length of each set."""
    lengths = np.array([*map(len, spec.token_sets)], np.int64)
    of_token = np.repeat(np.arange(len(lengths)), lengths)
    cells = distinct(of_token << 32 | token_array(chain.from_iterable(spec.token_sets)))
    lengths = np.bincount(cells >> 32, minlength=len(lengths))
    return cells & TOKEN, np.cumsum(lengths) - lengths, lengths


def _edit(state: AutomatonState, used: dict[tuple[int, float], int]) -> tuple[int, int]:
    """Return the edit of a state and its operand; new token sets get the next numbers."""
    if state.force is not None:
        return Edit.FORCE, state.force
    if state.allow is not None:
        return Edit.ALLOW, used.setdefault((state.allow, 0), len(used))
    if state.ban is not None:
        return Edit.ADD, used.setdefault((state.ban, BAN_BIAS), len(used))
    if state.add is not None and state.bias is not None:
        return Edit.ADD, used.setdefault((state.add, state.bias), len(used))
    return Edit.FREE, 0


def _timers(spec: AutomatonSpec) -> Ints:
    if all([state.timer is None for state in spec.states]):  # noqa: C419  fewer calls
        return np.full(len(spec.states), CLEAR)
    return np.array(
        [
            state.timer if state.timer is not None else CARRY if state.counts else KEEP
            for state in spec.states
        ]
    )
