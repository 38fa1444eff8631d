"""Which request is in which row of the logits, and in which state each one is."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .automaton import FREE, UNKNOWN, Automaton, Table

Indices = npt.NDArray[np.int64]


class Batch:
    """The requests that have an automaton; rows of others are not known here.

    Requests are kept densely, in *slots*, so that a step is a handful of numpy calls however
    many rows there are. All state is a function of (automaton, output ids): a request that is
    removed and added again, with the output ids that it has by then, goes on where it was.
    """

    def __init__(self) -> None:
        self._slot_of_row: dict[int, int] = {}
        # By slot. The lists of output ids belong to the engine, which appends to them.
        self._automata: list[Automaton] = []
        self._outputs: list[Sequence[int]] = []
        self._row: Indices = np.empty(16, np.int64)
        self._base: Indices = np.empty(16, np.int64)  # where its automaton starts in the tables
        self._state: Indices = np.empty(16, np.int64)
        self._folded: Indices = np.empty(16, np.int64)  # output ids that are in the state
        self._tables = _Tables()
        self._changed = False

    def __len__(self) -> int:
        return len(self._automata)

    def rows(self) -> list[int]:
        """The rows that have an automaton."""
        return list(self._slot_of_row)

    def add(self, row: int, automaton: Automaton, output_ids: Sequence[int]) -> None:
        """Put a request into a row, in place of any that is there.

        Args:
            row: row of the logits.
            automaton: what its specs compile to.
            output_ids: the request's output token ids so far; the engine appends to this object.
        """
        self.remove(row)
        slot = len(self._automata)
        if slot == len(self._row):
            for name in ("_row", "_base", "_state", "_folded"):
                setattr(self, name, np.resize(getattr(self, name), 2 * slot))
        self._slot_of_row[row] = slot
        self._automata.append(automaton)
        self._outputs.append(output_ids)
        self._row[slot] = row
        self._base[slot] = self._tables.base_of(automaton, self._automata, self._base)
        self._fold(slot)
        self._changed = True

    def remove(self, row: int) -> None:
        """Forget the request in a row, if there is one."""
        slot = self._slot_of_row.pop(row, None)
        if slot is None:
            return
        self._changed = True
        last = len(self._automata) - 1
        if slot != last:
            self._automata[slot] = self._automata[last]
            self._outputs[slot] = self._outputs[last]
            for array in (self._row, self._base, self._state, self._folded):
                array[slot] = array[last]
            self._slot_of_row[int(self._row[slot])] = slot
        del self._automata[last], self._outputs[last]

    def move(self, source: int, destination: int) -> None:
        """Move the request in row ``source``; one in ``destination`` is forgotten."""
        self.remove(destination)
        self._place(self._slot_of_row.pop(source, None), destination)

    def swap(self, a: int, b: int) -> None:
        """Exchange two rows."""
        slot_a, slot_b = self._slot_of_row.pop(a, None), self._slot_of_row.pop(b, None)
        self._place(slot_a, b)
        self._place(slot_b, a)

    def _place(self, slot: int | None, row: int) -> None:
        if slot is not None:
            self._slot_of_row[row] = slot
            self._row[slot] = row
            self._changed = True

    def advance(self) -> bool:
        """Bring all states up to date with the output ids.

        Returns:
            Whether ``forced`` may differ from what it was after the last call.
        """
        changed, self._changed = self._changed, False
        n = len(self._automata)
        grown = np.fromiter(map(len, self._outputs), np.int64, n) - self._folded[:n]
        if not grown.any():
            return changed
        by_one = np.flatnonzero(grown == 1)
        for slot in np.flatnonzero((grown < 0) | (grown > 1)):  # tokens taken back, or late
            self._fold(slot)
        outputs = self._outputs
        newest = np.array([outputs[slot][-1] for slot in by_one.tolist()], np.int64)
        states = self._base[by_one] + self._state[by_one]
        tables = self._tables
        as_forced = (newest == tables.force[states]) | (newest == UNKNOWN)
        self._state[by_one] = np.where(as_forced, tables.on_forced[states], tables.on_other[states])
        self._folded[by_one] += 1
        return True

    def forced(self) -> tuple[Indices, Indices]:
        """Rows that are forced, and to which token ids: two arrays ``[forced]``."""
        n = len(self._automata)
        token_ids = self._tables.force[self._base[:n] + self._state[:n]]
        is_forced = token_ids != FREE
        return self._row[:n][is_forced], token_ids[is_forced].astype(np.int64)

    def _fold(self, slot: int) -> None:
        output_ids = self._outputs[slot]
        self._folded[slot] = len(output_ids)
        self._state[slot] = self._automata[slot].fold(output_ids)


class _Tables:
    """The tables of many automata, end to end, so that one index reaches any state of any one.

    They stay while there is room, whether used at the moment or not. When there is none, those
    in use are kept and the room is at least doubled for them.
    """

    def __init__(self) -> None:
        self._bases: dict[Automaton, int] = {}
        self._used = 0
        self._allocate(1 << 12)

    def _allocate(self, states: int) -> None:
        self.force: Table = np.empty(states, np.int32)
        self.on_forced: Table = np.empty(states, np.int32)
        self.on_other: Table = np.empty(states, np.int32)

    def base_of(self, automaton: Automaton, in_use: Sequence[Automaton], bases: Indices) -> int:
        """Where the automaton starts, ``bases`` being updated if the others are moved for it.

        Args:
            automaton: the one asked for; the last of ``in_use``.
            in_use: all automata that must stay.
            bases: where each of those starts, ``[>= len(in_use)]``.
        """
        if automaton not in self._bases:
            if self._used + len(automaton.force) > len(self.force):
                self._rebuild(in_use)
                bases[: len(in_use)] = [self._bases[kept] for kept in in_use]
            else:
                self._append(automaton)
        return self._bases[automaton]

    def _rebuild(self, in_use: Sequence[Automaton]) -> None:
        kept = dict.fromkeys(in_use)
        self._allocate(max(len(self.force), 2 * sum(len(automaton.force) for automaton in kept)))
        self._bases.clear()
        self._used = 0
        for automaton in kept:
            self._append(automaton)

    def _append(self, automaton: Automaton) -> None:
        end = self._used + len(automaton.force)
        self.force[self._used : end] = automaton.force
        self.on_forced[self._used : end] = automaton.on_forced
        self.on_other[self._used : end] = automaton.on_other
        self._bases[automaton] = self._used
        self._used = end
