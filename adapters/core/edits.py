"""The edits of one step: which cells of the logits change, and how.

Edits combine in one order, whatever order the specs were attached in: what is added (biases and
bans), then ALLOW, then FORCE. Where they contradict one another, the later one wins: a forced
token is chosen although it is banned or not allowed, and if every allowed token is banned, an
allowed one is chosen. Of two tokens that are forced on one row, that of the spec attached first
is. Of two ALLOWs, the first is strict and the others ban what they do not contain. So a row that
came with a finite logit keeps one, or gets one where the engine itself had masked all that is
allowed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from .automata import MOVES, RANK, STATE, Automata
from .automaton import BAN_BIAS, Edit, Ints
from .slots import ROW

if TYPE_CHECKING:
    import torch

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]


class Part(Protocol):
    """A part of a step's edits, which happens or does not."""

    @property
    def rows(self) -> Ints:
        """The rows that it edits, each of them once at least."""
        ...

    def of_row(self, row: int, /) -> Self:
        """What it does to one of them."""
        ...


def attempt(
    failed: dict[int, Exception], write: Callable[..., None], part: Part, *target: Any
) -> None:
    """Let a part of the edits happen: again where it fails, and then row by row.

    What has happened before it is not done again, as biases would be added twice.

    Args:
        failed: rows whose part fails even so are put here, with the reason.
        write: takes the part and the target. Where it raises, it may be called again.
        part: see there.
        target: what is edited.
    """
    try:
        write(part, *target)
    except Exception:
        try:
            write(part, *target)
        except Exception:
            for row in set(part.rows.tolist()):
                try:
                    write(part.of_row(row), *target)
                except Exception as error:
                    failed[row] = error


@dataclass(slots=True)
class Cells:
    """Cells of the logits: ``rows`` and ``token_ids``, ``[cells]`` each."""

    rows: Ints
    token_ids: Ints | npt.NDArray[np.int32]

    def of_row(self, row: int) -> "Cells":
        """Those that are in one row."""
        mine = self.rows == row
        return Cells(self.rows[mine], self.token_ids[mine])


