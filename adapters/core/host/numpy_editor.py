"""An editor that changes numpy arrays in place, and a base for editors of other arrays.

On the host, torch would copy a row whose columns are not adjacent. It would also divide the work
among threads, which is slow if the engine's own threads need the same cores.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from ..logits import (
    FORCED_LOGIT,
    HIGHEST_SHARE,
    AnyAdditions,
    Cells,
    Floats,
    RowAdditions,
    lower,
)
from .editor import PlanEditor
from .plan import Allowed, AllowedRow


class NumpyEditor(PlanEditor):
    """An editor that applies the edits of automata to a ``numpy.ndarray``."""

    def _add(self, additions: AnyAdditions, logits: Any) -> None:
        dtype = logits.dtype
        if isinstance(additions, RowAdditions):
            self._add_to_row(additions, logits)
            return
        if self.highest_logit(dtype) < FORCED_LOGIT:
            index = self._index(additions.cells)
            logits[index] = self._bounded_sum(logits[index], self._array(additions.values))
            return
        placed = None if additions.kept is None else additions.kept.get(dtype)
        if placed is None:
            placed = self._placed(additions, dtype)
            if additions.kept is not None:
                additions.kept[dtype] = placed
        self._add_at(logits, *placed)

    def _allow(self, allowed: Allowed, logits: Any) -> None:
        index = self._keep("cells", allowed, lambda each: self._index(each.cells))
        rows = self._keep("rows", allowed, lambda each: self._array(each.rows))
        if allowed.kept is None:
            allowed.kept = self._kept_of(allowed, logits[index])
        logits[rows] = -np.inf
        logits[index] = allowed.kept

    def _keep_finite(self, part: AllowedRow, logits: Any) -> None:
        kept, layout = part.mask.standing.kept, type(self)
        if layout not in kept:
            kept[layout] = self._array(part.token_ids)
        cells = part.row, kept[layout]
        left = logits[cells]
        logits[cells] = self._where(left.max() == -np.inf, 0, left)

    def _kept_of(self, allowed: Allowed, kept: Any) -> Any:
        """Compute the final values of the allowed cells."""
        row_of = self._keep("row of", allowed, lambda each: self._array(each.row_of))
        if allowed.penalties is not None:
            penalties = self._keep("penalties", allowed.penalties, self._array)
            kept = self._bounded_sum(kept, penalties)
        best = self._best(len(allowed.rows), row_of, kept)
        return self._where((best == -np.inf)[row_of], 0, kept)

    def _add_to_row(self, additions: RowAdditions, logits: Any) -> None:
        """Apply additions to one row, as ``TorchEditor`` does."""
        (row, standing), dtype, columns = additions, logits.dtype, logits.shape[1]
        kept, layout = standing.kept, (type(self), columns, dtype)
        if layout not in kept:
            limits, cells, sums = standing.laid_out(columns)
            kept[layout] = (
                None if limits is None else self._array(limits).astype(dtype),
                None if cells is None else self._array(cells),
                self._array(sums).astype(dtype) if cells is None else self._values(sums, dtype),
            )
        limits, tokens, values = kept[layout]
        if limits is not None and not self._lower(logits, row, limits, standing.sample):
            self._maybe_empty.add(row)
        if tokens is None:
            logits[row] = logits[row] + values  # ``+=`` adds before it writes, and may fail
        elif len(tokens):
            self._add_at(logits, row, tokens, values)

    def _force(self, forced: Cells, logits: Any) -> None:
        rows, tokens = self._keep("forced", forced, self._index)
        logits[rows, tokens] = self.highest_logit(logits.dtype)

    def _bounded_sum(self, cells: Any, values: Any) -> Any:
        """Add values to cells within the bounds of their type, as ``TorchEditor`` does."""
        dtype, limit = cells.dtype, self.highest_logit(cells.dtype)
        if limit == FORCED_LOGIT:
            return cells + values.astype(dtype)
        sums, highest = cells.astype(values.dtype) + values, HIGHEST_SHARE * limit
        sums = self._where(sums > highest, highest, self._where(sums < -limit, -limit, sums))
        return self._where(cells == -np.inf, cells, sums.astype(dtype))

    def highest_logit(self, dtype: Any) -> float:
        return min(FORCED_LOGIT, float(self._finfo(dtype).max) / 4)

    def _index(self, cells: Cells) -> tuple[Any, Any]:
        return self._array(cells.rows), self._array(cells.token_ids)

    def _placed(self, additions: AnyAdditions, dtype: Any) -> tuple[Any, Any, Any]:
        return *self._index(additions.cells), self._values(additions.values, dtype)

    def _values(self, values: Floats, dtype: Any) -> Any:
        limit = self.highest_logit(dtype)
        return self._array(np.clip(values, -limit, limit)).astype(dtype)

    # --- operations that differ between kinds of arrays ---

    def as_tensor(self, logits: Any) -> AbstractContextManager[torch.Tensor]:
        """See ``Editor``. The tensor shares the array's memory."""
        return nullcontext(torch.from_numpy(logits))

    _where: ClassVar[Callable[..., Any]] = staticmethod(np.where)
    _finfo: ClassVar[Callable[..., Any]] = staticmethod(np.finfo)

    def _array(self, values: npt.NDArray[Any]) -> Any:
        return values

    def _add_at(self, logits: Any, rows: Any, tokens: Any, values: Any) -> None:
        np.add.at(logits, (rows, tokens), values)

    def _lower(self, logits: Any, row: int, limits: Any, sample: int) -> bool:
        """See ``lower``."""
        return lower(logits[row], limits, sample)

    def _best(self, rows: int, row_of: Any, kept: Any) -> Any:
        """Find the highest kept logit of each row, ``[rows]``."""
        best = np.full(rows, -np.inf, kept.dtype)
        np.maximum.at(best, row_of, kept)
        return best
