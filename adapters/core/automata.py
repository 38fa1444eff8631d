"""The automata that run at the moment, stepped together."""

import numpy as np

from .automaton import CARRY, NO_TIMER, Automaton, Edit, Ints, UnknownTokenError
from .slots import FOLDED, Failures, Handle, Request, Slots
from .tables import Tables

BASE, STATE, TIMER, RANK = 2, 3, 4, 5
"""Columns: where the automaton starts in the tables; its state there; its timer; its place among
those of its request."""


class Automata(Slots):
    """One slot per request and automaton.

    All state is a function of (automaton, prompt, output ids): a request that is removed and
    added again, with the output ids that it has by then, goes on where it was.

    Attributes:
        tables: of all the automata.
    """

    def __init__(self) -> None:
        super().__init__(columns=6)
        self.tables = Tables()

    @property
    def states(self) -> Ints:
        """``[slots]``, as numbered in ``tables``."""
        return self.values[STATE, : len(self)]

    def start(self, request: Request, automaton: Automaton) -> None:
        """Let an automaton act on a request.

        Raises:
            UnknownTokenError: as ``Automaton.fold`` does.
        """
        state, timer = automaton.fold(request.prompt_ids, request.output_ids)
        handle = self.new(request, automaton)
        base = self.tables.base_of(automaton)
        if base is None:
            base = self._rebuild_tables()
        self.values[1:, handle.slot] = (
            len(request.output_ids),
            base,
            base + state,
            timer,
            len(request.handles) - 1,
        )

    def _rebuild_tables(self) -> int:
        self.tables.rebuild(handle.what for handle in self.handles)
        for handle in self.handles:
            base = self.tables.base_of(handle.what)
            assert base is not None  # just put there
            self.values[STATE, handle.slot] += base - self.values[BASE, handle.slot]
            self.values[BASE, handle.slot] = base
        return int(self.values[BASE, -1 + len(self)])

    def advance(self, failed: Failures) -> bool:
        """Bring all states up to date with the output ids.

        Args:
            failed: requests that cannot go on are put here.

        Returns:
            Whether a state may have changed.
        """
        grown = self.grown()
        if not grown.any():
            return False
        if (grown == 1).all():
            self._step(None, failed)
        else:
            for slot in np.flatnonzero((grown < 0) | (grown > 1)).tolist():
                self._fold_again(self.handles[slot], failed)
            if len(by_one := np.flatnonzero(grown == 1)):
                self._step(by_one, failed)
        return True

    def _fold_again(self, handle: Handle, failed: Failures) -> None:
        """Tokens were taken back, or several came at once."""
        request, automaton = handle.request, handle.what
        try:
            state, timer = automaton.fold(request.prompt_ids, request.output_ids)
        except UnknownTokenError as error:
            failed[request] = error
            return
        self.values[STATE, handle.slot] = self.values[BASE, handle.slot] + state
        self.values[TIMER, handle.slot] = timer
        self.values[FOLDED, handle.slot] = len(request.output_ids)

    def _step(self, slots: Ints | None, failed: Failures) -> None:
        """Take the newest output id of some slots, or of all of them."""
        tables = self.tables
        at = slice(len(self)) if slots is None else slots
        states = self.values[STATE, at]
        following = tables.otherwise[states].astype(np.int64)
        looks = tables.looks[states]
        if looks.any():
            which = np.flatnonzero(looks)
            slot_numbers = (which if slots is None else slots[which]).tolist()
            outputs = self.outputs
            tokens = np.array([outputs[slot][-1] for slot in slot_numbers], np.int64)
            found = self._look_up(states[which], tokens)
            for i in np.flatnonzero(found < 0):
                failed[self.handles[slot_numbers[i]].request] = UnknownTokenError()
            following[which] = np.maximum(found, 0)
        self.values[FOLDED, at] += 1
        if tables.has_timers:
            timers = self.values[TIMER, at]
            following, timers = self._settle(following, self._enter(following, timers))
            self.values[TIMER, at] = timers
        self.values[STATE, at] = following

    def _look_up(self, states: Ints, tokens: Ints) -> Ints:
        """The next states, ``[k]``; -1 where the token decides and is not known."""
        tables, keys = self.tables, self.tables.edges
        is_forced = tables.edit[states] == Edit.FORCE
        tokens = np.where((tokens < 0) & is_forced, tables.argument[states], tokens)
        following = np.full(len(states), -1, np.int64)
        pending = np.flatnonzero(tokens >= 0)
        while len(pending):
            wanted = states[pending] << 32 | tokens[pending]
            index = np.minimum(keys.searchsorted(wanted), max(len(keys) - 1, 0))
            hit = keys[index] == wanted if len(keys) else np.zeros(len(wanted), np.bool_)
            following[pending[hit]] = tables.targets[index[hit]]
            pending = pending[~hit]
            missed = states[pending]
            consumed = tables.consumes[missed]
            following[pending[consumed]] = tables.otherwise[missed[consumed]]
            pending = pending[~consumed]
            states[pending] = tables.otherwise[missed[~consumed]]
        return following

    def _enter(self, states: Ints, timers: Ints) -> Ints:
        on_entry = self.tables.timer[states]
        running = np.where(timers > 0, timers - 1, timers)
        return np.where(on_entry >= 0, on_entry, np.where(on_entry == CARRY, running, NO_TIMER))

    def _settle(self, states: Ints, timers: Ints) -> tuple[Ints, Ints]:
        """Take the time-outs that are due."""
        timeout = self.tables.timeout
        while len(due := np.flatnonzero((timers == 0) & (timeout[states] >= 0))):
            states[due] = timeout[states[due]]
            timers[due] = self._enter(states[due], timers[due])
        return states, timers
