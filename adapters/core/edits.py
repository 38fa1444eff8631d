"""The edits of one step: which cells of the logits change, and how.

Edits combine in one order, whatever order the specs were attached in: what is added (biases and
bans), then ALLOW, then FORCE. Where they contradict one another, the later one wins: a forced
token is chosen although it is banned or not allowed, and if every allowed token is banned, an
allowed one is chosen. Of two tokens that are forced on one row, that of the spec attached first
is. Of two ALLOWs, the first is strict and the others ban what they do not contain. So a row that
came with a finite logit keeps one, or gets one where the engine itself had masked all that is
allowed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from .automata import MOVES, RANK, STATE, Automata
from .automaton import BAN_BIAS, Edit, Ints
from .slots import ROW

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class Cells:
    """Cells of the logits: ``rows`` and ``token_ids``, ``[cells]`` each."""

    rows: Ints
    token_ids: Ints


NO_CELLS = Cells(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(slots=True)
class Additions:
    """Cells to which ``values``, ``[cells]`` float32, are added.

    Attributes:
        kept: what an editor has made of them, for additions that are given to it several times.
    """

    cells: Cells
    values: npt.NDArray[np.float32]
    kept: dict[Any, Any] | None = None


class Editor(Protocol):
    """Applies the edits of some automata to the logits of a kind of device."""

    def update(self) -> None:
        """Follow the automata, whose states, requests or rows may have changed."""
        ...

    def apply(self, logits: "torch.Tensor", more: Sequence[Additions] = ()) -> None:
        """Edit the logits in place.

        Args:
            logits: ``[rows, columns]`` float32, float16 or bfloat16; rows may be any distance
                apart.
            more: additions of this step alone.
        """
        ...

    def overruled(self) -> int:
        """How many edits lost to others that contradicted them. Waits for the device."""
        ...


@dataclass(slots=True)
class Allowed:
    """Rows of which only some cells may remain.

    Attributes:
        rows: ``[allow]``.
        cells: what may remain of them.
        row_of: ``[cells]``, which of ``rows`` a cell is in.
        runs: the rows as ``[first, end)`` pairs, neighbours together.
    """

    rows: Ints
    cells: Cells
    row_of: Ints
    runs: list[tuple[int, int]]


NO_ADDITIONS = Additions(NO_CELLS, np.empty(0, np.float32))
NONE_ALLOWED = Allowed(np.empty(0, np.int64), NO_CELLS, np.empty(0, np.int64), [])


class Planner:
    """Says which cells to edit, and lays out anew only what has changed since the last step.

    What is laid out anew is a new object; what is the same object says the same.

    Attributes:
        forced: one cell per forced row.
        added: what the automata's biases and bans add; apart are those of automata that never
            move, and what a row's further ALLOWs ban.
        allowed: what ALLOWs leave.
        contested: ``[forced]`` bool, rows that also have another edit.
        outvoted: how many forced tokens lose to another one on their row.
    """

    def __init__(self, automata: Automata) -> None:
        self._automata = automata
        self._generation = -1
        self._shared = self._has_sets = False
        self._order: Ints = np.empty(0, np.int64)  # slots by row, then by rank
        self._adding: Ints = np.empty(0, np.int64)
        self._allowing: Ints = np.empty(0, np.int64)
        self.forced = NO_CELLS
        self.added = [NO_ADDITIONS, NO_ADDITIONS, NO_ADDITIONS]
        self.allowed = NONE_ALLOWED
        self.contested: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self.outvoted = 0

    def update(self) -> None:
        """Follow the automata's states."""
        automata, tables = self._automata, self._automata.tables
        columns = automata.values[:, : len(automata)]
        states, rows = columns[STATE], columns[ROW]
        composed = automata.changed or self._generation != tables.generation
        if composed:
            self._order = np.lexsort((columns[RANK], rows))
            self._shared = bool((np.diff(rows[self._order]) == 0).any())
        edits = tables.edit[states]
        is_forced = edits == Edit.FORCE
        self.outvoted = 0
        if self._shared:
            self._force_once(is_forced)
            self.contested = np.isin(self.forced.rows, rows[edits >= Edit.ALLOW])
        else:
            self.forced = Cells(rows[is_forced], tables.argument[states[is_forced]])
            if len(self.contested):
                self.contested = np.empty(0, np.bool_)
        had_sets, self._has_sets = self._has_sets, bool((edits >= Edit.ALLOW).any())
        if composed or had_sets or self._has_sets:
            self._plan_sets(states, edits, columns[MOVES] != 0, composed)
        self._generation = tables.generation
        automata.changed = False

    def _plan_sets(
        self,
        states: Ints,
        edits: npt.NDArray[np.int8],
        moves: npt.NDArray[np.bool_],
        composed: bool,
    ) -> None:
        """Lay out the token sets that act, where they are not those of the last step."""
        adds = edits == Edit.ADD
        if composed:
            self.added[0] = self._additions(np.flatnonzero(adds & ~moves))
        adding = np.where(adds & moves, states, -1)
        if composed or not np.array_equal(adding, self._adding):
            self._adding = adding
            self.added[1] = self._additions(np.flatnonzero(adding >= 0))
        allowing = np.where(edits == Edit.ALLOW, states, -1)
        if composed or not np.array_equal(allowing, self._allowing):
            self._allowing = allowing
            self._plan_allowed(self._order[allowing[self._order] >= 0])

    def _force_once(self, is_forced: npt.NDArray[np.bool_]) -> None:
        """Keep the first specs' tokens where several are forced on one row."""
        tables, values = self._automata.tables, self._automata.values
        slots = self._order[is_forced[self._order]]
        rows, first = np.unique(values[ROW, slots], return_index=True)
        self.outvoted = len(slots) - len(first)
        self.forced = Cells(rows, tables.argument[values[STATE, slots[first]]])

    def _additions(self, slots: Ints) -> Additions:
        """What the token sets of some slots' states add."""
        if not len(slots):
            return NO_ADDITIONS
        tables, values = self._automata.tables, self._automata.values
        owner, cell = tables.cells(tables.argument[values[STATE, slots]])
        rows = values[ROW, slots][owner]
        return Additions(Cells(rows, tables.set_tokens[cell]), tables.set_values[cell])

    def _plan_allowed(self, slots: Ints) -> None:
        """Lay out what ALLOWs leave; the slots come by row, then by rank."""
        self.allowed, self.added[2] = NONE_ALLOWED, NO_ADDITIONS
        if not len(slots):
            return
        tables, values = self._automata.tables, self._automata.values
        token_sets, rows = tables.argument[values[STATE, slots]], values[ROW, slots]
        first = np.flatnonzero(np.diff(rows, prepend=-1))
        rows = rows[first]
        row_of, cell = tables.cells(token_sets[first])
        cells = Cells(rows[row_of], tables.set_tokens[cell])
        gaps = np.flatnonzero(np.diff(rows) > 1)
        starts, ends = rows[np.append(0, gaps + 1)], rows[np.append(gaps, len(rows) - 1)] + 1
        runs = list(zip(starts.tolist(), ends.tolist(), strict=True))
        self.allowed = Allowed(rows, cells, row_of, runs)
        if len(first) < len(slots):  # several ALLOWs on one row: the first is strict
            self.added[2] = self._banned_by_others(np.delete(np.arange(len(slots)), first), slots)

    def _banned_by_others(self, others: Ints, slots: Ints) -> Additions:
        tables, values = self._automata.tables, self._automata.values
        banned_rows: list[Ints] = []
        banned: list[Ints] = []
        for slot in slots[others]:
            row, token_set = values[ROW, slot], tables.argument[values[STATE, slot]]
            of_row = self.allowed.cells.token_ids[self.allowed.cells.rows == row]
            _, cell = tables.cells(token_set[None])
            banned.append(np.setdiff1d(of_row, tables.set_tokens[cell]))
            banned_rows.append(np.full(len(banned[-1]), row))
        cells = Cells(np.concatenate(banned_rows), np.concatenate(banned))
        return Additions(cells, np.full(len(cells.rows), BAN_BIAS, np.float32))
