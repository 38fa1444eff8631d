"""The automata of all requests: their states, and the loop that takes a step's tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..automaton import UNKNOWN, Automaton, Edit
from ..automaton.folding import Tokens, enter, settle, take
from ..automaton.pool import ROOM_KEPT, AutomatonPool
from ..loops import loop

FORCE = int(Edit.FORCE)
TAKEN = np.iinfo(np.int32).min
"""In place of a request's newest token: its automata have taken it."""


class Automata:
    """The automata that run, a row of states for each request, without gaps.

    All state is a function of (automata, prompt, output). So a request that is removed, and later
    added again with its output, continues where it was. After a call that fails, nothing is left
    to rely on: all state has to be made again.

    Attributes:
        tables: the pool of the automata.
        requests: of each index below, the request.
        running: of each index, its automata, in the order of the specs.
        count: ``[capacity]``, the number of these.
        places: ``[3, capacity, width]``, where each automaton starts in the tables, its state
            there, and its timer.
        newest: ``[capacity]``, the token to take; ``UNKNOWN``, or ``TAKEN`` if there is none.
        failed: ``[capacity]``, whether an unknown token has decided a state.
        generation: the number of times that indices or states have come, gone or moved.
    """

    def __init__(self) -> None:
        self.tables = AutomatonPool()
        self.requests: list[Any] = []
        self.running: list[Sequence[Automaton]] = []
        self.count = np.zeros(16, np.int32)
        self.places = np.zeros((3, 16, 4), np.int32)
        self.failed = np.zeros(16, np.bool_)
        self.newest = np.zeros(16, np.int32)
        self.generation = 0
        self._left = 0

    @property
    def states(self) -> Any:
        """The state of each automaton in the tables."""
        return self.places[1]

    def __len__(self) -> int:
        return len(self.requests)

    def add(
        self, request: Any, automata: Sequence[Automaton], places: Sequence[tuple[int, int]]
    ) -> int:
        """Let automata act on a request, each at a state and a timer; return its index."""
        self._make_room(len(automata))
        if None in map(self.tables.base_of, automata):  # there is no room for one of them
            self._rebuild_tables(automata)
        i = len(self.requests)
        self.places[0, i, : len(automata)] = _bases_of(automata, self.tables)
        self.place(i, places)
        self.count[i] = len(automata)
        self.newest[i], self.failed[i] = TAKEN, False
        self.running.append(automata)
        self.requests.append(request)
        self.generation += 1
        return i

    def place(self, i: int, places: Sequence[tuple[int, int]]) -> None:
        """Set the states and timers of an index."""
        bases, states, timers = self.places[:, i]
        for rank, (state, timer) in enumerate(places):
            states[rank], timers[rank] = bases[rank] + state, timer

    def remove(self, i: int) -> Any:
        """Free an index; the request of the last index moves there, and is returned."""
        self.generation += 1
        self._left += sum(each.cells + len(each.keys) for each in self.running[i])
        last = len(self.requests) - 1
        self.places[:, i] = self.places[:, last]
        for column in (self.count, self.newest, self.failed):  # a request may fail within a step
            column[i] = column[last]
        moved, automata = self.requests.pop(), self.running.pop()
        if i < last:
            self.requests[i], self.running[i] = moved, automata
        return moved

    def clear(self) -> None:
        """Let go of all requests, whose state will be made again. This cannot fail."""
        self.requests.clear()
        self.running.clear()
        self.generation += 1

    def give_back(self) -> None:
        """Free memory if the tables are mostly unused."""
        if self._left > ROOM_KEPT:  # those removed since the last check may be most of the tables
            self._left = 0
            if self.tables.is_mostly_unused(each for some in self.running for each in some):
                self._rebuild_tables()

    def _make_room(self, width: int) -> None:
        """Make room for one more request with so many automata."""
        (_, capacity, before), n = self.places.shape, len(self.requests)
        if n < capacity and width <= before:
            return
        more = capacity if n == capacity else 0
        self.places = np.pad(self.places, ((0, 0), (0, more), (0, max(width - before, 0))))
        flat = self.count, self.newest, self.failed
        self.count, self.newest, self.failed = (np.pad(column, (0, more)) for column in flat)

    def _rebuild_tables(self, more: Sequence[Automaton] = ()) -> None:
        """Keep the automata in use, and ``more``."""
        self.tables.rebuild([*(each for some in self.running for each in some), *more])
        for i, automata in enumerate(self.running):
            now = _bases_of(automata, self.tables)
            self.places[:2, i, : len(now)] += now - self.places[0, i, : len(now)]
        self.generation += 1

    def advance(self) -> bool:
        """Take the tokens in ``newest``; return whether any request has ``failed``."""
        tables, requests = self.tables, (len(self.requests), self.count, self.places)
        columns = tables.edit, tables.flags, tables.states, tables.edges
        return advance(*columns, *requests, self.newest, self.failed)


def _bases_of(automata: Sequence[Automaton], tables: AutomatonPool) -> Tokens:
    """Find where automata that are in the tables start there."""
    return np.array([tables.base_of(each) for each in automata], np.int32)


@loop
def advance(
    edits: Any,
    flags: Any,
    columns: Any,
    edges: Any,
    requests: int,
    count: Any,
    places: Any,
    newest: Any,
    failed: Any,
) -> bool:
    """Let the automata of each request take its newest token; see ``Automata``."""
    links, branches, ends, tokens, targets = flags[0], flags[1], columns[4], edges[0], edges[1]
    operands, default, on_entry, timeout = columns[0], columns[1], columns[2], columns[3]
    states, timers = places[1], places[2]
    any_failed = False
    for i in range(requests):
        token, newest[i] = newest[i], TAKEN
        if token == TAKEN:
            continue
        if token == UNKNOWN:  # then it is the one that was forced
            for k in range(count[i]):
                if edits[states[i, k]] == FORCE:
                    token = operands[states[i, k]]
                    break
        for k in range(count[i]):
            state = states[i, k]
            if token == UNKNOWN and branches[state]:
                failed[i] = any_failed = True
                break
            state = take(default, links, ends, tokens, targets, state, token)
            timer = enter(on_entry[state], timers[i, k])
            states[i, k], timers[i, k] = settle(on_entry, timeout, state, timer)
    return any_failed
