"""``no_loop``: do not complete the last of several copies in a row, or go on after it.

Copies of p tokens stand at the end of a history as far as its newest tokens equal those p earlier.
So a rule counts them for each period, in a time that is linear in the tokens that matter.

For example, ``8 9 8 9 8`` and three copies: the newest three tokens equal those two earlier. With
one more, ``9``, they would be three copies of two tokens.
"""

from typing import Any

import numpy as np

from ..automaton import BAN_BIAS
from ..automaton.steps import BASE, STATE
from ..loops import loop
from .search import agree, skip

_BAN = np.float32(BAN_BIAS)

LOOP = 2
"""The kind of a rule about loops; see ``history_rules``."""
ORIGIN, FIRST, END = 1, 2, 3
"""Fields of any rule: the first position that counts, and the part of the numbers that it has."""
THEN, REACH, CLOSES, FORCING, BLOCK, INSIDE, IS_OPEN, OWN_ORIGIN, PHASE = range(4, 13)
"""Fields of a rule about loops. The last three are those of any rule.

- ``THEN``: where the tokens that are forced begin. Before them lies what the rule ``needs``.
- ``REACH``: the most tokens that matter: of the copies of some period, without the last token.
- ``CLOSES``: see ``kinds.no_loop.closes``.
- ``FORCING``: the rank of the automaton that forces the tokens, or -1.
- ``BLOCK``: the rank of the automaton that follows blocks, or -1.
- ``INSIDE``: the first of its states within a block.
- ``IS_OPEN``: whether the rule acts at this step.
- ``OWN_ORIGIN``: the first position that counts in the phase that the request begins in.
- ``PHASE``: see ``Acting``.
"""


@loop
def follow(lanes: Any, since: Any, tokens: Any, length: int, rules: Any, numbers: Any) -> None:
    """Set the states of the automata that force, and find which rules act, and from where on.

    Args:
        lanes: see ``steps.step``, after the newest tokens.
        since: see ``steps.step``.
        tokens: ``[length or more]``, the history.
        length: its length.
        rules: ``[rules, fields]``.
        numbers: see ``history_rules.act``.
    """
    for k in range(len(rules)):
        rule = rules[k]
        begun = since[rule[PHASE]]
        rule[IS_OPEN] = begun >= 0
        rule[ORIGIN] = max(rule[OWN_ORIGIN], begun)
        if rule[0] == LOOP and begun >= 0:
            block, forcing = rule[BLOCK], rule[FORCING]
            is_open = block < 0 or lanes[STATE, block] - lanes[BASE, block] >= rule[INSIDE]
            rule[IS_OPEN] = is_open
            if forcing >= 0:
                due = find_due(tokens, length, rule, numbers, is_open)
                lanes[STATE, forcing] = lanes[BASE, forcing] + due


@loop
def find_loops(
    tokens: Any, length: int, rule: Any, numbers: Any, cell_tokens: Any, cell_values: Any, seen: Any
) -> int:
    """List bans of the tokens that would complete a loop; see ``history_rules.act``."""
    count, needs = 0, numbers[rule[FIRST] : rule[THEN]]
    for period in find_periods(tokens, length, rule[ORIGIN], needs, rule[REACH]):
        token = tokens[length - period]
        if 0 <= token < len(seen) and not seen[token]:
            seen[token] = True
            cell_tokens[count], cell_values[count] = token, _BAN
            count += 1
    for cell in range(count):
        seen[cell_tokens[cell]] = False
    return count


@loop
def find_periods(tokens: Any, length: int, origin: int, needs: Any, reach: int) -> Any:
    """List the periods at which enough newest tokens equal those a period earlier.

    This is the Z function of the newest ``reach`` tokens, from the last one back (Gusfield,
    "Algorithms on strings, trees, and sequences", 1.4): no token is compared twice with success.
    Periods at which the newest token differs are passed over, many at once.
    """
    newest, size = length - 1, min(length - origin, reach)
    last = min(len(needs), size) - 1
    if size == 1 and needs[1] == 0:  # two equal tokens
        last = 1
    matches, found = np.zeros((2, max(last, 0) + 1), np.int32)
    first = end = count = 0  # the newest tokens equal those in [first, end) from the last one back
    period = 1
    while period <= last:
        same = 0
        if period < end:
            same = min(end - period, matches[period - first])
        elif needs[period] > 0:
            period = newest - skip(tokens, newest - period, newest - last, tokens[newest])
            if period > last:
                break
        if period + same >= end:
            same = agree(tokens, length, period, same, size - period)
            first, end = period, period + same
        matches[period] = same
        if same >= needs[period]:
            found[count] = period
            count += 1
        period += 1
    return found[:count]


@loop
def find_due(tokens: Any, length: int, rule: Any, numbers: Any, is_open: bool) -> int:
    """Return the number of the forced token that is due, from 1 on; 0 if none is.

    ``then[n]`` is due if the last n tokens are those before it, and a loop stood before them. None
    is due if all of them have been said.
    """
    needs, then = numbers[rule[FIRST] : rule[THEN]], numbers[rule[THEN] : rule[END]]
    origin, reach, closes = rule[ORIGIN], rule[REACH], rule[CLOSES]
    for said in range(min(len(then), length - origin), -1, -1):
        if said < closes and not is_open:
            continue
        same = 0
        while same < said and tokens[length - 1 - same] == then[said - 1 - same]:
            same += 1
        if same == said and len(find_periods(tokens, length - said, origin, needs, reach)):
            return said + 1 if said < len(then) else 0
    return 0
