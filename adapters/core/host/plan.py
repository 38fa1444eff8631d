"""The edits of one step: which cells of the logits change, and how.

Edits combine in one order, whatever order the specs were attached in: additions (biases and bans),
then ALLOW, then FORCE. Of contradictory edits, the later kind wins. A forced token is chosen even
if it is banned or not allowed. If every allowed token is banned, an allowed token is chosen. If two
specs force tokens on one row, the token of the spec attached first is chosen. If two specs allow
tokens, the first list is strict and the others ban the tokens that they do not contain. So a row
that came with a finite logit keeps one, or gets one if the engine had masked all allowed tokens.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..automaton import BAN_BIAS, Edit, Ints
from ..logits import (
    NO_CELLS,
    Additions,
    AnyAdditions,
    Cells,
    Floats,
    Mask,
    RowAdditions,
    Standing,
    mask,
)
from .batch import MOVES, RANK, STATE, AutomatonBatch
from .state_table import ROW


@dataclass(slots=True)
class Allowed:
    """Rows of which only some cells may remain.

    Attributes:
        rows: ``[allow]``.
        cells: the cells that may remain.
        row_of: ``[cells]``, the index in ``rows`` of each cell's row; ascending.
        runs: the rows as ``[first, end)`` pairs of adjacent rows.
        penalties: ``[cells]``, the bans by further ALLOWs, if any row has several ALLOWs.
        kept: the cells' final values, once an editor has computed them and begun to write.
    """

    rows: Ints
    cells: Cells
    row_of: Ints
    runs: list[tuple[int, int]]
    penalties: Floats | None = None
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
            None if self.penalties is None else self.penalties[first:end],
            None if self.kept is None else self.kept[first:end],
        )


@dataclass(slots=True, eq=False)
class AllowedRow:
    """A row of which only the tokens may remain that ALLOWs leave, if these are many.

    Attributes:
        row: the row of the logits.
        token_ids: the tokens of the first ALLOW.
        edit: the additions: -inf to the other tokens, and the bans by further ALLOWs.
        mask: the additions of -inf alone.
    """

    row: int
    token_ids: Ints
    edit: RowAdditions
    mask: RowAdditions

    @property
    def rows(self) -> Ints:
        """See ``Part``."""
        return np.array([self.row])

    def of_row(self, row: int) -> "AllowedRow":
        """See ``Part``."""
        return self


NONE_ALLOWED = Allowed(np.empty(0, np.int64), NO_CELLS, np.empty(0, np.int64), [])


LARGE = 1 << 10
"""The least number of cells for which a row is edited apart from other rows.

