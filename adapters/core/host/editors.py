"""Editors, which apply a step's edits to logits in one kind of array."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from ..automaton import BAN_BIAS
from ..automaton.automata import Automata
from ..automaton.history import Tokens
from ..logits import FORCED_LOGIT, FORCED_SHARE, Floats, Mask, bounded
from ..parts import Chain
from .edit import MOVE, add, edit, find_edited
from .history_rules import HistoryRules, scratch_for
from .shape import shape

Indices = npt.NDArray[np.int64]


class Edits:
    """The edits of a step: what acts on the requests, and in which rows these are.

    Args:
        automata: the automata, and the index of each request.
        vocab_size: the number of tokens.

    Attributes:
        rules: the history rules of the requests that have some.
        chains: the chains of the requests that have one.
        own: additions in this step by requests' own code, and by marks: the request, tokens,
            values.
        has_written: whether any logit may have been edited since this was last set to false.
    """

    def __init__(self, automata: Automata, vocab_size: int) -> None:
        self.automata = automata
        self.rules: dict[Any, HistoryRules] = {}
        self.chains: dict[Any, Chain] = {}
        self.own: list[tuple[Any, tuple[Tokens, Floats]]] = []
        self.has_written = False
        self.scratch = scratch_for(vocab_size)
        self._vocab_size = vocab_size
        self._rows: tuple[int, Indices] = -1, np.zeros(0, np.int64)
        self._last_row = -1

    @property
    def rows(self) -> Indices:
        """The row of each index; the same array until one of them changes."""
        if self._rows[0] != self.automata.generation:
            rows = [request.row for request in self.automata.requests]
            self._rows = self.automata.generation, np.array(rows, np.int64)
            self._last_row = max(rows, default=-1)
        return self._rows[1]

    def check_rows(self, rows: int) -> None:
        """Check that the logits have the row of each index: no loop, kernel or GPU does.

        Raises:
            IndexError: if they have too few rows.
        """
        if len(self.rows) and self._last_row >= rows:
            what = f"Row {self._last_row} is beyond the logits of {rows} rows"
            raise IndexError(f"{what}: `remove` the requests that have left")

    def shape(self, logits: Any, editor: "Editor") -> dict[Any, Floats]:
        """Return the rows of requests with a chain, after its steps.

        A row that has a forced token, or no token that may come, is not among them.
        """
        if not self.chains:  # most steps
            return {}
        limit, shaped = editor.highest_logit(logits.dtype), dict[Any, Floats]()
        for request, chain in self.chains.items():
            row = editor.on_host(logits, request.row)
            if not row.max() >= FORCED_SHARE * limit:
                left = shape(row[: self._vocab_size], chain.steps, -limit / 2)
                if left is not None:
                    values = np.full(len(row), -np.inf, np.float32)  # `row` may be the logits' own
                    bent = left.logits * np.float32(chain.temperature)
                    values[left.tokens] = np.minimum(bent, np.float32(limit))
                    shaped[request] = values
        return shaped

    def draw(
        self, logits: Any, editor: "Editor", shaped: Mapping[Any, Floats]
    ) -> list[tuple[Any, tuple[Tokens, Floats]]]:
        """Return what marks add, before the edits of a step: they force the tokens that they draw.

        A request with a mark has no other edits here but a chain, see ``Mark``.

        Args:
            logits: the logits.
            editor: their editor.
            shaped: what ``shape`` has returned.
        """
        drawn: list[tuple[Any, tuple[Tokens, Floats]]] = []
        for request, rules in self.rules.items():
            if rules.drawing is not None:
                forced = FORCED_SHARE * editor.highest_logit(logits.dtype)
                row = shaped.get(request)
                row = editor.on_host(logits, request.row) if row is None else row
                token_id = rules.draw(row[: self._vocab_size])
                if token_id >= 0 and row[token_id] < forced:
                    value = np.float32(FORCED_LOGIT) - min(row[token_id], 0)
                    cells = np.array([token_id], np.int32), np.array([value], np.float32)
                    drawn.append((request, cells))
        return drawn

    def write_shaped(self, logits: Any, editor: "Editor", shaped: Mapping[Any, Floats]) -> None:
        """Write rows that ``shape`` has returned, after all other edits, which are of other rows.

        A row with a drawn token keeps it: whatever else the row has, that token comes.
        """
        drawn = {request for request, _ in self.own}
        rows = {each.row: row for each, row in shaped.items() if each not in drawn}
        if rows:
            at = editor.array(np.array([*rows]), logits)
            values = editor.like(editor.array(np.stack([*rows.values()]), logits), logits)
            self.has_written = True
            logits[at] = values

    def of_automata(self) -> "Edits":
        """Return the edits of automata alone."""
        edits = copy(self)
        edits.rules, edits.own = {}, []
        return edits

    def find_edited(self) -> tuple[Indices, Mask, Mask]:
        """Find the indices whose rows are edited, or may be.

        Returns:
            The indices, which of them have an ALLOW, and which have one with the forced token.
        """
        automata, tables, requests = self.automata, self.automata.tables, len(self.automata)
        is_edited, is_limited, is_offered = np.zeros((3, requests), np.bool_)
        of_requests = requests, automata.count, automata.states
        find_edited(tables.edits, *of_requests, is_edited, is_limited, is_offered)
        for request in (*self.rules, *(each for each, _ in self.own)):
            is_edited[request.index] = True
        indices = np.flatnonzero(is_edited)
        return indices, is_limited[indices], is_offered[indices]

    def write(self, logits: Floats, starts: Indices, columns: int, *, moves: bool) -> None:
        """Edit flat rows: additions of code and history rules, then the automata's edits.

        Args:
            logits: the rows, end to end.
            starts: of each index, where its row starts, or -1.
            columns: the number of columns.
            moves: whether the rows are whole, so that a MOVE can read them.
        """
        for request, (tokens, values) in self.own:
            add(logits, int(starts[request.index]), columns, tokens, values, 0, len(tokens))
        for request, rules in self.rules.items():
            rules.edit(logits, int(starts[request.index]), columns, self.scratch)
        automata = self.automata
        of_requests = automata.tables.edits, automata.count, automata.states
        edit(logits, starts, columns, len(automata), *of_requests, self.scratch[1], moves)

    def find_moves(self, indices: Indices, columns: int) -> list[Any]:
        """List the MOVEs of a step; nothing if there are none.

        Args:
            indices: the indices whose rows are edited.
            columns: the number of columns.

        Returns:
            ``[moves]`` each: the row, as an index of ``indices``; the token that gets the mass;
            ``[moves, most]`` the tokens that have it, and which of these do not just fill the list;
            and the temperature.
        """
        automata, tables = self.automata, self.automata.tables
        states, count = automata.states[indices], automata.count[indices]
        is_move = (tables.edit[states] == MOVE) & (np.arange(states.shape[1]) < count[:, None])
        found: list[tuple[Any, ...]] = []
        for row, rank in zip(*is_move.nonzero(), strict=True):
            token_set = tables.operand[states[row, rank]]
            part = slice(*tables.set_ends[token_set : token_set + 2])
            tokens, values = tables.set_tokens[part].astype(np.int64), tables.set_values[part]
            ends, first = tokens[(values == 0) & (tokens < columns)], tokens[values.argmax()]
            if len(ends) and first < columns:
                found.append((row, first, ends, values.max()))
        if not found:
            return []
        rows, firsts, ends, temperatures = zip(*found, strict=True)
        most = max(map(len, ends))
        listed = [np.pad(each, (0, most - len(each)), "edge") for each in ends]
        is_end = [np.arange(most) < len(each) for each in ends]
        return [*map(np.array, (rows, firsts, listed, is_end, temperatures))]


class Editor(ABC):
    """An editor of one kind of array. It waits for nothing.

    As it is here, it is for arrays that the host cannot write. The edits are made to rows of zeros
    on the host. What they have become is sent to the device, and added to the logits there.
    Subclasses name the operations of an array library.

    Attributes:
        where, finfo: functions of the array library, as numpy has them.
        logsumexp: a function of the array library, as torch has it.
        compiles: whether the first step compiles a kernel, so that it takes long.
    """

    compiles: ClassVar[bool] = False
    where: ClassVar[Callable[..., Any]]
    finfo: ClassVar[Callable[..., Any]]
    logsumexp: ClassVar[Callable[..., Any]]

    def apply(self, logits: Any, edits: Edits) -> None:
        """Edit the logits in place.

        Args:
            logits: ``[rows, columns]``, of a floating-point type; rows may be any distance apart.
            edits: the edits.
        """
        indices, is_limited, is_offered = edits.find_edited()
        if len(indices):
            edits.check_rows(logits.shape[0])
            columns = logits.shape[1]
            rows, changes = edits.rows[indices], np.zeros((len(indices), columns), np.float32)
            starts = _starts_of(indices, edits, columns)
            edits.write(changes.reshape(-1), starts, columns, moves=False)
            at = self.array(rows, logits)
            edited = self._combine(logits, at, changes, is_limited, is_offered)
            if moves := edits.find_moves(indices, columns):
                self._move(edited, *(self.array(each, logits) for each in moves))
            logits[at] = edited
            edits.has_written = True  # only now: if it fails, the step is made again

    def _combine(
        self, logits: Any, at: Any, changes: Floats, is_limited: Mask, is_offered: Mask
    ) -> Any:
        change, where = self.array(changes, logits), self.where
        before, limit = logits[at], self.highest_logit(logits.dtype)
        is_masked = change == -np.inf
        after = self.floats(before) + where(is_masked, 0.0, change)
        if limit < FORCED_LOGIT:  # the type cannot hold every sum
            sums = bounded(self.floats(before), after, limit, where)
            after = where((change == 0) | (after == -np.inf), after, sums)
        after = where(is_masked, -np.inf, after)
        is_forced = change >= FORCED_LOGIT
        # A forced token counts as it was, if the list has it.
        offered = where(self.array(is_offered, logits)[:, None], self.floats(before), -np.inf)
        is_possible = (where(is_forced, offered, after) > -np.inf).any(1)
        is_empty = (self.array(is_limited, logits) & ~is_possible)[:, None]
        after = where(is_forced, limit, where(is_empty & ~is_masked, -limit, after))
        return where((change == 0) & ~is_empty, before, self.like(after, before))

    def _move(
        self, rows: Any, at: Any, first: Any, ends: Any, is_end: Any, temperature: Any
    ) -> None:
        """Make the MOVEs of ``Edits.find_moves`` in edited rows, as ``edit.move`` does."""
        where, limit, cells = self.where, self.highest_logit(rows.dtype), (at[:, None], ends)
        logits = where(is_end, self.floats(rows[cells]), -np.inf)
        summed = temperature * self.logsumexp(logits / temperature[:, None], 1)
        mass = where(is_end.sum(1) == 1, logits[:, 0], summed)  # one logit is not rounded
        before = rows[at, first]
        banned = self.floats(before) + BAN_BIAS
        banned = where((banned < -limit) & (banned > -np.inf), -limit, banned)
        rows[cells] = -np.inf
        rows[at, first] = self.like(where(mass > -np.inf, mass, banned), before)

    def find_forced(self, logits: Any) -> Any:
        """Return which rows have a forced token: an array ``[rows]``, where the logits are."""
        return logits.max(1) > FORCED_SHARE * self.highest_logit(logits.dtype)

    def end_where_banned(self, logits: Any, forced: Any, rows: Indices, tokens: Indices) -> None:
        """Force a token in each row that has only banned tokens, or no longer its forced token.

        A row whose best logit is NaN or infinity is written whole.

        Args:
            logits: ``[rows, columns]``, edited.
            forced: what ``find_forced`` has returned before the edits.
            rows: the rows in question.
            tokens: the token of each. Both arrays stay the same while they are unchanged.
        """
        at, columns = self.array(rows, logits), self.array(tokens, logits)
        limit, best = self.highest_logit(logits.dtype), logits.max(1)
        is_broken = ~(best < np.inf)
        is_lost = is_broken | (best < -limit / 2) | (forced & (best < FORCED_SHARE * limit))
        before = logits[at]
        logits[at] = self.like(self.where(is_broken[at][:, None], -limit, before), before)
        kept = logits[at, columns]
        logits[at, columns] = self.like(self.where(is_lost[at], limit, kept), kept)

    def highest_logit(self, dtype: Any) -> float:
        """Return ``FORCED_LOGIT``, or a substitute that leaves a narrow type room for scaling."""
        return min(FORCED_LOGIT, float(self.finfo(dtype).max) / 4)

    def force(self, logits: Any, row: int, token_id: int) -> None:
        """Force a token, whatever the row's earlier edits were."""
        logits[row] = 0  # another token may have been forced
        logits[row, token_id] = self.highest_logit(logits.dtype)

    def as_tensor(self, logits: Any) -> AbstractContextManager[Any]:
        """Give callables the logits as a torch tensor, and take over what they have written."""
        return nullcontext(logits)

    @abstractmethod
    def array(self, values: npt.NDArray[Any], logits: Any) -> Any:
        """Send values to the device of the logits."""

    @abstractmethod
    def floats(self, values: Any) -> Any:
        """Convert to float32."""

    @abstractmethod
    def on_host(self, logits: Any, row: int) -> Floats:
        """Return a row as float32 on the host, which waits for the device."""

    @abstractmethod
    def like(self, values: Any, other: Any) -> Any:
        """Convert to the type of another array."""


