"""How the automata of a request move: token by token, and from phase to phase.

One loop moves them at a step and along an output that comes again. A prompt has a loop of its own,
because it has no time-outs and ends no phase. A request's automata lie in the order of its specs,
those of a phase side by side. While another phase acts, an automaton is in state 0 of the tables,
which edits nothing and which no token leaves.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ..loops import loop, part_of_loops
from .automaton import CARRY, CLEAR, NO_TIMER, TARGETS, UNKNOWN, Edit

_FEW = 8
"""So many edges are searched one by one, which the processor does ahead of time."""

Tokens = npt.NDArray[np.int32]

FORCE, MOVE = int(Edit.FORCE), int(Edit.MOVE)
TAKEN = np.iinfo(np.int32).min
"""In place of a token: there is none to take."""

BASE, PHASE, END, STATE, TIMER = range(FIELDS := 5)
"""Rows of ``lanes``: where each automaton starts in the tables, the numbers of its ``Lane``, its
state in the tables, and its timer."""
COUNT, PHASES, LENGTH, NEWEST, FAILED = range(5)
"""Rows of ``numbers``: how many automata, phases and tokens a request has, the token to take, and
whether a token was not known that decides a state."""
_NEVER = NO_TIMER
NO_TOKENS = np.zeros(0, np.int32)


@part_of_loops
def enter(on_entry: int, timer: int) -> int:
    """Return the timer after a token has led to a state that has ``on_entry``."""
    if on_entry == CARRY:
        return max(timer - 1, 0)
    if on_entry >= 0:
        return on_entry
    return NO_TIMER if on_entry == CLEAR else timer


@part_of_loops
def settle(on_entry: Any, timeout: Any, state: int, timer: int) -> tuple[int, int]:
    """Take the time-outs that are due; return the state and the timer."""
    while timer == 0 and timeout[state] >= 0:
        state = timeout[state]
        timer = enter(on_entry[state], timer)
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
def step(
    tables: Any,
    lanes: Any,
    since: Any,
    numbers: Any,
    first: int,
    end: int,
    output: Any,
    pauses: bool,
) -> bool:
    """Let the automata of requests take tokens, with due time-outs, and end phases.

    Args:
        tables: see ``AutomatonPool``.
        lanes: ``[5, requests, most automata]``, see ``BASE``; states and timers are changed.
        since: ``[requests, most phases]``, how many tokens, with the prompt's, came before each
            phase, or -1 if it does not act; changed.
        numbers: ``[5, requests]``, see ``COUNT``; changed.
        first: the first of the requests.
        end: the end of the requests.
        output: the tokens that each of them takes. If there are none, each takes its newest, unless
            that is ``TAKEN``. ``UNKNOWN`` stands for the one that was forced.
        pauses: whether to leave the tokens after one that may have ended a phase.

    Returns:
        Whether any request has failed.
    """
    edits, flags, columns, edges = tables
    links, branches, ends, tokens, targets = flags[0], flags[1], columns[4], edges[0], edges[1]
    operands, default, on_entry, timeout = columns[0], columns[1], columns[2], columns[3]
    states, timers, is_complete = lanes[STATE], lanes[TIMER], flags[2]
    any_failed = may_end = False
    for i in range(first, end):
        count, phases, length = numbers[COUNT, i], numbers[PHASES, i], numbers[LENGTH, i]
        for t in range(max(len(output), 1)):
            token = output[t] if len(output) else numbers[NEWEST, i]
            if token == TAKEN:
                break
            length += 1
            if token == UNKNOWN:
                for k in range(count):
                    if edits[states[i, k]] == MOVE:  # for an end that is forced, another comes
                        token = UNKNOWN
                        break
                    if edits[states[i, k]] == FORCE and token == UNKNOWN:
                        token = operands[states[i, k]]
            for k in range(count):
                state, timer = states[i, k], timers[i, k]
                if state == 0:
                    continue
                if token == UNKNOWN and branches[state]:
                    numbers[FAILED, i] = any_failed = True
                    break
                state = take(default, links, ends, tokens, targets, state, token)
                timer = enter(on_entry[state], timer)
                states[i, k], timers[i, k] = settle(on_entry, timeout, state, timer)
                may_end |= is_complete[states[i, k]]
            if numbers[FAILED, i]:
                break
            if may_end and phases > 1:
                may_end = False
                end_phases(flags, columns, lanes, since, i, count, phases, length)
                if pauses:
                    break
        numbers[LENGTH, i], numbers[NEWEST, i] = length, TAKEN
    return any_failed


@loop
def begin(tables: Any, lanes: Any, since: Any, i: int, count: int) -> None:
    """Let the automata of a request begin, in the phases that act, before any token."""
    on_entry = tables[2][2]
    for k in range(count):
        lanes[STATE, i, k], lanes[TIMER, i, k] = 0, NO_TIMER
        if since[i, lanes[PHASE, i, k]] >= 0:
            lanes[STATE, i, k] = lanes[BASE, i, k]
            lanes[TIMER, i, k] = enter(on_entry[lanes[BASE, i, k]], NO_TIMER)


@loop
def read_prompt(tables: Any, lanes: Any, i: int, k: int, prompt: Any) -> bool:
    """Let one automaton read a prompt, without time-outs; return whether its tokens are known."""
    _, flags, columns, edges = tables
    links, branches, ends, tokens, targets = flags[0], flags[1], columns[4], edges[0], edges[1]
    default, on_entry, state, timer = columns[1], columns[2], lanes[STATE, i, k], lanes[TIMER, i, k]
    for token in prompt:
        if token == UNKNOWN and branches[state]:
            return False
        state = take(default, links, ends, tokens, targets, state, token)
        timer = enter(on_entry[state], timer)
    lanes[STATE, i, k], lanes[TIMER, i, k] = state, timer
    return True


@loop
def begin_output(
    tables: Any, lanes: Any, since: Any, i: int, count: int, phases: int, position: int
) -> None:
    """Take the time-outs that are due before the first token of an output, and end phases."""
    columns = tables[2]
    for k in range(count):
        state, timer = settle(columns[2], columns[3], lanes[STATE, i, k], lanes[TIMER, i, k])
        lanes[STATE, i, k], lanes[TIMER, i, k] = state, timer
    end_phases(tables[1], columns, lanes, since, i, count, phases, position)


@loop
def end_phases(
    flags: Any,
    columns: Any,
    lanes: Any,
    since: Any,
    i: int,
    count: int,
    phases: int,
    position: int,
) -> None:
    """Let the phases begin that follow those of a request that are over, after so many tokens."""
    on_entry, timeout = columns[2], columns[3]
    for phase in range(1, phases):
        target = -1
        if since[i, phase] >= 0:
            target = find_end(flags[2], lanes, i, count, phase)
        if target >= 0:
            since[i, phase] = -1
            since[i, target] = position
            for k in range(count):
                if lanes[PHASE, i, k] == target:
                    state = lanes[BASE, i, k]
                    timer = enter(on_entry[state], NO_TIMER)
                    state, timer = settle(on_entry, timeout, state, timer)
                    lanes[STATE, i, k], lanes[TIMER, i, k] = state, timer
                elif lanes[PHASE, i, k] == phase:
                    lanes[STATE, i, k], lanes[TIMER, i, k] = 0, NO_TIMER


@loop
def find_end(is_complete: Any, lanes: Any, i: int, count: int, phase: int) -> int:
    """Return the phase that follows one that is over, or -1.

    The first of its ends counts that has come. A shared end has come when all of its automata are
    complete.
    """
    first, is_lacking = _NEVER, False
    for k in range(count):
        if lanes[PHASE, i, k] == phase and lanes[END, i, k] & 1:
            is_lacking |= not is_complete[lanes[STATE, i, k]]
    for k in range(count):
        end = lanes[END, i, k]
        is_over = lanes[PHASE, i, k] == phase and end > 0 and is_complete[lanes[STATE, i, k]]
        if is_over and not (end & 1 and is_lacking):
            first = min(first, end)
    return first // 2 % TARGETS if first < _NEVER else -1
