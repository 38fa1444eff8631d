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
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from .automata import RANK, Automata
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
    """Cells to which ``values``, ``[cells]`` float32, are added."""

    cells: Cells
    values: npt.NDArray[np.float32]


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


class Planner:
    """Says which cells to edit, and rebuilds only what has changed since the last step.

    Attributes:
        forced: one cell per forced row.
        added: what the automata's biases and bans add.
        allow_rows: ``[allow]``, rows of which only some cells may remain.
        allowed: those cells.
        allow_of: ``[allowed]``, which of ``allow_rows`` a cell is in.
        contested: ``[forced]`` bool, rows that also have another edit.
        overruled: how many forced tokens lost to another one on their row.
        version: counts the changes of everything but ``forced``.
    """

    def __init__(self, automata: Automata) -> None:
        self._automata = automata
        self._sets: Ints = np.empty((4, 0), np.int64)
        self._generation = -1
        self._shared = False
        self.forced = NO_CELLS
        self.allowed = NO_CELLS
        self.added = Additions(NO_CELLS, np.empty(0, np.float32))
        self.allow_rows = self.allow_of = np.empty(0, np.int64)
        self.contested: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self.overruled = 0
        self.version = 0

    def update(self) -> None:
        """Follow the automata's states."""
        automata, tables = self._automata, self._automata.tables
        states, rows = automata.states, automata.values[ROW, : len(automata)]
        if automata.changed:
            self._shared = len(np.unique(rows)) < len(rows)
        edits = tables.edit[states]
        arguments = tables.argument[states].astype(np.int64)
        is_forced = edits == Edit.FORCE
        if is_forced.all():
            self.forced = Cells(rows.copy(), arguments)
            sets = np.empty((4, 0), np.int64)
        else:
            self.forced = Cells(rows[is_forced], arguments[is_forced])
            uses_set = edits >= Edit.ALLOW
            rank = automata.values[RANK, : len(automata)]
            sets = np.stack([rows, arguments, edits.astype(np.int64), rank])[:, uses_set]
        if self._shared:
            self._force_once(automata.values[RANK, : len(automata)][is_forced])
            self.contested = np.isin(self.forced.rows, sets[0])
        else:
            self.contested = np.zeros(len(self.forced.rows), np.bool_)
        if self._generation != tables.generation or not np.array_equal(sets, self._sets):
            self._generation = tables.generation
            self._sets = sets
            self._plan_sets()
        automata.changed = False

    def _force_once(self, rank: Ints) -> None:
        """Keep the first specs' tokens where several are forced on one row."""
        order = np.lexsort((rank, self.forced.rows))
        _, first = np.unique(self.forced.rows[order], return_index=True)
        self.overruled += len(order) - len(first)
        kept = order[first]
        self.forced = Cells(self.forced.rows[kept], self.forced.token_ids[kept])

    def _plan_sets(self) -> None:
        """Lay out the cells of all token sets that act."""
        tables = self._automata.tables
        self.version += 1
        rows, token_sets, edits, rank = self._sets
        adds = edits == Edit.ADD
        owner, cell = tables.cells(token_sets[adds])
        added = Cells(rows[adds][owner], tables.set_tokens[cell].astype(np.int64))
        values = tables.set_values[cell]
        allows = np.flatnonzero(~adds)
        allows = allows[np.lexsort((rank[allows], rows[allows]))]
        self.allow_rows, first = np.unique(rows[allows], return_index=True)
        self.allow_of, cell = tables.cells(token_sets[allows[first]])
        self.allowed = Cells(
            self.allow_rows[self.allow_of], tables.set_tokens[cell].astype(np.int64)
        )
        for i in np.delete(allows, first):  # several ALLOWs on one row: rare
            of_row = self.allowed.token_ids[self.allowed.rows == rows[i]]
            _, cell = tables.cells(token_sets[i : i + 1])
            banned = np.setdiff1d(of_row, tables.set_tokens[cell])
            added.rows = np.append(added.rows, np.full(len(banned), rows[i]))
            added.token_ids = np.append(added.token_ids, banned)
            values = np.append(values, np.full(len(banned), BAN_BIAS, np.float32))
        self.added = Additions(added, values)