NO_CELLS = Cells(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(slots=True)
class Additions:
    """Cells to which ``values``, ``[cells]`` float32, are added.

    Attributes:
        kept: what an editor has made of them, for additions that are given to it several times.
    """

    cells: Cells
    values: Floats
    kept: dict[Any, Any] | None = None

    @property
    def rows(self) -> Ints:
        """See ``Part``."""
        return self.cells.rows

    def of_row(self, row: int) -> "Additions":
        """See ``Part``."""
        return Additions(self.cells.of_row(row), self.values[self.rows == row])


@dataclass(slots=True)
class RowAdditions(Additions):
    """Additions to different cells of one row, given several times; the row may be another one.

    Attributes:
        placed: what editors have made of them, for any row.
    """

    placed: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def whole_row(self, columns: int) -> Floats:
        """What is added to each column of the row."""
        row = np.zeros(columns, np.float32)
        row[self.cells.token_ids] = self.values
        return row


class Standing:
    """What is added to one row, for several steps.

    Args:
        token_ids: different ones, ascending: neighbours are next to each other in memory.
        values: what is added; one for all, or one for each.

    Attributes:
        kept: what an editor has made of it.
    """

    def __init__(
        self, token_ids: Ints | npt.NDArray[np.int32], values: npt.NDArray[np.float32]
    ) -> None:
        self.kept: dict[Any, Any] = {}
        self._token_ids, self._values = token_ids, np.broadcast_to(values, len(token_ids))
        self._row = -1
        self._additions: RowAdditions | None = None

    def __len__(self) -> int:
        return len(self._token_ids)

    def on(self, row: int) -> RowAdditions:
        """The additions, if that is the row."""
        if self._additions is None or row != self._row:
            rows = np.broadcast_to(np.int64(row), len(self))
            cells = Cells(rows, self._token_ids)
            self._additions = RowAdditions(cells, self._values, placed=self.kept)
            self._row = row
        return self._additions


def mask(token_ids: Sequence[int] | Ints, vocab_size: int) -> Mask:
    """Which tokens of the vocabulary are among some, ``[vocab_size]``."""
    tokens = np.array(token_ids, np.int64)
    is_there = np.zeros(vocab_size, np.bool_)
    is_there[tokens[(tokens >= 0) & (tokens < vocab_size)]] = True
    return is_there


def is_dense(cells: int, columns: int) -> bool:
    """Whether a host adds to so many cells of a row faster by adding to every column."""
    return cells > columns // 32


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

    def apply(self, logits: "torch.Tensor", more: Sequence[Additions] = ()) -> dict[int, Exception]:
        """Edit the logits in place.

        Where it raises, it has edited nothing, and may be called again.

        Args:
            logits: ``[rows, columns]`` float32, float16 or bfloat16; rows may be any distance
                apart.
            more: additions of this step alone.

        Returns:
            Rows that have only part of their edits, and why.
        """
        ...

    def force(self, logits: "torch.Tensor", row: int, token_id: int) -> None:
        """Have a token chosen, whatever else has been done to the row."""
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
        row_of: ``[cells]``, which of ``rows`` a cell is in; ascending.
        runs: the rows as ``[first, end)`` pairs, neighbours together.
        penalties: what the rows' further ALLOWs ban of that, if any row has several.
        kept: what the cells will be, once an editor knows it; then it has begun to write.
    """

    rows: Ints
    cells: Cells
    row_of: Ints
    runs: list[tuple[int, int]]
    penalties: "Penalties | None" = None
    kept: Any = None

    def of_row(self, row: int) -> "Allowed":
        """See ``Part``."""
        index = int(self.rows.searchsorted(row))
        first, end = self.row_of.searchsorted([index, index + 1]).tolist()
        return Allowed(
            np.array([row]),
            self.cells.of_row(row),
            np.zeros(end - first, np.int64),
            [(row, row + 1)],
            None if self.penalties is None else Penalties(self.penalties.values[first:end]),
            None if self.kept is None else self.kept[first:end],
        )


@dataclass(slots=True)
class Penalties:
    """What is added to all that ALLOWs leave: ``values``, ``[cells]`` float32."""

    values: Floats


@dataclass(slots=True)
class Forced(Cells):
    """One cell per forced row.

    Attributes:
        contested: ``[forced]``, rows that also have another edit, if there are any.
    """

    contested: Mask | None = None

    def of_row(self, row: int) -> "Forced":
        """See ``Part``."""
        mine = self.rows == row
        contested = None if self.contested is None else self.contested[mine]
        return Forced(self.rows[mine], self.token_ids[mine], contested)


NO_ADDITIONS = Additions(NO_CELLS, np.empty(0, np.float32))
NONE_ALLOWED = Allowed(np.empty(0, np.int64), NO_CELLS, np.empty(0, np.int64), [])
NONE_FORCED = Forced(NO_CELLS.rows, NO_CELLS.token_ids)


MAX_KEPT_PAIRS = 1 << 10
"""Pairs of token sets for which it is kept what both have."""


class Planner:
    """Says which cells to edit, and lays out anew only what has changed since the last step.

    What is laid out anew is a new object; what is the same object says the same.

    Attributes:
        forced: see there.
        added: what the automata's biases and bans add; apart are those of automata that never
            move.
        allowed: what the first ALLOWs of each row leave.
        outvoted: how many forced tokens lose to another one on their row.
    """

    def __init__(self, automata: Automata) -> None:
        self._automata = automata
        self._generation = -1
        self._shared = self._has_sets = False
        self._order: Ints = np.empty(0, np.int64)  # slots by row, then by rank
        self._adding: Ints = np.empty(0, np.int64)
        self._allowing: Ints = np.empty(0, np.int64)
        self.forced = NONE_FORCED
        self.added = [NO_ADDITIONS, NO_ADDITIONS]
        self.allowed = NONE_ALLOWED
        self._strict: Ints = np.empty(0, np.int64)  # the token set of each of the allowed rows
        self._common: dict[tuple[int, int], Ints] = {}  # see _places_in_common
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
            self._force_once(is_forced, rows[edits >= Edit.ALLOW])
        else:
            self.forced = Forced(rows[is_forced], tables.argument[states[is_forced]])
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
        moves: Mask,
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

    def _force_once(self, is_forced: Mask, contested: Ints) -> None:
        """Keep the first specs' tokens where several are forced on one row.

        Args:
            is_forced: by slot.
            contested: rows with other edits.
        """
        tables, values = self._automata.tables, self._automata.values
        slots = self._order[is_forced[self._order]]
        rows, first = np.unique(values[ROW, slots], return_index=True)
        self.outvoted = len(slots) - len(first)
        tokens, lost = tables.argument[values[STATE, slots[first]]], np.isin(rows, contested)
        self.forced = Forced(rows, tokens, lost if lost.any() else None)

    def _additions(self, slots: Ints) -> Additions:
        """What the token sets of some slots' states add."""
        if not len(slots):
            return NO_ADDITIONS
        tables, values = self._automata.tables, self._automata.values
        owner, cell = tables.cells(tables.argument[values[STATE, slots]])
        rows = values[ROW, slots][owner]
        return Additions(Cells(rows, tables.set_tokens[cell]), tables.set_values[cell], {})

    def _plan_allowed(self, slots: Ints) -> None:
        """Lay out what ALLOWs leave; the slots come by row, then by rank."""
        if not len(slots):
            self.allowed = NONE_ALLOWED
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
        allowed.penalties = penalties
        self.allowed, self._strict = allowed, strict

    def _banned_by_others(
        self, allowed: Allowed, strict: Ints, of_row: Ints, others: Ints
    ) -> Floats:
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
