"""``no_loop``: do not complete the last of several copies in a row, or go on after it.

Copies of p tokens stand at the end of a history as far as its newest tokens equal those p earlier.
So a rule counts them for each period, in a time that is linear in the tokens that matter.

For example, ``8 9 8 9 8`` and three copies: the newest three tokens equal those two earlier. With
one more, ``9``, they would be three copies of two tokens.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..automaton import BAN_BIAS, Automaton
from ..automaton.arrays import token_array
from ..automaton.history import Tokens
from ..kinds.no_loop import closes, needs
from ..loops import loop
from ..parts import LoopRule
from .advance import Automata
from .edit import add
from .search import agree, skip

_BAN = np.float32(BAN_BIAS)


class Loop(NamedTuple):
    """A rule of a request.

    Attributes:
        origin: the first position that counts.
        needs: see ``kinds.no_loop.needs``.
        reach: the most tokens that matter: of the copies of some period, without the last token.
        then: the tokens that are forced.
        closes: see ``kinds.no_loop.closes``.
        forcing: the rank of the automaton that forces them, or -1.
        block: the rank of the automaton that follows blocks, or -1.
        inside: the first of its states within a block.
    """

    origin: int
    needs: Tokens
    reach: int
    then: Tokens
    closes: int
    forcing: int
    block: int
    inside: int

    @classmethod
    def of(cls, rule: LoopRule, automata: Sequence[Automaton], prompt_length: int) -> "Loop":
        """Look the rule's automata up among those of the request."""
        enough, periods = needs(rule.spec), range(rule.spec.min_period, rule.spec.max_period + 1)
        return cls(
            prompt_length if rule.spec.output_only else 0,
            enough,
            max(int(enough[period]) + period for period in periods),
            token_array(rule.spec.then_token_ids).astype(np.int32),
            closes(rule.spec),
            *rule.ranks(automata),
            rule.inside,
        )

    @property
    def needs_states(self) -> bool:
        """Whether the rule reads or sets the state of an automaton."""
        return self.forcing >= 0 or self.block >= 0

    def follow(self, tokens: Tokens, length: int, automata: Automata, i: int) -> bool:
        """Set the state of the automaton that forces; return whether the rule bans.

        Args:
            tokens: an array that begins with the history.
            length: the number of its tokens.
            automata: the automata of all requests, after these tokens.
            i: the request's index there.
        """
        states, bases = automata.states[i], automata.bases[i]
        is_open = self.block < 0 or states[self.block] - bases[self.block] >= self.inside
        if self.forcing < 0:
            return bool(is_open)
        of_rule: Any = self.needs, self.reach, self.then, self.closes, is_open
        due = find_due(tokens, length, self.origin, *of_rule)
        states[self.forcing] = bases[self.forcing] + due
        return False

    def ban(
        self, logits: Any, start: int, columns: int, tokens: Tokens, length: int, scratch: Any
    ) -> int:
        """Ban the tokens that would complete a loop; see ``find_loops``."""
        seen, cells, values = scratch.seen, scratch.tokens, scratch.values
        of_rule: Any = self.origin, self.needs, self.reach, cells, values, seen
        return find_loops(logits, start, columns, tokens, length, *of_rule)


@loop
def find_loops(
    logits: Any,
    start: int,
    columns: int,
    tokens: Any,
    length: int,
    origin: int,
    needs: Any,
    reach: int,
    cell_tokens: Any,
    cell_values: Any,
    seen: Any,
) -> int:
    """List the tokens that would complete a loop, and ban them.

    Args:
        logits: flat logits.
        start: where the row begins in them.
        columns: the number of its columns; 0 leaves the logits alone.
        tokens: ``[length or more]``, the history.
        length: its length.
        origin: the first position that counts.
        needs: see ``kinds.no_loop.needs``.
        reach: the most tokens that matter.
        cell_tokens: gets the tokens, each once.
        cell_values: gets what is added to each.
        seen: ``[vocabulary]``, false before and after.

    Returns:
        The number of tokens.
    """
    count = 0
    for period in find_periods(tokens, length, origin, needs, reach):
        token = tokens[length - period]
        if 0 <= token < len(seen) and not seen[token]:
            seen[token] = True
            cell_tokens[count], cell_values[count] = token, _BAN
            count += 1
    for cell in range(count):
        seen[cell_tokens[cell]] = False
    add(logits, start, columns, cell_tokens, cell_values, 0, count)
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
def find_due(
    tokens: Any,
    length: int,
    origin: int,
    needs: Any,
    reach: int,
    then: Any,
    closes: int,
    is_open: bool,
) -> int:
    """Return the number of the forced token that is due, from 1 on; 0 if none is.

    ``then[n]`` is due if the last n tokens are those before it, and a loop stood before them. None
    is due if all of them have been said.
    """
    for said in range(min(len(then), length - origin), -1, -1):
        if said < closes and not is_open:
            continue
        same = 0
        while same < said and tokens[length - 1 - same] == then[said - 1 - same]:
            same += 1
        if same == said and len(find_periods(tokens, length - said, origin, needs, reach)):
            return said + 1 if said < len(then) else 0
    return 0
