"""How the automata of a request move: token by token, and from phase to phase.

One loop moves them wherever they move: at a step, along a prompt, and along an output that comes
again. A request's automata lie in the order of its specs, those of a phase side by side. While
another phase acts, an automaton is in state 0 of the tables, which edits nothing and which no token
leaves.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ..loops import loop, part_of_loops
from .automaton import CARRY, CLEAR, NO_TIMER, TARGETS, UNKNOWN, Edit

_FEW = 8
"""So many edges are searched one by one, which the processor does ahead of time."""

Tokens = npt.NDArray[np.int32]

FORCE = int(Edit.FORCE)
TAKEN = np.iinfo(np.int32).min
"""In place of a token: there is none to take."""

BASE, PHASE, END = range(3)
"""Rows of ``lanes``: where each automaton starts in the tables, and the numbers of its ``Lane``."""
_NEVER = NO_TIMER


@part_of_loops
def enter(on_entry: int, timer: int) -> int:
    """Return the timer after a token has led to a state that has ``on_entry``."""
    if on_entry == CARRY:
        return max(timer - 1, 0)
    if on_entry >= 0:
        return on_entry
    return NO_TIMER if on_entry == CLEAR else timer


@loop
def settle(timers: Any, timeout: Any, state: int, timer: int) -> tuple[int, int]:
    """Take the time-outs that are due; return the state and the timer."""
    while timer == 0 and timeout[state] >= 0:
        state = timeout[state]
        timer = enter(timers[state], timer)
    return state, timer


@part_of_loops
def take(
    default_target: Any,
    is_failure_link: Any,
    edge_ends: Any,
    edge_tokens: Any,
    targets: Any,
    state: int,
    token: int,
) -> int:
    """Return the state after a token: along its edge, a failure link, or the default."""
    following = -1
    while following < 0:
        first, end = edge_ends[state], edge_ends[state + 1]
        left = end - first
        while left > _FEW:
            half = (left + 1) >> 1
            if edge_tokens[first + half - 1] < token:
                first += half
            left -= half
        for edge in range(first, min(first + left + 1, end)):
            if edge_tokens[edge] == token:
                following = targets[edge]
                break
        if following < 0:
            if not is_failure_link[state]:
                following = default_target[state]
            state = default_target[state]
    return following


@loop
def begin(tables: Any, lanes: Any, states: Any, timers: Any, since: Any) -> None:
    """Let the automata of each phase that acts begin, before any token."""
    on_entry = tables[2][2]
    for k in range(len(states)):
        states[k], timers[k] = 0, NO_TIMER
        if since[lanes[PHASE, k]] >= 0:
            states[k] = lanes[BASE, k]
            if on_entry[states[k]] >= 0:
                timers[k] = on_entry[states[k]]


@loop
def step(
    tables: Any, lanes: Any, states: Any, timers: Any, since: Any, token: int, position: int
) -> bool:
    """Let the automata of a request take a token, with due time-outs, and end phases.

    Args:
        tables: see ``AutomatonPool``.
        lanes: ``[3, automata]``, see ``BASE``.
        states: ``[automata]``, their states in the tables; changed.
        timers: ``[automata]``; changed.
        since: ``[phases]``, how many tokens, with the prompt's, came before each phase, or -1 if it
            does not act; changed.
        token: the token. ``UNKNOWN`` stands for the one that was forced. ``TAKEN`` stands for none:
            only time-outs and phases are looked at.
        position: the number of tokens with this one.

    Returns:
        Whether the token is known, if it decides a state.
    """
    edits, flags, columns, edges = tables
    links, branches, ends, tokens, targets = flags[0], flags[1], columns[4], edges[0], edges[1]
    operands, default, on_entry, timeout = columns[0], columns[1], columns[2], columns[3]
    if token == UNKNOWN:
        for k in range(len(states)):
            if edits[states[k]] == FORCE:
                token = operands[states[k]]
                break
    for k in range(len(states)):
        state, timer = states[k], timers[k]
        if token != TAKEN:
            if token == UNKNOWN and branches[state]:
                return False
            state = take(default, links, ends, tokens, targets, state, token)
            timer = enter(on_entry[state], timer)
        states[k], timers[k] = settle(on_entry, timeout, state, timer)
    for phase in range(1, len(since)):
        if since[phase] >= 0:
            target = find_end(flags[2], lanes, states, phase)
            if target >= 0:
                since[phase] = -1
                since[target] = position
                for k in range(len(states)):
                    if lanes[PHASE, k] == phase:
                        states[k], timers[k] = 0, NO_TIMER
                    if lanes[PHASE, k] == target:
                        state, timer = lanes[BASE, k], NO_TIMER
                        if on_entry[state] >= 0:
                            timer = on_entry[state]
                        states[k], timers[k] = settle(on_entry, timeout, state, timer)
    return True


@loop
def find_end(is_complete: Any, lanes: Any, states: Any, phase: int) -> int:
    """Return the phase that follows one that is over, or -1.

    The first of its ends counts that has come. A shared end has come when all of its automata are
    complete.
    """
    first, is_lacking = _NEVER, False
    for k in range(len(states)):
        end = lanes[END, k]
        if lanes[PHASE, k] == phase and end & 1:
            is_lacking |= not is_complete[states[k]]
    for k in range(len(states)):
        end = lanes[END, k]
        is_over = lanes[PHASE, k] == phase and end > 0 and is_complete[states[k]]
        if is_over and not (end & 1 and is_lacking):
            first = min(first, end)
    return first // 2 % TARGETS if first < _NEVER else -1


@loop
def read_prompt(tables: Any, states: Any, timers: Any, k: int, prompt: Any) -> bool:
    """Let one automaton read a prompt, without time-outs; return whether its tokens are known."""
    _, flags, columns, edges = tables
    state, timer = states[k], timers[k]
    for token in prompt:
        if token == UNKNOWN and flags[1][state]:
            return False
        state = take(columns[1], flags[0], columns[4], edges[0], edges[1], state, token)
        timer = enter(columns[2][state], timer)
    states[k], timers[k] = state, timer
    return True


@loop
def read(
    tables: Any, lanes: Any, states: Any, timers: Any, since: Any, output: Any, position: int
) -> bool:
    """Let the automata read an output after so many tokens; return whether all are known."""
    for token in output:
        position += 1
        if not step(tables, lanes, states, timers, since, token, position):
            return False
    return True
