"""Tokens that an automaton forces, lists or refuses, in any of its states or in each of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..automaton import NO_TIMER, Automaton
from ..automaton.arrays import distinct
from ..automaton.pool import AutomatonPool, sizes_of
from ..loops import loop
from .follow import ADD, ALLOW, BAN, BAN_OTHERS, FORCE, OTHER, advance, find_token

Contradiction = tuple[int, Sequence[int], int]
"""A step that leaves no token: the part that forces or lists tokens, or -1; the parts that refuse
these; and the forced token, or -1. Parts are automata, then rules about n-grams, then about loops.
"""


def tables_of(automata: Sequence[Automaton]) -> tuple[Any, Any]:
    """Return the tables of automata, as ``follow`` reads them, and the first state of each."""
    pool = AutomatonPool(sizes_of(automata))
    bases = np.array([pool.base_of(each) for each in automata], np.int32)
    return (
        *(pool.default_target, pool.is_failure_link, pool.edge_ends, pool.edge_tokens),
        *(pool.targets, pool.timer, pool.timeout, pool.edit, pool.operand, pool.set_ends),
        *(pool.set_tokens, pool.set_values, pool.branches),
    ), bases


def is_any(automaton: Automaton, *edits: int) -> bool:
    """Whether an automaton makes one of some edits in any of its states."""
    return any((automaton.edit == edit).any() for edit in edits)


def offered_by(automaton: Automaton) -> Any:
    """Return the tokens that an automaton forces or allows in some state."""
    is_allowed = np.zeros(len(automaton.set_ends), np.bool_)
    is_allowed[automaton.operand[automaton.edit == ALLOW]] = True
    forced = automaton.operand[automaton.edit == FORCE]
    return np.append(forced, automaton.set_tokens[np.repeat(is_allowed, automaton.set_sizes)])


def refusals(automaton: Automaton, tokens: Any) -> Any:
    """Count the states that ban, or do not list, each of some ascending tokens."""
    if not len(tokens):
        return np.zeros(0, np.int64)
    edit, operand, sets = automaton.edit, automaton.operand, len(automaton.set_ends)
    limits = (edit == ALLOW) | (edit == BAN_OTHERS)
    adding = np.bincount(operand[edit == ADD], minlength=sets)
    limiting = np.bincount(operand[limits], minlength=sets)
    at = np.searchsorted(tokens, automaton.set_tokens)
    found = np.flatnonzero(tokens.take(at, mode="clip") == automaton.set_tokens)
    of_set = np.searchsorted(automaton.set_ends, found, side="right")
    # A state refuses a token that its set bans, and one that its list does not have.
    bans = np.where(automaton.set_values[found] < BAN, adding[of_set], 0) - limiting[of_set]
    return limits.sum() + np.bincount(at[found], bans, len(tokens))


def refused(automaton: Automaton, tokens: Any) -> Any:
    """Mark which of some ascending tokens an automaton bans, or does not list, in each state."""
    if (automaton.edit < ALLOW).any():
        return np.zeros(len(tokens), np.bool_)
    return refusals(automaton, tokens) == automaton.states


def find_forced(
    forcing: Sequence[Automaton], refusing: Sequence[Automaton], ends: Any
) -> Contradiction | None:
    """Find a token that an automaton forces, and that another one refuses in each of its states.

    After one of ``ends``, the request may be over. The ``others`` of what is found are indices of
    ``refusing``.
    """
    every = [each.operand[each.edit == FORCE] for each in forcing]
    forced = distinct(np.concatenate([*every, np.zeros(0, np.int32)]))
    if not any(refused(each, forced).any() for each in refusing):
        return None
    for i, automaton in enumerate(forcing):
        if not len(every[i]):
            continue
        columns = tables_of((automaton,))[0]
        tokens = distinct(np.append(columns[3], columns[10]))  # of its edges and lists
        never = [ends]
        if not automaton.reads_prompt:  # a prompt may have any tokens
            beside = [each for each in refusing if each is not automaton]
            never += [tokens[refused(each, tokens)] for each in beside]
        is_reached = reach(columns, distinct(np.concatenate(never)))
        forced = distinct(automaton.operand[is_reached & (automaton.edit == FORCE)])
        for k, each in enumerate(refusing):
            if (mask := refused(each, forced)).any() and each is not automaton:
                return i, (k,), int(forced[mask][0])
    return None


@loop
def reach(columns: Any, never: Any) -> Any:
    """Mark the states in which an automaton may edit, if some ascending tokens never come."""
    edge_ends, edge_tokens, _, on_entry, timeout, edits = columns[2:8]
    operands, set_ends, set_tokens = columns[8:11]
    here, after = np.full((1, 2), NO_TIMER, np.int32), np.empty((1, 2), np.int32)
    is_reached = np.zeros(len(edits), np.bool_)
    waiting, left = np.zeros(len(edits), np.int32), 1
    is_reached[0] = True
    while left > 0:
        left -= 1
        state = here[0, 0] = waiting[left]
        tokens, first, end = edge_tokens, edge_ends[state], edge_ends[state + 1]
        is_limited = edits[state] in (FORCE, ALLOW)
        if edits[state] == FORCE:
            tokens, first, end = operands, state, state + 1
        elif is_limited:
            tokens, operand = set_tokens, operands[state]
            first, end = set_ends[operand], set_ends[operand + 1]
        if on_entry[state] == 0 and timeout[state] >= 0:  # it is left at once
            is_limited, end = True, first
        for at in range(first, end + 2):
            target, token = timeout[state], tokens[at] if at < end else OTHER
            if at <= end:
                if (at == end and is_limited) or find_token(never, 0, len(never), token) >= 0:
                    continue
                advance(columns, here, token, after)
                target = after[0, 0]
            if target >= 0 and not is_reached[target]:
                is_reached[target] = True
                waiting[left] = target
                left += 1
    states = len(edits)
    return is_reached & ((on_entry[:states] != 0) | (timeout[:states] < 0))
