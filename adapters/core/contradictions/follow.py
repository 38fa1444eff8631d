"""The loop that follows all automata of a request together, while the tokens are determined."""

from typing import Any

import numpy as np

from ..automaton import BAN_BIAS, NO_TIMER, Edit
from ..automaton.steps import COUNT, PHASES, STATE, TIMER, begin, begin_output, step
from ..loops import loop, part_of_loops

MAX_WORK = 1 << 16
"""The most work for a request: a unit for each automaton and token that is compared. The choices
of a request may have half as many tokens."""
MAX_DEPTH = 1 << 14
"""The most steps that are followed."""
LONG = 1 << 30
"""Timers from here on count as stopped: no request is so long."""

OTHER = -2
"""A token that no automaton has an edge for, and no set."""
NOT_FOUND = -2

FREE, FORCE, ALLOW, ADD, BAN_OTHERS, MOVE = map(
    int, (Edit.FREE, Edit.FORCE, Edit.ALLOW, Edit.ADD, Edit.BAN_OTHERS, Edit.MOVE)
)
BAN = np.float32(BAN_BIAS / 2)


@part_of_loops
def find_token(tokens: Any, first: int, end: int, wanted: int) -> int:
    """Return the index of a token in an ascending range, or -1."""
    at: Any = first + np.searchsorted(tokens[first:end], wanted)
    return at if at < end and tokens[at] == wanted else -1


@loop
def is_refused(tables: Any, sets: Any, here: Any, token: int, refusing: Any) -> bool:
    """Return whether a state bans a token, does not allow it, or forces another; mark which do."""
    edits, operands, (set_ends, set_tokens, set_values) = tables[0], tables[2][0], sets
    is_any = False
    for j in range(len(here)):
        edit, operand = edits[here[j]], operands[here[j]]
        refuses = edit == FORCE and operand != token
        if edit not in (FREE, FORCE, MOVE):
            at = find_token(set_tokens, set_ends[operand], set_ends[operand + 1], token)
            refuses = (at >= 0 and set_values[at] < BAN) if edit == ADD else at < 0
        if refuses:
            refusing[j] = is_any = True
    return is_any


@loop
def choose(tables: Any, set_ends: Any, here: Any, offering: int) -> tuple[int, bool, bool]:
    """Find the automaton whose tokens are compared: one that forces, or with the shortest list.

    Returns:
        Its index, -1 if there is none; whether it forces; and whether any automaton has an edge.
    """
    edits, operands, branches = tables[0], tables[2][0], tables[1][1]
    part, size, has_edge = -1, LONG, False
    for j in range(len(here)):
        state = here[j]
        edit, own = edits[state], 0
        if edit not in (FREE, FORCE, MOVE):
            own = set_ends[operands[state] + 1] - set_ends[operands[state]]
        if edit not in (FREE, ADD, MOVE) and own < size:
            part, size = j, own
        has_edge |= branches[state]
    if offering >= 0 and (size > 0 or edits[here[offering]] == FORCE):
        part = offering
    return part, part >= 0 and edits[here[part]] == FORCE, has_edge


@loop
def pass_steps(here: Any, after: Any) -> bool:
    """Let timers run down by as many steps as lead to the same states.

    Return whether anything still changes.
    """
    is_same, least = True, LONG
    for j in range(here.shape[1]):
        if after[TIMER, j] > LONG:
            after[TIMER, j] = NO_TIMER
        is_same &= after[STATE, j] == here[STATE, j] and after[TIMER, j] <= here[TIMER, j]
        if after[TIMER, j] < here[TIMER, j]:
            least = min(least, after[TIMER, j])
    for j in range(here.shape[1]):
        if is_same and least > 1 and after[TIMER, j] < here[TIMER, j]:
            after[TIMER, j] -= least - 1
    return not is_same or least < LONG


