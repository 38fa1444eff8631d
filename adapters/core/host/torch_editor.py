"""The editor that applies a step's edits with torch operations, on any device."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch

from ..logits import (
    AnyAdditions,
    Cells,
    RowAdditions,
    add_once,
    add_to_row,
    bounded_sum,
    flat_index,
    flattened,
    highest_logit,
    shared_array,
    to_device,
)
from .batch import AutomatonBatch
from .editor import PlanEditor
from .plan import Allowed, AllowedRow


class TorchEditor(PlanEditor):
    """An editor that takes a few passes at most, none of which waits for the device."""

    def __init__(self, automata: AutomatonBatch, vocab_size: int) -> None:
        super().__init__(automata, vocab_size)
        self._layout: tuple[object, ...] = ()
        self._array: npt.NDArray[Any] | None = None  # of a step's logits

    def apply(
        self, logits: torch.Tensor, more: Sequence[AnyAdditions] = ()
    ) -> dict[int, Exception]:
        """Edit the logits in place. See ``Editor``."""
        if not logits.is_contiguous() and logits.stride(1) != 1 and logits.shape[1] > 1:
            copy = logits.contiguous()
            failed = self.apply(copy, more)
            logits.copy_(copy)
            return failed
        layout = (logits.stride(0), logits.dtype, logits.device)
        if layout != self._layout:
            self._layout = layout
            self._kept.clear()
        self._array = shared_array(logits)
        try:
            return super().apply(logits, more)
        finally:
            self._array = None  # it would keep the logits

    def highest_logit(self, dtype: torch.dtype) -> float:
        return highest_logit(dtype)

    def _add(self, additions: AnyAdditions, logits: torch.Tensor) -> None:
        if isinstance(additions, RowAdditions):
            if not add_to_row(logits, additions, self._array):
                self._maybe_empty.add(additions.row)
        else:
            add_once(additions, logits)

    def _allow(self, allowed: Allowed, logits: torch.Tensor) -> None:
        flat = flattened(logits)
        index = self._keep("cells", allowed, lambda each: flat_index(each.cells, logits))
        if allowed.kept is None:
            allowed.kept = self._kept_of(allowed, flat[index])
        if logits.device.type == "cpu":  # slices fill twice as fast as single rows
            for first, end in allowed.runs:
                logits[first:end].fill_(-torch.inf)
        else:
            rows = self._keep("rows", allowed, lambda each: to_device(each.rows, logits.device))
            logits.index_fill_(0, rows, -torch.inf)
        flat[index] = allowed.kept

    def _keep_finite(self, part: AllowedRow, logits: torch.Tensor) -> None:
        row = logits[part.row]
        token_ids = to_device(part.token_ids, row.device)
        kept = row[token_ids]
        if not row.is_cpu or kept.amax().item() == -torch.inf:
            row[token_ids] = kept.masked_fill(kept.amax() == -torch.inf, 0)

    def _kept_of(self, allowed: Allowed, kept: torch.Tensor) -> torch.Tensor:
        """Compute the final values of the allowed cells."""
        device = kept.device
        if allowed.penalties is not None:
            penalties = self._keep(
                "penalties",
                allowed.penalties,
                lambda each: to_device(torch.from_numpy(each), device),
            )
            kept = bounded_sum(kept, penalties)
        row_of = self._keep("row of", allowed, lambda each: to_device(each.row_of, device))
        best = kept.new_full((len(allowed.rows),), -torch.inf)
        best.scatter_reduce_(0, row_of, kept, "amax")
        if device.type != "cpu" or best.min() == -torch.inf:
            kept.masked_fill_((best == -torch.inf)[row_of], 0)
        return kept

    def _force(self, forced: Cells, logits: torch.Tensor) -> None:
        index = self._keep("forced", forced, lambda each: flat_index(each, logits))
        flattened(logits).index_fill_(0, index, highest_logit(logits.dtype))
