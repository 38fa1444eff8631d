"""Tokens that an automaton forces, lists or refuses, in any of its states or in each of them.

A forced text is followed through another automaton from all states of that: what these refuse of
the text is certain, whatever comes before it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..automaton import NO_TIMER, Automaton
from ..automaton.arrays import TOKEN, distinct
from ..automaton.automaton import TARGETS
from ..automaton.pool import AutomatonPool, sizes_of
from ..automaton.steps import FAILED, STATE, TIMER, step, take
from ..loops import loop
from ..parts import Program
from .follow import ADD, ALLOW, BAN, BAN_OTHERS, FORCE, FREE, MOVE, OTHER, find_token, is_refused

Contradiction = tuple[int, Sequence[int], int]
"""A step that leaves no token: the automaton that forces or lists tokens, or -1; those that refuse
these; and the forced token, or -1.
"""


def tables_of(automata: Sequence[Automaton]) -> tuple[AutomatonPool, Any]:
    """Return the tables of automata, and the first state of each."""
    pool = AutomatonPool(sizes_of(automata))
    return pool, np.array([pool.base_of(each) for each in automata], np.int32)


def is_any(automaton: Automaton, *edits: int) -> bool:
    """Whether an automaton makes one of some edits in any of its states."""
    return any((automaton.edit == edit).any() for edit in edits)


def offered_by(automaton: Automaton) -> Any:
    """Return the tokens that an automaton forces or allows in some state."""
    is_allowed = np.zeros(len(automaton.set_ends), np.bool_)
    is_allowed[automaton.operand[automaton.edit == ALLOW]] = True
    listed = automaton.set_tokens[np.repeat(is_allowed, automaton.set_sizes)]
    return np.append(forced_by(automaton), listed)


def forced_by(automaton: Automaton, *among: Any) -> Any:
    """Return the tokens that an automaton forces in some states, or that it moves mass to."""
    forced = automaton.operand[np.logical_and.reduce([automaton.edit == FORCE, *among])]
    moved = automaton.operand[np.logical_and.reduce([automaton.edit == MOVE, *among])]
    if not len(moved):
        return forced
    is_moved = np.isin(np.arange(len(automaton.set_ends)), moved)
    is_first = np.repeat(is_moved, automaton.set_sizes) & (automaton.set_values > 0)
    return np.append(forced, automaton.set_tokens[is_first])


def find_used(program: Program) -> Contradiction | None:
    """Find a token that one automaton forces or offers, and that another moves mass to.

    It has no other use before.
    """
    lanes = program.lanes
    for i, (moving, phase, _) in enumerate(lanes):
        firsts = forced_by(moving, moving.edit == MOVE)
        for k, (each, other, _) in enumerate(lanes if len(firsts) else ()):
            edges = (each.keys & TOKEN)[each.edit[each.keys >> 32] == ALLOW]
            used = np.intersect1d(firsts, np.append(each.operand[each.edit == FORCE], edges))
            if i != k and len(used) and program.act_together(phase, other):
                return k, (i,), int(used[0])
    return None


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
    if is_any(automaton, FREE, FORCE, MOVE):
        return np.zeros(len(tokens), np.bool_)
    return refusals(automaton, tokens) == automaton.states


def find_forced(
    program: Program, guard: Sequence[Automaton] | None, ends: Any, left: Any
) -> Contradiction | None:
    """Find a token that an automaton forces, and that another one refuses there, in any case.

    It does so in each of its states, or in each that the text's tokens before lead to. The others
    are those of the program that act at the same steps, or those of a guard. After one of ``ends``,
    the request may be over. The ``others`` of what is found are indices of automata. ``left`` is
    the work that is left, as for ``follow``.
    """
    lanes, all_forced = program.lanes, [forced_by(each) for each in program.automata]
    refusing = program.automata if guard is None else guard
    forced = distinct(np.concatenate([*all_forced, np.zeros(0, np.int32)]))
    suspects = [refusals(each, forced).any() for each in refusing]
    if not any(suspects):
        return None
    is_reached = _reach_phases(program, ends)
    for i, (automaton, phase, _) in enumerate(lanes):
        if not len(all_forced[i]) or not is_reached[phase]:
            continue
        beside = [
            (k, each)
            for k, each in enumerate(refusing)
            if each is not automaton and (guard is not None or lanes[k].phase in (0, phase))
        ]
        never = ends
        if not automaton.reads_prompt:  # a prompt may have any tokens
            tokens = distinct(np.append(automaton.keys & TOKEN, automaton.set_tokens))
            never = np.concatenate([never, *(tokens[refused(each, tokens)] for _, each in beside)])
        reached = reach(automaton, distinct(never))
        forced = distinct(forced_by(automaton, reached))
        for k, each in beside if len(forced) else ():
            if not suspects[k] or not refusals(each, forced).any():
                continue
            if (mask := refused(each, forced)).any():
                return i, (k,), int(forced[mask][0])
            if each.states > 1 and not is_any(each, FORCE, MOVE) and (each.timeout < 0).all():
                pool, (text, first) = tables_of((automaton, each))
                sets = pool.set_ends, pool.set_tokens, pool.set_values
                of_other = int(first), int(first) + each.states
                token = find_in_texts(pool.tables, sets, int(text), reached, *of_other, ends, left)
                if token >= 0:
                    return i, (k,), token
    return None


@loop
def find_in_texts(
    tables: Any, sets: Any, text: int, reached: Any, first: int, end: int, ends: Any, left: Any
) -> int:
    """Find a token of a forced text that an automaton refuses after those before it.

    Args:
        tables: the tables of both automata, see ``steps.step``.
        sets: see ``follow``.
        text: the first state of the automaton that forces texts.
        reached: ``[states]``, which of its states are reached.
        first: the first state of the other automaton, which has no time-outs.
        end: the end of its states.
        ends: tokens after which the request may be over, ascending.
        left: ``[1]``, the work that is left; lowered.

    Returns:
        The token, or -1.
    """
    edits, flags, columns, edges = tables
    links, operands, default, edge_ends = flags[0], columns[0], columns[1], columns[4]
    every: Any = np.arange(first, end).astype(np.int32)
    refusing = np.zeros(end - first, np.bool_)
    is_followed, seen = np.zeros(len(reached), np.bool_), np.zeros(end - first, np.int32)
    for start in range(len(reached)):
        state, here = text + start, every[:0]
        while edits[state] in (FORCE, MOVE) and reached[state - text]:
            if is_followed[state - text]:
                break
            is_followed[state - text] = True
            if state == text + start:
                here = every.copy()
            left[0] -= len(here)
            if left[0] < 0:
                return -1
            token = operands[state]
            if edits[state] == MOVE:
                at = sets[0][token]
                while sets[2][at] == 0:
                    at += 1
                token = sets[1][at]
            refusing[:] = False
            is_refused(tables, sets, here, token, refusing)
            if refusing[: len(here)].all():
                return token
            if find_token(ends, 0, len(ends), token) >= 0:
                break
            count = 0
            for each in here:  # where does the token lead? Each state once
                after = take(default, links, edge_ends, edges[0], edges[1], each, token)
                if seen[after - first] != state:
                    seen[after - first] = state
                    here[count] = after
                    count += 1
            here = here[:count]
            state = take(default, links, edge_ends, edges[0], edges[1], state, token)
    return -1


def _reach_phases(program: Program, ends: Any) -> list[bool]:
    """Mark the phases that a request may come to, by the tokens that never come in all of them."""
    always = [each for each, phase, _ in program.lanes if not phase]
    is_reached, waiting = [each == 0 for each in program.since], True
    while waiting:
        waiting = False
        for automaton, phase, end in program.lanes:
            target = end // 2 % TARGETS
            if end and is_reached[phase] and not is_reached[target]:
                tokens = distinct((automaton.keys & TOKEN).astype(np.int32))
                never = [ends, *(tokens[refused(each, tokens)] for each in always)]
                reached = reach(automaton, distinct(np.concatenate(never)))
                if automaton.reads_prompt or (reached & automaton.is_complete).any():
                    is_reached[target] = waiting = True
    return is_reached


def reach(automaton: Automaton, never: Any) -> Any:
    """Mark the states in which an automaton may edit, if some ascending tokens never come."""
    pool, bases = tables_of((automaton,))
    of_sets = pool.set_ends, pool.set_tokens
    return reach_states(pool.tables, *of_sets, int(bases[0]), never)[1:]


@loop
def reach_states(tables: Any, set_ends: Any, set_tokens: Any, base: int, never: Any) -> Any:
    """Mark the states of the only automaton in tables; see ``reach``."""
    edits, _, columns, edges = tables
    operands, on_entry, timeout, edge_ends = columns[0], columns[2], columns[3], columns[4]
    here, since = np.zeros((5, 1, 1), np.int32), np.zeros((1, 1), np.int32)
    numbers, newest = np.ones((5, 1), np.int32), np.zeros(1, np.int32)
    is_reached = np.zeros(len(edits), np.bool_)
    waiting, left = np.zeros(len(edits), np.int32), 1
    is_reached[base], waiting[0] = True, base
    while left > 0:
        left -= 1
        state = waiting[left]
        tokens, first, end = edges[0], edge_ends[state], edge_ends[state + 1]
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
                here[STATE], here[TIMER] = state, NO_TIMER
                newest[0], numbers[FAILED] = token, 0
                step(tables, here, since, numbers, 0, 1, newest, False)
                target = here[STATE, 0, 0]
            if target >= 0 and not is_reached[target]:
                is_reached[target] = True
                waiting[left] = target
                left += 1
    states = len(edits)
    return is_reached & ((on_entry[:states] != 0) | (timeout[:states] < 0))