Laying out the cells of all rows costs more than editing them. The cells of a row with many cells
are laid out once, for all rows that have the same token sets.
"""

LARGE_ADDITION = 1 << 8
"""The same, for the additions of automata that move, which may be laid out at each step."""

MAX_KEPT_PAIRS = 1 << 10
"""The most pairs of token sets whose common tokens are kept."""

MAX_KEPT_CELLS = 1 << 20
"""The most cells that are kept for automata that move, beyond the cells of the last step."""


class EditPlan:
    """A plan of the cells to edit, which lays out only the changes since the last step.

    A part that is laid out anew is a new object; the same object has the same contents.

    Args:
        automata: the automata to follow.
        vocab_size: the number of tokens.

    Attributes:
        forced: one cell per forced row.
        allowed: the cells that the first ALLOWs of rows leave, for rows with few such cells.
        allowed_rows: the other rows with ALLOWs.
    """

    def __init__(self, automata: AutomatonBatch, vocab_size: int) -> None:
        self._automata, self._vocab_size = automata, vocab_size
        self._large = max(LARGE, vocab_size // 64)
        self._large_addition = min(LARGE_ADDITION, self._large)
        self._generation = -1
        self._shared = self._has_sets = False
        self._order: Ints = np.empty(0, np.int64)  # slots by row, then by rank
        self._adding: Ints = np.empty(0, np.int64)
        self._allowing: Ints = np.empty(0, np.int64)
        self.forced = NO_CELLS
        self._added: list[list[AnyAdditions]] = [
            [],
            [],
        ]  # of automata that never move, and of others
        self.allowed, self.allowed_rows = NONE_ALLOWED, list[AllowedRow]()
        self._strict: Ints = np.empty(0, np.int64)  # the token set of each of the allowed rows
        self._forget()

    def _forget(self) -> None:
        """Forget everything that is kept by token set: the sets have other numbers now."""
        self._common: dict[tuple[int, int], Ints] = {}  # see _common_indices
        self._standing: dict[tuple[int, ...], Standing] = {}  # of automata that never move
        self._moving: dict[tuple[int, ...], Standing] = {}  # of the others
        self._leaving: dict[tuple[int, ...], tuple[Ints, Standing, Standing]] = {}

    @property
    def added(self) -> list[AnyAdditions]:
        """The additions of biases and bans."""
        return self._added[0] + self._added[1]

    def update(self) -> None:
        """Follow the automata's states."""
        automata, tables = self._automata, self._automata.tables
        columns = automata.values[:, : len(automata)]
        states, rows = columns[STATE], columns[ROW]
        composed = automata.changed or self._generation != tables.generation
        if self._generation != tables.generation:
            self._forget()
        if composed:
            self._order = np.lexsort((columns[RANK], rows))
            self._shared = bool((np.diff(rows[self._order]) == 0).any())
        edits = tables.edit[states]
        is_forced = edits == Edit.FORCE
        if self._shared:
            self._force_once(is_forced)
        else:
            self.forced = Cells(rows[is_forced], tables.operand[states[is_forced]])
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
        """Lay out the acting token sets that differ from the last step's."""
        adds = (edits == Edit.ADD) | (edits == Edit.BAN_OTHERS)
        if composed:
            self._added[0] = self._additions(np.flatnonzero(adds & ~moves), stay=True)
        adding = np.where(adds & moves, states, -1)
        if composed or not np.array_equal(adding, self._adding):
            self._added[1] = self._additions(np.flatnonzero(adding >= 0), stay=False)
            self._adding = adding
        allowing = np.where(edits == Edit.ALLOW, states, -1)
        if composed or not np.array_equal(allowing, self._allowing):
            self._plan_allowed(self._order[allowing[self._order] >= 0])
            self._allowing = allowing

    def _force_once(self, is_forced: Mask) -> None:
        """Force one token per row: the first spec's, if several are forced.

        Args:
            is_forced: whether each slot's state forces a token.
        """
        tables, values = self._automata.tables, self._automata.values
        slots = self._order[is_forced[self._order]]
        rows, first = np.unique(values[ROW, slots], return_index=True)
        self.forced = Cells(rows, tables.operand[values[STATE, slots[first]]])

    def _additions(self, slots: Ints, *, stay: bool) -> list[AnyAdditions]:
        """Lay out the additions of the token sets of some slots' states.

        Args:
            slots: the slots.
            stay: whether they stay in these states for good.
        """
        if not len(slots):
            return []
        tables, values = self._automata.tables, self._automata.values
        states, rows = values[STATE, slots], values[ROW, slots]
        token_sets, bans_others = tables.operand[states], tables.edit[states] == Edit.BAN_OTHERS
        sizes = np.where(bans_others, self._large + 1, tables.set_sizes(token_sets))
        size = np.bincount(rows, sizes)[rows]
        large = size > (self._large if stay else self._large_addition)
        named = np.where(bans_others, ~token_sets, token_sets)
        of_row = _by_row(rows[large], named[large])
        kept = self._standing if stay else self._moving
        if stay or sum(map(len, kept.values())) > MAX_KEPT_CELLS:
            for unused in kept.keys() - of_row.values():  # drop sets that no row has any more
                del kept[unused]
        additions: list[AnyAdditions] = []
        for row, sets in of_row.items():
            if sets not in kept:
                kept[sets] = self._of_sets(sets, moves=not stay)
            additions.append(kept[sets].on(row))
        token_sets, rows = token_sets[~large], rows[~large]
        if len(rows):
            owner, cell = tables.cells(token_sets)
            cells = Cells(rows[owner], tables.set_tokens[cell])
            additions.append(Additions(cells, tables.set_values[cell], {}))
        return additions

    def _of_sets(self, token_sets: tuple[int, ...], *, moves: bool) -> Standing:
        """Combine the additions of some token sets; ``~set`` bans the tokens that a set has not."""
        tables, vocab_size = self._automata.tables, self._vocab_size
        _, cell = tables.cells(np.array([each for each in token_sets if each >= 0], np.int64))
        tokens, values = [tables.set_tokens[cell]], [tables.set_values[cell]]
        for each in token_sets:
            if each < 0:
                tokens.append(np.flatnonzero(~mask(tables.tokens(~each), vocab_size)))
                values.append(np.full(len(tokens[-1]), BAN_BIAS, np.float32))
        return Standing(np.concatenate(tokens), np.concatenate(values), moves=moves)

    def _plan_allowed(self, slots: Ints) -> None:
        """Lay out the cells that ALLOWs leave; the slots come by row, then by rank."""
        self.allowed_rows = []
        if not len(slots):
            self.allowed = NONE_ALLOWED
            return
        tables, values = self._automata.tables, self._automata.values
        token_sets, rows = tables.operand[values[STATE, slots]], values[ROW, slots]
        is_first = np.diff(rows, prepend=-1) != 0
        large = (tables.set_sizes(token_sets[is_first]) > self._large)[np.cumsum(is_first) - 1]
        self._plan_allowed_rows(rows[large], token_sets[large], values[MOVES, slots][large])
        token_sets, rows, is_first = token_sets[~large], rows[~large], is_first[~large]
        if not len(rows):
            self.allowed = NONE_ALLOWED
            return
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
        allowed.penalties = None
        if not is_first.all():  # several ALLOWs on one row: the first is strict
            of_row, others = rows_of_all[~is_first], token_sets[~is_first]
            allowed.penalties = self._banned_by_others(allowed, strict, of_row, others)
        self.allowed, self._strict = allowed, strict

    def _plan_allowed_rows(self, rows: Ints, token_sets: Ints, moves: Ints) -> None:
        """Lay out ALLOWs of many tokens, row by row; the first of a row is strict."""
        of_row, kept = _by_row(rows, token_sets), self._leaving
        for unused in kept.keys() - of_row.values():  # a choice never returns to a token set
            del kept[unused]
        moving = set(rows[moves != 0].tolist())
        for row, sets in of_row.items():
            if sets not in kept:
                kept[sets] = self._left_by(*sets, moves=row in moving)
            tokens, edit, mask_alone = kept[sets]
            self.allowed_rows.append(AllowedRow(row, tokens, edit.on(row), mask_alone.on(row)))

    def _left_by(self, strict: int, *others: int, moves: bool) -> tuple[Ints, Standing, Standing]:
        """Compute what ALLOWs of some token sets leave of any row; see ``AllowedRow``."""
        tokens = self._automata.tables.tokens(strict)
        in_all = np.ones(len(tokens), np.bool_)
        for other in others:
            in_all &= mask(self._common_indices(strict, other), len(tokens))
        ban = np.array(BAN_BIAS, np.float32)
        edit = Standing(tokens[~in_all], ban, tokens, moves=moves)
        mask_alone = Standing(tokens[:0], ban, tokens) if len(edit) else edit
        return tokens, edit, mask_alone

    def _banned_by_others(
        self, allowed: Allowed, strict: Ints, of_row: Ints, others: Ints
    ) -> Floats:
        """Compute what further ALLOWs, each a token set of a row, add to the allowed cells."""
        starts = np.searchsorted(allowed.row_of, np.arange(len(strict)))
        pairs = zip(strict[of_row].tolist(), others.tolist(), starts[of_row].tolist(), strict=True)
        kept = np.concatenate([self._common_indices(a, b) + start for a, b, start in pairs])
        is_contested = np.bincount(of_row, minlength=len(strict))
        if is_contested.max() > 1:  # a cell is kept only if all of them contain it
            kept, by_how_many = np.unique(kept, return_counts=True)
            kept = kept[by_how_many == is_contested[allowed.row_of[kept]]]
        values = np.where(is_contested != 0, np.float32(BAN_BIAS), np.float32(0))[allowed.row_of]
        values[kept] = 0
        return values

    def _common_indices(self, token_set: int, other: int) -> Ints:
        """Find the indices, in a token set, of the tokens that another set contains too. Kept."""
        places = self._common.get((token_set, other))
        if places is None:
            a, b = map(self._automata.tables.tokens, (token_set, other))
            small, large = (a, b) if len(a) <= len(b) else (b, a)
            at = np.minimum(large.searchsorted(small), len(large) - 1)
            found = large[at] == small
            places = np.flatnonzero(found) if small is a else at[found]
            if len(self._common) >= MAX_KEPT_PAIRS:
                self._common.clear()
            self._common[token_set, other] = places
        return places


def _by_row(rows: Ints, token_sets: Ints) -> dict[int, tuple[int, ...]]:
    """Group the token sets by row, in their order."""
    of_row: dict[int, tuple[int, ...]] = {}
    for row, token_set in zip(rows.tolist(), token_sets.tolist(), strict=True):
        of_row[row] = *of_row.get(row, ()), token_set
    return of_row
