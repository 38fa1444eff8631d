"""The loops of the walk: searches in the states of all automata of a request together."""

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
MAX_EXPLORED = 1 << 13
"""The same where every way is followed."""
MAX_NODES = 1 << 14
"""The most different states of all automata together."""
LONG = 1 << 30
"""Timers from here on count as stopped: no request is so long."""

MAX_PROBES = 64
"""The most slots that are looked at for a node."""

EXPLORE = -2
"""Stands for ``offering`` where every way is followed, and a part that loses just loses."""

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
def search(
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
    """Search for a way on which all automata and rules are obeyed.

    Args:
        columns: the tables of all automata, as ``walk.Tables`` lists them.
        start_states: ``[automata]``, where they begin, numbered through the tables.
        start_timers: ``[automata]``, their timers.
        ends: tokens after which the request may be over, ascending.
        vocab_size: the number of tokens; -1 if it is not known.
        exempt: tokens that a rule may repeat, rule after rule, ascending.
        exempt_ends: ``[rules + 1]``, where they end, after a leading 0.
        windows: ``[rules, 2]``, each rule's n and its window.
        offering: the index of an automaton, all of whose ways are followed as long as it forces or
            allows tokens, instead of any one way; -1 for none. ``EXPLORE`` follows every way,
            also where a forced token or the first list is refused: those come, and others lose.
        left: ``[1]``, the work that is left for all searches of a request; lowered.

    Returns:
        Whether there is a way, or all ways that are offered can be gone: ``POSSIBLE``, ``LOST`` or
        ``UNDECIDED``. Then the first step that leaves no token: the index of the automaton that
        forces or offers, or -1; a bit for each part that refuses; the forced token or -1. With
        ``EXPLORE``, a bit for each automaton that loses in any step.
    """
    (default_target, is_failure_link, edge_ends, edge_tokens, targets, on_entry, timeout) = columns[
        :7
    ]
    edits, operands, set_ends, set_tokens, set_values = columns[7:]
    count, rules, explores = len(start_states), len(windows), offering == EXPLORE
    states = np.empty((MAX_NODES, count), np.int32)
    timers = np.empty((MAX_NODES, count), np.int32)
    tried = np.zeros(MAX_NODES, np.bool_)
    dead = np.zeros(MAX_NODES, np.bool_)
    cursor = np.zeros(MAX_NODES, np.int64)
    stack = np.zeros(MAX_NODES, np.int32)
    taken = np.zeros(MAX_NODES, np.int64)
    positions = np.zeros(MAX_NODES, np.int64)
    table = np.full(2 * MAX_NODES, -1, np.int32)
    after, timers_after = np.empty(count, np.int32), np.empty(count, np.int32)
    found, found_mask, found_token = -1, 0, -1
    states[0], timers[0] = start_states, start_timers
    if rules == 0:
        table[_slot(table, states, timers, start_states, start_timers)] = 0
    nodes, depth, work = 1, 0, MAX_RULE_WORK if rules else MAX_EXPLORED if explores else MAX_WORK
    while depth >= 0:
        node = stack[depth]
        # Which token comes next?
        forcing, allowing, first, smallest, edited = -1, -1, -1, 1 << 62, len(ends) + rules * depth
        for j in range(count):
            state = states[node, j]
            edit = edits[state]
            if edit == FORCE:
                if forcing < 0:
                    forcing = j
            elif edit != FREE:
                size = set_ends[operands[state] + 1] - set_ends[operands[state]]
                if edit != ADD:
                    if edit == ALLOW and first < 0:
                        first = j
                    if size < smallest:
                        allowing, smallest = j, size
                else:
                    edited += size
            while True:
                edited += edge_ends[state + 1] - edge_ends[state]
                if not is_failure_link[state]:
                    break
                state = default_target[state]
        if offering >= 0:
            own = edits[states[node, offering]]
            if own == FORCE:
                forcing = offering
            elif own != ALLOW:
                depth -= 1
                continue
            elif forcing < 0:
                allowing = offering
        if explores and dead[node]:
            allowing = first
        token, is_over = -1, False
        while token == -1 and not is_over:
            cost = count + rules * (1 + depth // 32)
            work -= cost
            left[0] -= cost
            if work < 0 or left[0] < 0:
                return UNDECIDED, found, found_mask, found_token
            c: Any = cursor[node]
            cursor[node] += 1
            if forcing >= 0:
                is_over = c > 0
                if not is_over:
                    token = operands[states[node, forcing]]
            elif allowing >= 0:
                operand = operands[states[node, allowing]]
                at = set_ends[operand] + c
                is_over = at >= set_ends[operand + 1]
                if not is_over:
                    token = set_tokens[at]
            elif vocab_size >= 0 and edited >= vocab_size:
                is_over = c >= vocab_size
                if not is_over:
                    token = c
            elif c == 0:
                token = OTHER
            else:
                c -= 1
                is_over = True
                for j in range(count):
                    state = states[node, j]
                    while is_over:
                        size = edge_ends[state + 1] - edge_ends[state]
                        if c < size:
                            token = edge_tokens[edge_ends[state] + c]
                            is_over = False
                        c -= size
                        if not is_failure_link[state]:
                            break
                        state = default_target[state]
            if is_over or token == OTHER:
                break
            # A token that ends the request counts only where no other is left.
            is_end = find_token(ends, 0, len(ends), token) >= 0
            if is_end and forcing < 0:
                token = -1
                continue
            for j in range(count):
                state = states[node, j]
                if refuses(edits, operands, set_ends, set_tokens, set_values, state, token):
                    if explores and (forcing >= 0 or dead[node]):
                        found_mask |= 1 << j
                        continue
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
                is_over, tried[node], token = True, True, -1
        if is_over:
            if not tried[node] and forcing < 0:
                for end in ends:
                    is_left = True
                    for j in range(count):
                        state = states[node, j]
                        if refuses(edits, operands, set_ends, set_tokens, set_values, state, end):
                            is_left = False
                    if is_left:
                        if offering == -1:
                            return POSSIBLE, -1, 0, -1
                        tried[node] = True
            if not tried[node]:
                if explores and first >= 0 and not dead[node]:  # the first list, whatever others do
                    dead[node], cursor[node] = True, 0
                    continue
                part = forcing if forcing >= 0 else allowing
                if explores:
                    found_mask |= _refusers(columns, states[node], -1, -1, count, 0)
                elif found < 0 and found_mask == 0:
                    found = part
                    if forcing >= 0:
                        found_token = operands[states[node, forcing]]
                    found_mask = _refusers(columns, states[node], part, found_token, count, rules)
                # That rules leave no token of a list depends on the tokens chosen before.
                if offering >= 0 and part == offering and (forcing >= 0 or rules == 0):
                    return LOST, found, found_mask, found_token
            dead[node] = True
            depth -= 1
            continue
        tried[node] = True
        # Where does it lead?
        is_same, least = token == OTHER, LONG
        for j in range(count):
            state = take(
                default_target,
                is_failure_link,
                edge_ends,
                edge_tokens,
                targets,
                states[node, j],
                token,
            )
            timer = enter(on_entry[state], timers[node, j])
            state, timer = settle(on_entry, timeout, state, timer)
            after[j], timers_after[j] = state, NO_TIMER if timer > LONG else timer
            if state != states[node, j] or timers_after[j] > timers[node, j]:
                is_same = False
            elif timers_after[j] < timers[node, j]:
                least = min(least, timers_after[j])
        if offering >= 0 and forcing < 0 and after[offering] == states[node, offering]:
            continue  # a list that stays offers no answer
        passed = 1
        if (
            is_same and 1 < least < LONG and not explores
        ):  # the next steps do the same, until a timer is about to end
            for j in range(count):
                if timers_after[j] < timers[node, j]:
                    timers_after[j] -= least - 1
            passed += least - 1
        if rules == 0:
            slot = _slot(table, states, timers, after, timers_after)
            if slot < 0:
                return UNDECIDED, found, found_mask, found_token
            known = table[slot]
            if known >= 0:
                if offering != -1 or dead[known]:
                    continue
                return POSSIBLE, -1, 0, -1
            table[slot] = nodes
            next_node = nodes
            nodes += 1
        else:
            next_node = depth + 1
        if next_node >= MAX_NODES - 1:
            return UNDECIDED, found, found_mask, found_token
        taken[depth], positions[depth + 1] = token, positions[depth] + passed
        depth += 1
        states[next_node], timers[next_node] = after, timers_after
        cursor[next_node], tried[next_node], dead[next_node] = 0, False, False
        stack[depth] = next_node
    if offering != -1:
        return POSSIBLE, -1, found_mask if explores else 0, -1
    return LOST, found, found_mask, found_token


@loop
def _slot(table: Any, states: Any, timers: Any, wanted: Any, timers_wanted: Any) -> int:
    """Find the slot of a node in the table, or a free slot for it; -1 if that takes too long."""
    key = 0
    for j in range(len(wanted)):
        key = ((key ^ int(wanted[j])) * 1_000_003) & 0x7FFFFFFF
        key = ((key ^ int(timers_wanted[j])) * 1_000_003) & 0x7FFFFFFF
        key ^= key >> 15
    for probe in range(MAX_PROBES):
        slot = (key + probe) % len(table)
        node = table[slot]
        if node < 0:
            return slot
        is_same = True
        for j in range(len(wanted)):
            if states[node, j] != wanted[j] or timers[node, j] != timers_wanted[j]:
                is_same = False
                break
        if is_same:
            return slot
    return -1


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
