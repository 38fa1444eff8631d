"""The loops that follow all automata of a request together, while tokens are determined."""

from typing import Any

import numpy as np

from ..automaton import BAN_BIAS, NO_TIMER, Edit
from ..automaton.folding import enter, settle, take
from ..loops import loop, part_of_loops

MAX_WORK = 1 << 16
"""The most work of all searches of a request: a unit for each automaton and token that is tried. A
request's choices may have half as many tokens."""
MAX_RULE_WORK = 1 << 11
"""The most work of a search beside rules about n-grams, where no state comes again."""
MAX_DEPTH = 1 << 14
"""The most steps of a way."""
LONG = 1 << 30
"""Timers from here on count as stopped: no request is so long."""

OTHER = -2
"""A token that no automaton waits for and no set has."""

POSSIBLE, LOST, UNDECIDED = range(3)

FREE, FORCE, ALLOW, ADD, BAN_OTHERS = map(
    int, (Edit.FREE, Edit.FORCE, Edit.ALLOW, Edit.ADD, Edit.BAN_OTHERS)
)
BAN = np.float32(BAN_BIAS / 2)


@part_of_loops
def find_token(tokens: Any, first: int, end: int, wanted: int) -> int:
    """Return the index of a token in an ascending range, or -1."""
    while first < end:
        half = (first + end) >> 1
        if tokens[half] < wanted:
            first = half + 1
        elif tokens[half] > wanted:
            end = half
        else:
            return half
    return -1


@loop
def refuses(
    edits: Any,
    operands: Any,
    set_ends: Any,
    set_tokens: Any,
    set_values: Any,
    state: int,
    token: int,
) -> bool:
    """Return whether a state bans a token, does not allow it, or forces another one."""
    edit, operand = edits[state], operands[state]
    if edit == FREE:
        return False
    if edit == FORCE:
        return operand != token
    at = find_token(set_tokens, set_ends[operand], set_ends[operand + 1], token)
    if edit == ADD:
        return at >= 0 and set_values[at] < BAN
    return at < 0


@loop
def repeats(
    taken: Any, positions: Any, length: int, token: int, n: int, window: int, exempt: Any
) -> bool:
    """Return whether a token would complete an n-gram for the second time."""
    if length < n - 1 or find_token(exempt, 0, len(exempt), token) >= 0:
        return False
    oldest = positions[length] - window
    for end in range(length - 1, n - 2, -1):
        if positions[end - n + 1] < oldest:
            break
        if taken[end] != token:
            continue
        same = True
        for back in range(1, n):
            one = taken[end - back]
            if one == OTHER or one != taken[length - back]:
                same = False
                break
        if same:
            return True
    return False


