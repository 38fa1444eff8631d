"""The running automata of all requests, stepped together."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from ..automaton import CARRY, UNKNOWN, Automaton, Edit, Ints, UnknownTokenError
from ..automaton.folding import fold_together
from ..automaton.pool import ROOM_KEPT, AutomatonPool
from .state_table import ROW, Failures, Outputs, Request, StateTable, last_but

FOLDED, BASE, STATE, TIMER, RANK, MOVES, LAST = 1, 2, 3, 4, 5, 6, 7
"""Columns: the number of output ids folded in, if the automaton moves; where it starts in the
tables; its state there; its timer; its rank among its request's automata; whether it moves, because
it has more than one state; the last token that is folded in, or -1 after a step that did not depend
on it."""


class AutomatonBatch(StateTable):
    """A table with one slot per request and automaton.

    All state is a function of (automaton, prompt, output ids). So a request that is removed, and
    later added again with its output ids, continues where it was.

    Attributes:
        tables: the pool of the automata.
        moved: set when a state changes; reset by the reader.
    """

    def __init__(self) -> None:
        super().__init__(columns=8)
        self.tables = AutomatonPool()
        self.moved = False
        self._left = 0
        self._read: Outputs | None = None  # by the last step

    @property
    def states(self) -> Ints:
        """``[slots]``, the state of each slot, as numbered in ``tables``."""
        return self.values[STATE, : len(self)]

    def start(self, request: Request, automata: Sequence[Automaton]) -> None:
        """Let automata act on a request: all of them, or none if this raises.

        Args:
            request: a request on which no automaton acts yet.
            automata: all automata of the request, in the order of its specs.

        Raises:
            UnknownTokenError: see ``fold_together``.
        """
        folded = fold_together(automata, request)
        self.make_room(len(automata))
        if None in map(self.tables.base_of, automata):  # there is no room for one of them
            self._rebuild_tables(automata)
        bases = cast("list[int]", [*map(self.tables.base_of, automata)])
        last = _last_of(request)
        for rank, (automaton, (state, timer)) in enumerate(zip(automata, folded, strict=True)):
            self.values[1:, self.new(request, automaton).slot] = (
                len(request.output_ids),
                bases[rank],
                bases[rank] + state,
                timer,
                rank,
                automaton.states > 1,
                last,
            )

    def _rebuild_tables(self, more: Sequence[Automaton] = ()) -> None:
        """Keep the automata in use, and ``more``; if that fails, nothing has changed."""
        old, values = self.tables, self.values.copy()
        tables = old.rebuilt([*(entry.what for entry in self.entries), *more])
        for entry in self.entries:
            base = tables.base_of(entry.what)
            assert base is not None  # just put there
            values[STATE, entry.slot] += base - values[BASE, entry.slot]
            values[BASE, entry.slot] = base
        old.become(tables)
        self.values = values

    def delete(self, slot: int) -> None:
        """See ``StateTable``."""
        self._read = None  # it would keep the requests
        automaton = self.entries[slot].what
        self._left += automaton.cells + len(automaton.keys)
        super().delete(slot)

    def give_back(self) -> None:
        """Free memory if the tables are mostly unused."""
        if self._left > ROOM_KEPT:  # the automata removed since the last check may be most of them
            self._left = 0
            if self.tables.is_mostly_unused(entry.what for entry in self.entries):
                self._rebuild_tables()

    def advance(self, failed: Failures) -> None:
        """Bring all states up to date with the output ids.

        Args:
            failed: receives the requests that cannot go on.
        """
        if not self.values[MOVES, : len(self)].any():
            self._read = None
            return
        outputs, read, self._read = self.outputs(), self._read, None
        if outputs.follow(read):  # most steps
            self._step(None, outputs.newest, failed)
        else:
            self._catch_up(outputs, failed)
        self._read = outputs

    def _catch_up(self, outputs: Outputs, failed: Failures) -> None:
        """Take any number of tokens; the last that is folded in may have been replaced."""
        requests, output_ids, of_slot = outputs.requests
        folded, last = self.values[FOLDED, : len(self)], self.values[LAST, : len(self)]
        moves = self.values[MOVES, : len(self)]
        grown = (np.array(outputs.lengths, np.int64)[of_slot] - folded) * moves
        known = np.flatnonzero((last != UNKNOWN) & (grown >= 0) & (moves != 0))
        if len(known):
            at = zip(of_slot[known].tolist(), (folded[known] - 1).tolist(), strict=True)
            now = np.array([output_ids[i][position] for i, position in at])
            grown[known[now != last[known]]] = -1
        again = np.unique(of_slot[(grown < 0) | (grown > 1)])
        for i in again.tolist():
            self._fold_again(requests[i], failed)
        by_one = np.flatnonzero((grown == 1) & ~np.isin(of_slot, again))
        if len(by_one):
            self._step(by_one, outputs.newest, failed)

    def _fold_again(self, request: Request, failed: Failures) -> None:
        """Fold a request's history again: tokens were taken back, or several came at once."""
        entries = [entry for entry in request.entries if entry.table is self]
        acting = [entry.what for entry in entries]
        request.drop_arrays()
        try:
            folded = fold_together(acting, request)
        except UnknownTokenError as error:
            failed[request] = error
            return
        finally:
            request.drop_arrays()
        self.moved, last = True, _last_of(request)
        for entry, (state, timer) in zip(entries, folded, strict=True):
            self.values[STATE, entry.slot] = self.values[BASE, entry.slot] + state
            self.values[TIMER, entry.slot] = timer
            self.values[FOLDED, entry.slot] = len(request.output_ids)
            self.values[LAST, entry.slot] = last

    def _step(self, slots: Ints | None, newest: Sequence[int], failed: Failures) -> None:
        """Take the newest output id of some slots' requests, or of all."""
        tables = self.tables
        at = slice(len(self)) if slots is None else slots
        states = self.values[STATE, at]
        following = tables.default_target[states]
        branches = tables.branches[states]
        last: Ints | int = UNKNOWN
        if branches.any():
            tokens = np.array(newest, np.int64)[self.requests().of_slot[at]]
            last = np.where(branches, tokens, UNKNOWN)
            which = np.flatnonzero(branches)
            tokens = tokens[which]
            if (tokens < 0).any():
                self._fill_in(tokens, which if slots is None else slots[which], failed)
            following[which] = self._look_up(states[which], tokens)
        timers = self.values[TIMER, at]
        if tables.has_timers:
            timers = self._enter(following, timers)
            if not timers.all():
                self._settle(following, timers)
        moved = not np.array_equal(following, states)
        folded = self.values[FOLDED, at] + 1
        # From here on, nothing can fail.
        self.moved = self.moved or moved
        self.values[FOLDED, at] = folded
        self.values[TIMER, at] = timers
        self.values[STATE, at] = following
        self.values[LAST, at] = last

    def _fill_in(self, tokens: Ints, slots_of: Ints, failed: Failures) -> None:
        """Replace unknown tokens by the tokens that were forced on their rows."""
        tables, states, rows = self.tables, self.states, self.values[ROW]
        slots = np.flatnonzero(tables.edit[states] == Edit.FORCE)
        slots = slots[np.argsort(-self.values[RANK, slots])]  # the first spec's token comes last
        forced = dict(
            zip(rows[slots].tolist(), tables.operand[states[slots]].tolist(), strict=True)
        )
        for i in np.flatnonzero(tokens == UNKNOWN).tolist():
            slot = slots_of[i]
            tokens[i] = forced.get(int(rows[slot]), UNKNOWN)
            if tokens[i] == UNKNOWN:
                failed[self.entries[slot].request] = UnknownTokenError()

    def _look_up(self, states: Ints, tokens: Ints) -> Ints:
        """Find the next states, ``[k]``, along edges, failure links and default targets."""
        tables = self.tables
        following, again = states, np.arange(len(states))
        while len(again):  # once, and then along the failure links
            at = following[again]
            wanted = at << 32 | tokens[again]
            index = tables.keys.searchsorted(wanted)
            hit = tables.keys[index] == wanted
            following[again] = np.where(hit, tables.targets[index], tables.default_target[at])
            again = again[~hit & tables.is_failure_link[at]]
        return following

    def _enter(self, states: Ints, timers: Ints) -> Ints:
        on_entry = self.tables.timer[states]
        running = np.maximum(timers - (on_entry == CARRY), 0)
        return np.where(on_entry < 0, running, on_entry)  # the tables have no CLEAR

    def _settle(self, states: Ints, timers: Ints) -> None:
        """Take the time-outs that are due."""
        timeout = self.tables.timeout
        while len(due := np.flatnonzero((timers == 0) & (timeout[states] >= 0))):
            states[due] = timeout[states[due]]
            timers[due] = self._enter(states[due], timers[due])


def _last_of(request: Request) -> int:
    """Return the last output id of a request, or -1 if there is none."""
    return last_but(0, [request.output_ids], [len(request.output_ids)])[0]