class HostEditor(Editor):
    """An editor of numpy arrays. It writes float32 row by row, and leaves the rest to its base."""

    where: ClassVar[Callable[..., Any]] = staticmethod(np.where)
    finfo: ClassVar[Callable[..., Any]] = staticmethod(np.finfo)
    logsumexp: ClassVar[Callable[..., Any]] = staticmethod(np.logaddexp.reduce)

    def __init__(self) -> None:
        self._starts: tuple[Any, int, Indices] = None, 0, np.zeros(0, np.int64)

    def apply(self, logits: npt.NDArray[Any], edits: Edits) -> None:
        """See ``Editor``.

        Raises:
            ValueError: if the logits are read-only or reversed.
        """
        _check_array(logits)
        if logits.dtype != np.float32 or logits.strides[1] != logits.itemsize:
            super().apply(logits, edits)
            return
        columns, stride = logits.shape[1], logits.strides[0] // logits.itemsize
        if stride == columns or len(logits) == 1:
            flat = logits.reshape(-1)
        else:
            flat = as_strided(logits, ((len(logits) - 1) * stride + columns,), (logits.itemsize,))
        rows = edits.rows
        if self._starts[0] is not rows or self._starts[1] != stride:
            self._starts = rows, stride, rows * stride
        edits.check_rows(len(logits))
        edits.has_written = True
        edits.write(flat, self._starts[2], columns, moves=True)

    def force(self, logits: npt.NDArray[Any], row: int, token_id: int) -> None:
        """See ``Editor``."""
        _check_array(logits)
        super().force(logits, row, token_id)

    def as_tensor(self, logits: npt.NDArray[Any]) -> AbstractContextManager[Any]:
        """See ``Editor``. The tensor shares the array's memory."""
        from torch import from_numpy

        return nullcontext(from_numpy(logits))

    def array(self, values: npt.NDArray[Any], logits: npt.NDArray[Any]) -> Any:
        """See ``Editor``."""
        return values

    def floats(self, values: npt.NDArray[Any]) -> Any:
        """See ``Editor``. What float32 does not have, as -1.8e308, is infinite."""
        with np.errstate(over="ignore"):
            return values.astype(np.float32)

    def on_host(self, logits: npt.NDArray[Any], row: int) -> Floats:
        """See ``Editor``."""
        return self.floats(logits[row])

    def like(self, values: npt.NDArray[Any], other: npt.NDArray[Any]) -> Any:
        """See ``Editor``. What a narrow type does not have is infinite."""
        with np.errstate(over="ignore"):
            return values.astype(other.dtype)


def _check_array(logits: np.ndarray) -> None:
    """Check that an array can be written, row after row.

    Raises:
        ValueError: if it is read-only or reversed.
    """
    if not logits.flags.writeable or min(logits.strides) < 0:
        raise ValueError("Expected logits that can be written, with rows and columns in order")


def _starts_of(indices: Indices, edits: Edits, columns: int) -> Indices:
    """Return where the rows start, of these indices alone, which lie end to end."""
    starts = np.full(len(edits.automata), -1, np.int64)
    starts[indices] = np.arange(len(indices)) * columns
    return starts