@loop
def follow(
    columns: Any,
    start_states: Any,
    start_timers: Any,
    ends: Any,
    vocab_size: int,
    exempt: Any,
    exempt_ends: Any,
    windows: Any,
    offering: int,
    left: Any,
) -> tuple[int, int, int, int]:
    """Look for a way on which all automata and rules are obeyed, as far as it is determined.

    A forced token is followed, and those of a list one after the other. So is a token without an
    edge where no automaton has one. Where the model is free, all may be obeyed.

    Args:
        columns: the tables of all automata, as ``Ways`` lists them.
        start_states: ``[automata]``, where they begin, numbered through the tables.
        start_timers: ``[automata]``, their timers.
        ends: tokens after which the request may be over, ascending.
        vocab_size: the number of tokens; -1 if it is not known.
        exempt: tokens that a rule may repeat, rule after rule, ascending.
        exempt_ends: ``[rules + 1]``, where they end, after a leading 0.
        windows: ``[rules, 2]``, each rule's n and its window.
        offering: the index of an automaton, all of whose ways are followed as long as it forces or
            allows tokens, instead of any one way; -1 for none.
        left: ``[1]``, the work that is left for all searches of a request; lowered.

    Returns:
        Whether there is a way, or all ways that are offered can be gone: ``POSSIBLE``, ``LOST`` or
        ``UNDECIDED``. Then the first step that leaves no token: the index of the automaton that
        forces or offers, or -1; a bit for each part that refuses; the forced token or -1.
    """
    (default_target, is_failure_link, edge_ends, edge_tokens, targets, on_entry, timeout) = columns[
        :7
    ]
    edits, operands, set_ends, set_tokens, set_values = columns[7:]
    count, rules = len(start_states), len(windows)
    states = np.empty((MAX_DEPTH, count), np.int32)
    timers = np.empty((MAX_DEPTH, count), np.int32)
    tried = np.zeros(MAX_DEPTH, np.bool_)
    cursor = np.zeros(MAX_DEPTH, np.int64)
    taken = np.zeros(MAX_DEPTH, np.int64)
    positions = np.zeros(MAX_DEPTH, np.int64)
    after, timers_after = np.empty(count, np.int32), np.empty(count, np.int32)
    found, found_mask, found_token = -1, 0, -1
    states[0], timers[0] = start_states, start_timers
    depth, work = 0, MAX_RULE_WORK if rules else MAX_WORK
    while depth >= 0:
        # Which token comes next?
        forcing, allowing, smallest, edited, has_edge = -1, -1, 1 << 62, rules * depth, False
        for j in range(count):
            state = states[depth, j]
            edit = edits[state]
            if edit == FORCE:
                if forcing < 0:
                    forcing = j
            elif edit != FREE:
                size = set_ends[operands[state] + 1] - set_ends[operands[state]]
                if edit != ADD:
                    if size < smallest:
                        allowing, smallest = j, size
                else:
                    edited += size
            while True:
                has_edge |= edge_ends[state + 1] > edge_ends[state]
                if not is_failure_link[state]:
                    break
                state = default_target[state]
        if offering >= 0:
            own = edits[states[depth, offering]]
            if own == FORCE:
                forcing = offering
            elif own != ALLOW:
                depth -= 1
                continue
            elif forcing < 0:
                allowing = offering
        is_free = forcing < 0 and allowing < 0
        may_edit_all = is_free and 0 <= vocab_size <= edited + len(ends)
        if is_free and has_edge and not may_edit_all:
            return POSSIBLE, -1, 0, -1
        token, is_over = -1, False
        while token == -1 and not is_over:
            cost = count + rules * (1 + depth // 32)
            work -= cost
            left[0] -= cost
            if work < 0 or left[0] < 0:
                return UNDECIDED, found, found_mask, found_token
            c: Any = cursor[depth]
            cursor[depth] += 1
            if forcing >= 0:
                is_over = c > 0
                if not is_over:
                    token = operands[states[depth, forcing]]
            elif allowing >= 0:
                operand = operands[states[depth, allowing]]
                at = set_ends[operand] + c
                is_over = at >= set_ends[operand + 1]
                if not is_over:
                    token = set_tokens[at]
            elif may_edit_all:
                is_over = c >= vocab_size
                if not is_over:
                    token = c
            else:
                is_over = c > 0
                if not is_over:
                    token = OTHER
            if is_over or token == OTHER:
                break
            # A token that ends the request counts only where no other is left.
            is_end = find_token(ends, 0, len(ends), token) >= 0
            if is_end and forcing < 0:
                token = -1
                continue
            for j in range(count):
                state = states[depth, j]
                if refuses(edits, operands, set_ends, set_tokens, set_values, state, token):
                    token = -1
                    break
            for r in range(rules):
                if token != -1 and repeats(
                    taken,
                    positions,
                    depth,
                    token,
                    windows[r, 0],
                    windows[r, 1],
                    exempt[exempt_ends[r] : exempt_ends[r + 1]],
                ):
                    token = -1
            if token != -1 and is_end:
                if offering == -1:
                    return POSSIBLE, -1, 0, -1
                is_over, tried[depth], token = True, True, -1
        if is_over:
            if not tried[depth] and forcing < 0:
                for end in ends:
                    is_left = True
                    for j in range(count):
                        state = states[depth, j]
                        if refuses(edits, operands, set_ends, set_tokens, set_values, state, end):
                            is_left = False
                    if is_left:
                        if offering == -1:
                            return POSSIBLE, -1, 0, -1
                        tried[depth] = True
            if not tried[depth]:
                part = forcing if forcing >= 0 else allowing
                if found < 0 and found_mask == 0:
                    found = part
                    if forcing >= 0:
                        found_token = operands[states[depth, forcing]]
                    found_mask = _refusers(columns, states[depth], part, found_token, count, rules)
                # That rules leave no token of a list depends on the tokens chosen before.
                if offering >= 0 and part == offering and (forcing >= 0 or rules == 0):
                    return LOST, found, found_mask, found_token
            depth -= 1
            continue
        if may_edit_all:
            return POSSIBLE, -1, 0, -1
        tried[depth] = True
        # Where does it lead?
        is_same, least = token == OTHER, LONG
        for j in range(count):
            state = take(
                default_target,
                is_failure_link,
                edge_ends,
                edge_tokens,
                targets,
                states[depth, j],
                token,
            )
            timer = enter(on_entry[state], timers[depth, j])
            state, timer = settle(on_entry, timeout, state, timer)
            after[j], timers_after[j] = state, NO_TIMER if timer > LONG else timer
            if state != states[depth, j] or timers_after[j] > timers[depth, j]:
                is_same = False
            elif timers_after[j] < timers[depth, j]:
                least = min(least, timers_after[j])
        if offering >= 0 and forcing < 0 and after[offering] == states[depth, offering]:
            continue  # a list that stays offers no answer
        passed = 1
        if is_same and 1 < least < LONG:  # the next steps are the same, until a timer is due
            for j in range(count):
                if timers_after[j] < timers[depth, j]:
                    timers_after[j] -= least - 1
            passed += least - 1
        elif is_same and least == LONG:  # nothing changes any more
            return POSSIBLE, -1, 0, -1
        if depth >= MAX_DEPTH - 1:
            return UNDECIDED, found, found_mask, found_token
        taken[depth], positions[depth + 1] = token, positions[depth] + passed
        depth += 1
        states[depth], timers[depth] = after, timers_after
        cursor[depth], tried[depth] = 0, False
    if offering != -1:
        return POSSIBLE, -1, 0, -1
    return LOST, found, found_mask, found_token


@loop
def _refusers(columns: Any, states: Any, part: int, token: int, count: int, rules: int) -> int:
    """Return a bit for each part that refuses the forced token, or any token that is offered."""
    edits, operands, set_ends, set_tokens, set_values = columns[7:]
    mask = 0
    for j in range(count):
        if j == part or edits[states[j]] == FREE:
            continue
        is_refusing = part < 0
        if token >= 0:
            is_refusing = refuses(
                edits, operands, set_ends, set_tokens, set_values, states[j], token
            )
        elif part >= 0:
            operand = operands[states[part]]
            for at in range(set_ends[operand], set_ends[operand + 1]):
                if refuses(
                    edits, operands, set_ends, set_tokens, set_values, states[j], set_tokens[at]
                ):
                    is_refusing = True
                    break
        if is_refusing:
            mask |= 1 << min(j, 62)
    if mask == 0 and rules > 0:
        mask = 1 << min(count, 62)
    return mask