@loop
def follow(
    tables: Any,
    sets: Any,
    lanes: Any,
    begun: Any,
    ends: Any,
    vocab_size: int,
    offering: int,
    refusing: Any,
    left: Any,
) -> tuple[int, int]:
    """Look for a step that leaves no token, as long as the tokens are determined.

    A forced token is followed, and the only one that a list leaves. Where no automaton has an edge,
    any token leads to the same states. Elsewhere the model is free, and the search ends.

    Args:
        tables: the tables of all automata, see ``steps.step``.
        sets: the columns ``set_ends``, ``set_tokens`` and ``set_values`` of the tables.
        lanes: see ``steps.step``; the states are not read.
        begun: the phases that a request begins in, as ``since`` of ``steps.step``.
        ends: tokens after which the request may be over, ascending.
        vocab_size: the number of tokens if bans may leave none, otherwise 0.
        offering: the index of an automaton, all of whose answers are followed; -1 for none.
        refusing: ``[automata]``, set to what refuses a token at the step that is found.
        left: ``[1]``, the work that is left for all searches of a request; lowered.

    Returns:
        The index of the automaton that forces or lists tokens at this step, -1 if none does, and
        ``NOT_FOUND`` if there is no such step. Then the forced token, or -1.
    """
    operands, (set_ends, set_tokens, _) = tables[2][0], sets
    count, edits = lanes.shape[1], tables[0]
    way = np.empty((5, MAX_DEPTH + 1, count), np.int32)
    since = np.empty((MAX_DEPTH + 1, len(begun)), np.int32)
    numbers, newest = np.zeros((5, MAX_DEPTH + 1), np.int32), np.zeros(1, np.int32)
    numbers[COUNT], numbers[PHASES] = count, len(begun)
    cursor, every = np.empty(MAX_DEPTH, np.int64), np.arange(vocab_size).astype(np.int32)
    cursor[0], depth = 0, 0
    way[:, 0], since[0] = lanes, begun
    begin(tables, way, since, 0, count)
    begin_output(tables, way, since, 0, count, len(begun), 0)
    while 0 <= depth < MAX_DEPTH - 1:
        here, back = way[STATE, depth], depth - 1 if offering >= 0 else -1
        if offering >= 0 and edits[here[offering]] not in (FORCE, ALLOW):
            depth = back  # the answer is complete
            continue
        part, is_forced, has_edge = choose(tables, set_ends, here, offering)
        state = here[part]
        operand = operands[state]
        tokens, first, end = operands, state, state + 1
        if part < 0:
            tokens, first, end = every, 0, vocab_size
        elif not is_forced:
            tokens, first, end = set_tokens, set_ends[operand], set_ends[operand + 1]
        # Which of these tokens are left?
        is_first, is_over, found, token = cursor[depth] == 0, False, 0, OTHER
        if is_first:
            refusing[:] = False
        while first + cursor[depth] < end and found < 1 + (offering < 0):
            left[0] -= count
            if left[0] < 0:
                return NOT_FOUND, -1
            each: Any = tokens[first + cursor[depth]]
            cursor[depth] += 1
            is_left = not is_refused(tables, sets, here, each, refusing)
            if is_left and find_token(ends, 0, len(ends), each) >= 0:
                is_over = True  # counts where no other token is left
            elif is_left:
                found += 1
                token = each
        if end > first and found == 0:
            if is_first and not is_over and (offering < 0 or part == offering):
                return part, operand if is_forced else -1
            depth = back
            continue
        if offering < 0 and found != 1:
            if has_edge:
                break
            token = OTHER
        # Where does it lead?
        left[0] -= count
        after = way[:, depth + 1]
        after[:], since[depth + 1] = way[:, depth], since[depth]
        newest[0] = token
        step(tables, way, since, numbers, depth + 1, depth + 2, newest, False)
        if offering >= 0 and not is_forced and after[STATE, offering] == here[offering]:
            continue  # a list that stays offers no answer
        if not pass_steps(way[:, depth], after):
            depth = back
            continue
        depth += 1
        cursor[depth] = 0
    return NOT_FOUND, -1
