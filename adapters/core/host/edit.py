"""The loop that edits a step's logits, row by row.

Edits combine in one order, whatever order the specs were attached in: additions (biases and bans),
then ALLOW, then FORCE, then MOVE. Of contradictory edits, the later kind wins. A forced token is
chosen even if it is banned or not allowed. If every allowed token is banned, an allowed token is
chosen. If two specs force tokens on one row, the token of the spec attached first is chosen; that
of a text that a MOVE has begun comes before all others. If two specs allow tokens, the first list
is strict and the others ban the tokens that they do not contain. So a row that came with a finite
logit keeps one. If the engine had masked all allowed tokens, they count as banned.

Rows are float32 and lie in one flat array: row ``i`` begins at ``starts[i]``, or is left alone if
that is negative. Tokens of a set are ascending.
"""

from typing import Any

import numpy as np

from ..automaton import BAN_BIAS, Edit
from ..logits import FORCED_LOGIT
from ..loops import loop

FREE, FORCE, ALLOW, ADD, BAN_OTHERS, MOVE = map(
    int, (Edit.FREE, Edit.FORCE, Edit.ALLOW, Edit.ADD, Edit.BAN_OTHERS, Edit.MOVE)
)
_MASKED, _BAN, _FORCED = -np.inf, np.float32(BAN_BIAS), np.float32(FORCED_LOGIT)


@loop
def edit(
    logits: Any,
    starts: Any,
    columns: int,
    requests: int,
    tables: Any,
    count: Any,
    states: Any,
    kept: Any,
    moves: bool,
) -> None:
    """Edit the rows of the requests; see ``Automata`` and ``AutomatonPool``.

    ``tables`` are the pool's ``edits``; ``kept`` is room for as many logits as there are tokens. A
    MOVE, which reads the row, is made only if it ``moves``.
    """
    edits, operands, set_ends, set_tokens, set_values = tables
    for i in range(requests):
        start, strict, forced, moved = starts[i], -1, -1, -1
        if start < 0:
            continue
        for k in range(count[i]):
            state = states[i, k]
            operand = operands[state]
            if edits[state] == ADD:
                lo, hi = set_ends[operand], set_ends[operand + 1]
                for cell in range(lo, hi):
                    if set_tokens[cell] < columns:
                        logits[start + set_tokens[cell]] += set_values[cell]
            elif edits[state] == BAN_OTHERS:
                lo, hi = set_ends[operand], set_ends[operand + 1]
                end_column = start + min(columns, len(kept))
                ban_others(logits[start:end_column], set_tokens[lo:hi], kept)
            elif edits[state] == ALLOW and strict < 0:
                strict = operand
            elif edits[state] == FORCE and forced < 0:
                forced = operand
            elif edits[state] == MOVE and moves:
                moved = operand
        if strict >= 0:
            lo, hi = set_ends[strict], set_ends[strict + 1]
            for k in range(count[i]):
                other = operands[states[i, k]]
                if edits[states[i, k]] == ALLOW and other != strict:
                    at, other_end = set_ends[other], set_ends[other + 1]
                    for cell in range(lo, hi):
                        at = find(set_tokens, at, other_end, set_tokens[cell])
                        is_there = at < other_end and set_tokens[at] == set_tokens[cell]
                        if not is_there and set_tokens[cell] < columns:
                            logits[start + set_tokens[cell]] += _BAN
            allow(logits[start : start + columns], set_tokens[lo:hi], kept)
        if 0 <= forced < columns:
            logits[start + forced] = _FORCED
        if moved >= 0:
            lo, hi = set_ends[moved], set_ends[moved + 1]
            move(logits[start : start + columns], set_tokens[lo:hi], set_values[lo:hi])


@loop
def move(row: Any, tokens: Any, values: Any) -> None:
    """Move the mass of tokens with the value 0 to the other, whose value is the temperature.

    The sum of exponentials has the best logit as its unit, so one token's logit moves unchanged. If
    all are masked, the other token is banned: it may be the last that is left.
    """
    first, temperature, best, total = -1, np.float32(1), _MASKED, 0.0
    for cell in range(len(tokens)):
        if values[cell] > 0:
            first, temperature = tokens[cell], values[cell]
        elif tokens[cell] < len(row):
            best = max(best, row[tokens[cell]])
    if first < 0 or first >= len(row):
        return
    for cell in range(len(tokens)):
        if values[cell] == 0 and tokens[cell] < len(row):
            if best > _MASKED:
                total += np.exp((row[tokens[cell]] - best) / temperature)
            row[tokens[cell]] = _MASKED
    row[first] = best + temperature * np.log(total) if best > _MASKED else row[first] + _BAN


@loop
def allow(row: Any, tokens: Any, kept: Any) -> None:
    """Mask all columns but some tokens; ban these instead if all of them are masked."""
    is_possible, count = False, 0
    for token in tokens:
        if token < len(row):
            kept[count] = row[token]
            is_possible |= row[token] > _MASKED
            count += 1
    for column in range(len(row)):
        row[column] = _MASKED
    for cell in range(count):
        row[tokens[cell]] = kept[cell] if is_possible else _BAN


@loop
def ban_others(row: Any, tokens: Any, kept: Any) -> None:
    """Ban all columns but some tokens."""
    count = 0
    for token in tokens:
        if token < len(row):
            kept[count] = row[token]
            count += 1
    for column in range(len(row)):
        row[column] += _BAN
    for cell in range(count):
        row[tokens[cell]] = kept[cell]


@loop
def find(tokens: Any, first: int, end: int, wanted: int) -> int:
    """Find the index in ``[first, end)`` of the first token >= ``wanted``, or ``end``.

    It takes steps of 1, 2, 4, ...: what is near is found soon.
    """
    step = 1
    while first + step <= end and tokens[first + step - 1] < wanted:
        first += step
        step *= 2
    left = min(step, end - first)
    while left > 0:
        half = (left + 1) >> 1
        if tokens[first + half - 1] < wanted:
            first += half
        left -= half
    return first


@loop
def add(
    logits: Any, start: int, columns: int, tokens: Any, values: Any, first: int, count: int
) -> None:
    """Add to cells of a row; a token may occur several times."""
    for cell in range(first, first + count):
        if 0 <= tokens[cell] < columns:
            logits[start + tokens[cell]] += values[cell]


@loop
def find_edited(
    tables: Any,
    requests: int,
    count: Any,
    states: Any,
    is_edited: Any,
    is_limited: Any,
    is_offered: Any,
) -> None:
    """Find what each request's automata edit.

    Set whether any of them edits its row, whether any has an ALLOW, and whether the first ALLOW has
    the token that is forced.
    """
    edits, operands, set_ends, set_tokens, _ = tables
    for i in range(requests):
        strict, forced = -1, -1
        for k in range(count[i]):
            edit = edits[states[i, k]]
            is_edited[i] |= edit != FREE
            if edit == ALLOW and strict < 0:
                strict = operands[states[i, k]]
            elif edit == FORCE and forced < 0:
                forced = operands[states[i, k]]
        if strict >= 0:
            is_limited[i] = True
            end = set_ends[strict + 1]
            at = find(set_tokens, set_ends[strict], end, forced)
            is_offered[i] = at < end and set_tokens[at] == forced
