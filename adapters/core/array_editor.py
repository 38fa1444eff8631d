"""Applies a step's edits to numpy arrays, where they are; and, by a subclass, to others.

On the host, torch would copy a row whose columns are not next to each other, and share the work
out among threads, which is slow where the engine's own threads want the same cores.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from .automata import Automata
from .edits import (
    Additions,
    Allowed,
    Cells,
    Forced,
    Planner,
    RowAdditions,
    attempt,
    is_dense,
    merged,
)
from .realizer import Realizer
from .slots import Failures
from .torch_editor import FORCED_LOGIT, HIGHEST_SHARE


class ArrayEditor:
    """Applies the edits of automata to a ``numpy.ndarray``."""

    def __init__(self, automata: Automata) -> None:
        self._planner = Planner(automata)
        self._kept: dict[Any, tuple[object, Any]] = {}
        self._outvoted = 0
        self._overruled: Any = np.int64(0)

    def overruled(self) -> int:
        """See ``TorchEditor``."""
        return self._outvoted + int(self._overruled.item())

    def update(self) -> None:
        """Follow the automata."""
        self._planner.update()

    def apply(self, logits: Any, more: Sequence[Additions] = ()) -> dict[int, Exception]:
        """Edit the logits in place. See ``Editor``.

        Args:
            logits: ``[rows, columns]``, of a floating-point type.
            more: additions of this step alone.
        """
        planner = self._planner
        added = [each for each in (*planner.added, *more) if len(each.values)]
        if added and self.highest_logit(logits.dtype) < FORCED_LOGIT:
            added = [merged(added)]
        failed: dict[int, Exception] = {}
        for additions in added:
            attempt(failed, self._add, additions, logits)
        if len(planner.allowed.rows):
            attempt(failed, self._allow, planner.allowed, logits)
            planner.allowed.kept = None
        if len(planner.forced.rows):
            self._outvoted += planner.outvoted
            attempt(failed, self._force, planner.forced, logits)
        return failed

    def force(self, logits: Any, row: int, token_id: int) -> None:
        """See ``Editor``."""
        logits[row] = 0  # another token may have been forced
        logits[row, token_id] = self.highest_logit(logits.dtype)

    def _add(self, additions: Additions, logits: Any) -> None:
        dtype = logits.dtype
        if self.highest_logit(dtype) < FORCED_LOGIT:
            index = self._index(additions.cells)
            logits[index] = self._bounded_sum(logits[index], self._array(additions.values))
            return
        if isinstance(additions, RowAdditions):
            self._add_to_row(additions, logits)
            return
        placed = None if additions.kept is None else additions.kept.get(dtype)
        if placed is None:
            placed = self._placed(additions, dtype)
            if additions.kept is not None:
                additions.kept[dtype] = placed
        self._add_at(logits, *placed)

    def _allow(self, allowed: Allowed, logits: Any) -> None:
        index = self._keep("cells", allowed.cells, self._index)
        rows = self._keep("rows", allowed, lambda each: self._array(each.rows))
        if allowed.kept is None:
            allowed.kept = self._kept_of(allowed, logits[index])
        logits[rows] = -np.inf
        logits[index] = allowed.kept

    def _kept_of(self, allowed: Allowed, kept: Any) -> Any:
        """What the allowed cells are going to be."""
        row_of = self._keep("row of", allowed, lambda each: self._array(each.row_of))
        if allowed.penalties is not None:
            penalties = self._keep(
                "penalties", allowed.penalties, lambda each: self._array(each.values)
            )
            kept = self._bounded_sum(kept, penalties)
        best = self._best(len(allowed.rows), row_of, kept)
        self._count(best < -self.highest_logit(kept.dtype) / 2)
        return self._where((best == -np.inf)[row_of], 0, kept)

    def _add_to_row(self, additions: RowAdditions, logits: Any) -> None:
        """As ``TorchEditor`` does."""
        kept = additions.placed
        row, dtype, columns = int(additions.rows[0]), logits.dtype, logits.shape[1]
        layout = type(self), columns, dtype
        if layout not in kept and is_dense(len(additions.values), columns):
            kept[layout] = None, self._array(additions.whole_row(columns)).astype(dtype)
        elif layout not in kept:
            kept[layout] = self._placed(additions, dtype)[1:]
        tokens, values = kept[layout]
        if tokens is None:
            logits[row] += values
        else:
            self._add_at(logits, row, tokens, values)

    def _force(self, forced: Forced, logits: Any) -> None:
        limit = self.highest_logit(logits.dtype)
        rows, tokens = self._keep("forced", forced, self._index)
        if forced.contested is not None:
            contested = self._array(np.flatnonzero(forced.contested))
            self._count(logits[rows[contested], tokens[contested]] < -limit / 2)
        logits[rows, tokens] = limit

    def _bounded_sum(self, cells: Any, values: Any) -> Any:
        """As ``TorchEditor`` has it."""
        dtype, limit = cells.dtype, self.highest_logit(cells.dtype)
        if limit == FORCED_LOGIT:
            return cells + values.astype(dtype)
        sums, highest = cells.astype(values.dtype) + values, HIGHEST_SHARE * limit
        sums = self._where(sums > highest, highest, self._where(sums < -limit, -limit, sums))
        return self._where(cells == -np.inf, cells, sums.astype(dtype))

    def _keep(self, place: Any, plan: Any, make: Callable[[Any], Any]) -> Any:
        """What ``make`` makes of a plan, which is made again when the plan is another one."""
        if place not in self._kept or self._kept[place][0] is not plan:
            self._kept[place] = plan, make(plan)
        return self._kept[place][1]

    def _index(self, cells: Cells) -> tuple[Any, Any]:
        return self._array(cells.rows), self._array(cells.token_ids)

    def _placed(self, additions: Additions, dtype: Any) -> tuple[Any, Any, Any]:
        limit = self.highest_logit(dtype)
        values = self._array(np.clip(additions.values, -limit, limit))
        return *self._index(additions.cells), values.astype(dtype)

    # --- what differs from one kind of array to another ---

    _where: ClassVar[Callable[..., Any]] = staticmethod(np.where)

    def highest_logit(self, dtype: Any) -> float:
        """``FORCED_LOGIT``, or what can stand for it in a narrow type with room to be scaled."""
        return min(FORCED_LOGIT, float(np.finfo(dtype).max) / 4)

    def _array(self, values: npt.NDArray[Any]) -> Any:
        return values

    def _add_at(self, logits: Any, rows: Any, tokens: Any, values: Any) -> None:
        np.add.at(logits, (rows, tokens), values)

    def _best(self, rows: int, row_of: Any, kept: Any) -> Any:
        """The highest of each row's kept logits, ``[rows]``."""
        best = np.full(rows, -np.inf, kept.dtype)
        np.maximum.at(best, row_of, kept)
        return best

    def _count(self, events: Any) -> None:
        self._overruled = events.sum() + self._overruled  # the first decides whose sum it is


class ArrayRealizer(Realizer):
    """A ``Realizer`` of numpy arrays."""

    editor: ClassVar[type[ArrayEditor]] = ArrayEditor

    def apply(self, logits: Any) -> None:
        """Edit the logits of the next tokens in place.

        Args:
            logits: ``[rows, columns]``, of a floating-point type, any distance apart.
        """
        super().apply(logits)

    def _make_editor(self, logits: Any) -> ArrayEditor:
        return self.editor(self._automata)

    def _run_code(self, logits: Any, additions: list[Additions]) -> Failures:
        """Callables get a torch tensor, as with every engine: here it is the same memory."""
        return super()._run_code(torch.from_numpy(logits), additions)
