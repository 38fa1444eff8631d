"""The loops of the walk for texts that are forced from anywhere: after a trigger, or thinking."""

from typing import Any

import numpy as np

from ..automaton import NO_TIMER
from ..automaton.folding import take
from ..loops import loop
from .follow import ALLOW, FORCE, FREE, find_token, refuses

CONTEXT = 64
"""The most tokens of a forced text that decide whether the next one is refused in any state."""


@loop
def forced_runs(columns: Any, first: int, end: int, ends: Any, only: Any) -> tuple[Any, Any]:
    """List the texts that an automaton forces, wherever it comes from.

    Args:
        columns: as for ``follow``.
        first: the automaton's first state.
        end: the end of its states.
        ends: tokens after which the request may be over, ascending.
        only: the states of automata that have just one; what these refuse leads nowhere.

    Returns:
        The tokens of all texts, and the end of each text in them. Each state is in one text.
    """
    (default_target, is_failure_link, edge_ends, edge_tokens, targets, on_entry, timeout) = columns[
        :7
    ]
    edits, operands, set_ends, set_tokens, set_values = columns[7:]
    is_timed = False
    for state in range(first, end):
        is_timed |= 0 <= on_entry[state] < NO_TIMER
    is_reached = np.zeros(end - first, np.bool_)
    is_head = np.zeros(end - first, np.bool_)
    is_taken = np.zeros(end - first, np.bool_)
    waiting = np.empty(end - first, np.int32)
    waiting[0], left = first, 1
    is_reached[0] = is_head[0] = True
    while left > 0:
        left -= 1
        state = waiting[left]
        edit = edits[state]
        size = 0
        leaves_at_once = on_entry[state] == 0 and timeout[state] >= 0
        is_taken[state - first] = leaves_at_once
        if edit != FORCE and not leaves_at_once:
            size = edge_ends[state + 1] - edge_ends[state]
        lacking = edit != ALLOW
        if edit == ALLOW:
            lo, hi = edge_ends[state], edge_ends[state + 1]
            for at in range(set_ends[operands[state]], set_ends[operands[state] + 1]):
                if find_token(edge_tokens, lo, hi, set_tokens[at]) < 0:
                    lacking = True
                    break
        for k in range(size + 2):
            target = -1
            if k < size:
                edge = edge_ends[state] + k
                target = targets[edge]
                if edit == ALLOW:
                    lo, hi = set_ends[operands[state]], set_ends[operands[state] + 1]
                    if find_token(set_tokens, lo, hi, edge_tokens[edge]) < 0:
                        target = -1
                for one in only:
                    if target >= 0 and refuses(
                        edits, operands, set_ends, set_tokens, set_values, one, edge_tokens[edge]
                    ):
                        target = -1
            elif k > size:
                target = timeout[state] if is_timed else -1
            elif leaves_at_once:
                continue
            elif edit == FORCE:
                target = take(
                    default_target,
                    is_failure_link,
                    edge_ends,
                    edge_tokens,
                    targets,
                    state,
                    operands[state],
                )
            elif lacking:
                target = default_target[state]
            if target >= 0:
                if edit != FORCE or k > size:
                    is_head[target - first] = True
                if not is_reached[target - first]:
                    is_reached[target - first] = True
                    waiting[left] = target
                    left += 1
    tokens = np.empty(end - first, np.int32)
    run_ends = np.empty(end - first, np.int32)
    length, runs = 0, 0
    for head in range(first, end):
        state = head
        if not is_head[head - first] or edits[head] != FORCE or is_taken[head - first]:
            continue
        while edits[state] == FORCE and not is_taken[state - first]:
            is_taken[state - first] = True
            token = operands[state]
            tokens[length] = token
            length += 1
            if timeout[state] >= 0 or find_token(ends, 0, len(ends), token) >= 0:
                break
            state = take(
                default_target, is_failure_link, edge_ends, edge_tokens, targets, state, token
            )
        run_ends[runs] = length
        runs += 1
    return tokens[:length], run_ends[:runs]


@loop
def forces_after_loop(tokens: Any, run_ends: Any, needs: Any, then: int, left: Any) -> bool:
    """Return whether another token than ``then`` follows a loop within one of some texts.

    Args:
        tokens: what ``forced_runs`` returns.
        run_ends: the same.
        needs: see ``kinds.no_loop.needs``.
        then: the token that is forced after the loop.
        left: as for ``follow``.
    """
    begin = 0
    for run_end in run_ends:
        same, is_due = np.zeros(len(needs), np.int32), False
        for at in range(begin, run_end):
            if is_due:
                if tokens[at] != then:
                    return True
                break
            left[0] -= 1 + len(needs) // 8
            if left[0] < 0:
                return False
            for period in range(1, min(len(needs), at - begin + 1)):
                same[period] = same[period] + 1 if tokens[at] == tokens[at - period] else 0
                is_due |= same[period] >= needs[period]
        begin = run_end
    return False


@loop
def can_rest(columns: Any, first: int, end: int, ends: Any) -> bool:
    """Return whether an automaton may refuse nothing from some state on, or end the request.

    The arguments are those of ``forced_runs``.
    """
    default_target, _, edge_ends, _, _, _, timeout, edits, operands = columns[:9]
    for state in range(first, end):
        stays = default_target[state] == state and edge_ends[state] == edge_ends[state + 1]
        if stays and edits[state] == FREE and timeout[state] < 0:
            return True
        if edits[state] == FORCE and find_token(ends, 0, len(ends), operands[state]) >= 0:
            return True
    return False


@loop
def find_refused(
    columns: Any, first: int, end: int, tokens: Any, run_ends: Any, left: int
) -> tuple[int, int]:
    """Find a token of some texts that an automaton refuses in whatever state a text begins.

    The arguments are those of ``forced_runs``, for the other automaton, what it returns, and how
    many tokens may be taken.

    Returns:
        The token, -1 if there is none; and how many may be taken after that, below 0 if it was too
        few.
    """
    (default_target, is_failure_link, edge_ends, edge_tokens, targets, _, timeout) = columns[:7]
    edits, operands, set_ends, set_tokens, set_values = columns[7:]
    is_timed = False
    for state in range(first, end):
        is_timed |= timeout[state] >= 0
    begin = 0
    for run_end in run_ends:
        state = first
        left -= run_end - begin
        if left < 0:
            return -1, left
        for at in range(begin, run_end):
            token = tokens[at]
            if refuses(edits, operands, set_ends, set_tokens, set_values, state, token):
                is_refused = True
                since = at if is_timed else max(begin, at - CONTEXT)
                for before in range(first, end):
                    left -= 1 + at - since
                    if left < 0:
                        return -1, left
                    for k in range(since, at):
                        before = take(
                            default_target,
                            is_failure_link,
                            edge_ends,
                            edge_tokens,
                            targets,
                            before,
                            tokens[k],
                        )
                    if not refuses(
                        edits, operands, set_ends, set_tokens, set_values, before, token
                    ):
                        is_refused = False
                        break
                if is_refused:
                    return token, left
            state = take(
                default_target, is_failure_link, edge_ends, edge_tokens, targets, state, token
            )
        begin = run_end
    return -1, left
