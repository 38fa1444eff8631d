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


def merged(additions: Sequence[Additions]) -> Additions:
    """All of them as one, in which each cell is there once."""
    cells = np.concatenate([each.cells.rows << 32 | each.cells.token_ids for each in additions])
    values = np.concatenate([each.values for each in additions])
    cells, place = np.unique(cells, return_inverse=True)
    sums = np.bincount(place.ravel(), values, len(cells)).astype(np.float32)
    return Additions(Cells(cells >> 32, cells & 0xFFFFFFFF), sums)


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


@dataclass(slots=True)
class Penalties:
    """What is added to all that ALLOWs leave: ``values``, ``[cells]`` float32."""

    values: npt.NDArray[np.float32]


NO_ADDITIONS = Additions(NO_CELLS, np.empty(0, np.float32))
NONE_ALLOWED = Allowed(np.empty(0, np.int64), NO_CELLS, np.empty(0, np.int64), [])


MAX_KEPT_PAIRS = 1 << 10
"""Pairs of token sets for which it is kept what both have."""


class Planner:
    """Says which cells to edit, and lays out anew only what has changed since the last step.

    What is laid out anew is a new object; what is the same object says the same.

    Attributes:
        forced: one cell per forced row.
        added: what the automata's biases and bans add; apart are those of automata that never
            move.
        allowed: what the first ALLOWs of each row leave.
        penalties: what a row's further ALLOWs ban of that, if any row has several.
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
        self.added = [NO_ADDITIONS, NO_ADDITIONS]
        self.allowed = NONE_ALLOWED
        self.penalties: Penalties | None = None
        self._strict: Ints = np.empty(0, np.int64)  # the token set of each of the allowed rows
        self._common: dict[tuple[int, int], Ints] = {}  # see _places_in_common
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
        has_sets = bool((edits >= Edit.ALLOW).any())
        if composed or has_sets or self._has_sets:
            self._plan_sets(states, edits, columns[MOVES] != 0, composed)
        self._has_sets = has_sets
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
            self.added[1] = self._additions(np.flatnonzero(adding >= 0))
            self._adding = adding
        allowing = np.where(edits == Edit.ALLOW, states, -1)
        if composed or not np.array_equal(allowing, self._allowing):
            self._plan_allowed(self._order[allowing[self._order] >= 0])
            self._allowing = allowing

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
        if not len(slots):
            self.allowed, self.penalties = NONE_ALLOWED, None
            return
        tables, values = self._automata.tables, self._automata.values
        token_sets, rows = tables.argument[values[STATE, slots]], values[ROW, slots]
        is_first = np.diff(rows, prepend=-1) != 0
        strict, rows_of_all, rows = token_sets[is_first], np.cumsum(is_first) - 1, rows[is_first]
        allowed = self.allowed
        if not (
            self._generation == tables.generation
            and np.array_equal(strict, self._strict)
            and np.array_equal(rows, allowed.rows)
        ):
            row_of, cell = tables.cells(strict)
            cells = Cells(rows[row_of], tables.set_tokens[cell])
            gaps = np.flatnonzero(np.diff(rows) > 1)
            starts, ends = rows[np.append(0, gaps + 1)], rows[np.append(gaps, len(rows) - 1)] + 1
            runs = list(zip(starts.tolist(), ends.tolist(), strict=True))
            allowed = Allowed(rows, cells, row_of, runs)
            if self._generation != tables.generation:
                self._common = {}
        penalties = None
        if not is_first.all():  # several ALLOWs on one row: the first is strict
            of_row, others = rows_of_all[~is_first], token_sets[~is_first]
            penalties = Penalties(self._banned_by_others(allowed, strict, of_row, others))
        self.allowed, self.penalties, self._strict = allowed, penalties, strict

    def _banned_by_others(
        self, allowed: Allowed, strict: Ints, of_row: Ints, others: Ints
    ) -> npt.NDArray[np.float32]:
        """What further ALLOWs, each a token set of one of the rows, add to the allowed cells."""
        starts = np.searchsorted(allowed.row_of, np.arange(len(strict)))
        pairs = zip(strict[of_row].tolist(), others.tolist(), starts[of_row].tolist(), strict=True)
        kept = np.concatenate([self._places_in_common(a, b) + start for a, b, start in pairs])
        is_contested = np.bincount(of_row, minlength=len(strict))
        if is_contested.max() > 1:  # what is kept has to be in all of them
            kept, by_how_many = np.unique(kept, return_counts=True)
            kept = kept[by_how_many == is_contested[allowed.row_of[kept]]]
        values = np.where(is_contested != 0, np.float32(BAN_BIAS), np.float32(0))[allowed.row_of]
        values[kept] = 0
        return values

    def _places_in_common(self, token_set: int, other: int) -> Ints:
        """Where in a token set the tokens are that another one has as well. Kept."""
        places = self._common.get((token_set, other))
        if places is None:
            if len(self._common) >= MAX_KEPT_PAIRS:
                self._common.clear()
            tables = self._automata.tables
            a, b = (
                tables.set_tokens[slice(*tables.set_ends[one : one + 2])]
                for one in (token_set, other)
            )
            small, large = (a, b) if len(a) <= len(b) else (b, a)
            at = np.minimum(large.searchsorted(small), len(large) - 1)
            found = large[at] == small
            places = np.flatnonzero(found) if small is a else at[found]
            self._common[token_set, other] = places
        return places
