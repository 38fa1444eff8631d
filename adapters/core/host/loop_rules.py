"""``no_loop``: do not complete the last of several copies in a row, or go on after it.

Copies of p tokens stand at the end of a history as far as its newest tokens equal those p earlier.
So a rule compares them for each period, from the newest token back, and passes over the periods at
which the newest token differs.

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
        then: the tokens that are forced.
        closes: see ``kinds.no_loop.closes``.
        forcing: the rank of the automaton that forces them, or -1.
        block: the rank of the automaton that follows blocks, or -1.
        inside: the first of its states within a block.
    """

    origin: int
    needs: Tokens
    then: Tokens
    closes: int
    forcing: int
    block: int
    inside: int

    @classmethod
    def of(cls, rule: LoopRule, automata: Sequence[Automaton], prompt_length: int) -> "Loop":
        """Look the rule's automata up among those of the request."""
        rank = {id(automaton): i for i, automaton in enumerate(automata)}
        return cls(
            prompt_length if rule.spec.output_only else 0,
            needs(rule.spec),
            token_array(rule.spec.then_token_ids).astype(np.int32),
            closes(rule.spec),
            rank.get(id(rule.forcing), -1),
            rank.get(id(rule.block), -1),
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
        arguments: Any = tokens, length, self.origin, self.needs, self.then, self.closes, is_open
        states[self.forcing] = bases[self.forcing] + find_due(*arguments)
        return False


@loop
def find_loops(
    logits: Any,
    start: int,
    columns: int,
    tokens: Any,
    length: int,
    origin: int,
    needs: Any,
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
        cell_tokens: gets the tokens, each once.
        cell_values: gets what is added to each.
        seen: ``[vocabulary]``, false before and after.

    Returns:
        The number of tokens.
    """
    count, period = 0, 0
    while True:
        period = find_loop(tokens, length, origin, needs, period + 1, seen)
        if period == 0:
            break
        token = tokens[length - period]
        if token >= len(seen):
            continue
        seen[token] = True
        cell_tokens[count], cell_values[count] = token, _BAN
        count += 1
    for cell in range(count):
        seen[cell_tokens[cell]] = False
    add(logits, start, columns, cell_tokens, cell_values, 0, count)
    return count


@loop
def find_loop(tokens: Any, length: int, origin: int, needs: Any, period: int, seen: Any) -> int:
    """Find the first period from ``period`` on with as many equal tokens as it ``needs``.

    Periods are passed over if the token that would come next has been ``seen``.

    Returns:
        The period, or 0 if there is none.
    """
    if period == 1 and needs[1] == 0 and length > origin:  # two equal tokens
        if not is_seen(seen, tokens[length - 1]):
            return 1
        period = 2
    oldest = max(origin, length - len(needs))
    position = length - 1 - period
    while position >= oldest:
        position = skip(tokens, position, oldest, tokens[length - 1])
        period = length - 1 - position
        if position < oldest:
            break
        need = needs[period]
        fits = position - need + 1 >= origin and not is_seen(seen, tokens[length - period])
        if fits and agree(tokens, length, period, need) == need:
            return period
        position -= 1
    return 0


@loop
def is_seen(seen: Any, token: int) -> bool:
    """Return whether a token is marked."""
    return 0 <= token < len(seen) and seen[token]


@loop
def find_due(
    tokens: Any, length: int, origin: int, needs: Any, then: Any, closes: int, is_open: bool
) -> int:
    """Return the number of the forced token that is due, from 1 on; 0 if none is.

    ``then[n]`` is due if the last n tokens are those before it, and a loop stood before them. None
    is due if all of them have been said.
    """
    nothing = np.zeros(0, np.bool_)
    for said in range(min(len(then), length - origin), -1, -1):
        if said < closes and not is_open:
            continue
        before = length - said
        same = 0
        while same < said and tokens[length - 1 - same] == then[said - 1 - same]:
            same += 1
        if same == said and find_loop(tokens, before, origin, needs, 1, nothing):
            return said + 1 if said < len(then) else 0
    return 0
