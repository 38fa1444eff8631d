"""The automata that run at the moment, stepped together."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from .automaton import CARRY, UNKNOWN, Automaton, Edit, Ints, UnknownTokenError
from .folding import fold_together
from .slots import FOLDED, ROW, Failures, Request, Slots
from .tables import ROOM_KEPT, Tables

BASE, STATE, TIMER, RANK, MOVES, LAST = 2, 3, 4, 5, 6, 7
"""Columns: where the automaton starts in the tables; its state there; its timer; its place among
those of its request; whether it has more than one state; the last token that is folded in, or -1
if it made no difference which it was."""


class Automata(Slots):
    """One slot per request and automaton.

    All state is a function of (automaton, prompt, output ids): a request that is removed and
    added again, with the output ids that it has by then, goes on where it was.

    Attributes:
        tables: of all the automata.
        moved: set when a state changes; reset by who has looked.
    """

    def __init__(self) -> None:
        super().__init__(columns=8)
        self.tables = Tables()
        self.moved = False
        self._left = 0

    @property
    def states(self) -> Ints:
        """``[slots]``, as numbered in ``tables``."""
        return self.values[STATE, : len(self)]

    def start(self, request: Request, automata: Sequence[Automaton]) -> None:
        """Let automata act on a request: all of them, or none if this raises.

        Args:
            request: one on which none acts yet.
            automata: all that shall, the first spec's first.

        Raises:
            UnknownTokenError: as ``fold_together`` does.
        """
        folded = fold_together(automata, request)
        self.make_room(len(automata))
        bases = self._bases_of(automata)
        for rank, (automaton, (state, timer)) in enumerate(zip(automata, folded, strict=True)):
            self.values[1:, self.new(request, automaton).slot] = (
                len(request.output_ids),
                bases[rank],
                bases[rank] + state,
                timer,
                rank,
                automaton.states > 1,
                UNKNOWN,
            )

    def _bases_of(self, automata: Sequence[Automaton]) -> list[int]:
        """Where automata are in the tables, put there if need be."""
        bases = [self.tables.base_of(automaton) for automaton in automata]
        if None in bases:
            self._rebuild_tables(automata)
            bases = [self.tables.base_of(automaton) for automaton in automata]
        return cast("list[int]", bases)

    def _rebuild_tables(self, more: Sequence[Automaton] = ()) -> None:
        """Keep what is in use, and ``more``; where that fails, all is as it was."""
        old, values = self.tables, self.values.copy()
        tables = old.rebuilt([*(handle.what for handle in self.handles), *more])
        for handle in self.handles:
            base = tables.base_of(handle.what)
            assert base is not None  # just put there
            values[STATE, handle.slot] += base - values[BASE, handle.slot]
            values[BASE, handle.slot] = base
        old.become(tables)
        self.values = values

    def delete(self, slot: int) -> None:
        """See ``Slots``."""
        automaton = self.handles[slot].what
        self._left += automaton.cells + len(automaton.keys)
        super().delete(slot)

    def give_back(self) -> None:
        """Give memory back, where the tables are mostly unused."""
        if self._left > ROOM_KEPT:  # what has left since the last time may be most of them
            self._left = 0
            if self.tables.is_mostly_unused(handle.what for handle in self.handles):
                self._rebuild_tables()

    def grown(self) -> Ints:
        """See ``Slots``; -1 where the last token that is folded in has been replaced."""
        grown = super().grown()
        folded, last = self.values[FOLDED, : len(self)], self.values[LAST, : len(self)]
        known = np.flatnonzero((last != UNKNOWN) & (grown >= 0))
        if len(known):
            at = zip(known.tolist(), (folded[known] - 1).tolist(), strict=True)
            now = np.array([self.outputs[slot][position] for slot, position in at])
            grown[known[now != last[known]]] = -1
        return grown

    def advance(self, failed: Failures) -> bool:
        """Bring all states up to date with the output ids.

        Args:
            failed: requests that cannot go on are put here.

        Returns:
            Whether a state may have changed.
        """
        grown = self.grown()
        if (grown == 1).all():
            return self._step(None, failed)
        if not grown.any():
            return False
        again = np.flatnonzero((grown < 0) | (grown > 1)).tolist()
        for request in dict.fromkeys(self.handles[slot].request for slot in again):
            self._fold_again(request, failed)
        if len(by_one := np.flatnonzero(grown == 1)):
            self._step(by_one, failed)
        return True

    def _fold_again(self, request: Request, failed: Failures) -> None:
        """Tokens were taken back, or several came at once."""
        handles = [handle for handle in request.handles if handle.home is self]
        acting = [handle.what for handle in handles]
        request.drop_arrays()
        try:
            folded = fold_together(acting, request)
        except UnknownTokenError as error:
            failed[request] = error
            return
        finally:
            request.drop_arrays()
        self.moved = True
        for handle, (state, timer) in zip(handles, folded, strict=True):
            self.values[STATE, handle.slot] = self.values[BASE, handle.slot] + state
            self.values[TIMER, handle.slot] = timer
            self.values[FOLDED, handle.slot] = len(request.output_ids)
            self.values[LAST, handle.slot] = UNKNOWN

    def _step(self, slots: Ints | None, failed: Failures) -> bool:
        """Take the newest output id of some slots, or of all; whether any state changed."""
        tables = self.tables
        at = slice(len(self)) if slots is None else slots
        states = self.values[STATE, at]
        following = tables.otherwise[states]
        last = np.full(len(states), UNKNOWN)
        looks = tables.looks[states]
        if looks.any():
            which = np.flatnonzero(looks)
            slot_numbers = (which if slots is None else slots[which]).tolist()
            outputs = self.outputs
            tokens = np.array([outputs[slot][-1] for slot in slot_numbers], np.int64)
            last[which] = tokens
            if (tokens < 0).any():
                self._fill_in(tokens, slot_numbers, failed)
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
        return moved

    def _fill_in(self, tokens: Ints, slot_numbers: list[int], failed: Failures) -> None:
        """Replace tokens that are not known by those that were forced on their rows."""
        tables, states, rows = self.tables, self.states, self.values[ROW]
        slots = np.flatnonzero(tables.edit[states] == Edit.FORCE)
        slots = slots[np.argsort(-self.values[RANK, slots])]  # the first spec's token comes last
        forced = dict(
            zip(rows[slots].tolist(), tables.argument[states[slots]].tolist(), strict=True)
        )
        for i in np.flatnonzero(tokens == UNKNOWN).tolist():
            slot = slot_numbers[i]
            tokens[i] = forced.get(int(rows[slot]), UNKNOWN)
            if tokens[i] == UNKNOWN:
                failed[self.handles[slot].request] = UnknownTokenError()

    def _look_up(self, states: Ints, tokens: Ints) -> Ints:
        """The next states, ``[k]``."""
        tables = self.tables
        following, again = states, np.arange(len(states))
        while len(again):  # once, and then along the failure links
            at = following[again]
            wanted = at << 32 | tokens[again]
            index = tables.keys.searchsorted(wanted)
            hit = tables.keys[index] == wanted
            following[again] = np.where(hit, tables.targets[index], tables.otherwise[at])
            again = again[~(hit | tables.consumes[at])]
        return following

    def _enter(self, states: Ints, timers: Ints) -> Ints:
        on_entry = self.tables.timer[states]
        running = np.maximum(timers - (on_entry == CARRY), 0)
        return np.where(on_entry < 0, running, on_entry)  # CLEAR is something else in the tables

    def _settle(self, states: Ints, timers: Ints) -> None:
        """Take the time-outs that are due."""
        timeout = self.tables.timeout
        while len(due := np.flatnonzero((timers == 0) & (timeout[states] >= 0))):
            states[due] = timeout[states[due]]
            timers[due] = self._enter(states[due], timers[due])
