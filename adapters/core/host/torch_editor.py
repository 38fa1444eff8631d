"""The editor that applies a step's edits with torch operations, on any device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..logits import (
    Additions,
    Cells,
    add_once,
    bounded_sum,
    flat_index,
    flattened,
    highest_logit,
    mask,
    to_device,
)
from .batch import AutomatonBatch
from .editor import PlanEditor
from .plan import Allowed, AllowedRow


@dataclass(slots=True)
class _Placed:
    """A plan's object on the device, as flat indices into logits of one row stride."""

    plan: object
    index: torch.Tensor
    values: torch.Tensor


_NOWHERE = _Placed(None, torch.empty(0, dtype=torch.int64), torch.empty(0))


class TorchEditor(PlanEditor):
    """An editor that takes a few passes at most, none of which waits for the device."""

    def __init__(self, automata: AutomatonBatch, vocab_size: int) -> None:
        super().__init__(automata, vocab_size)
        self._layout: tuple[object, ...] = ()
        self._forget_placed()

    def _forget_placed(self) -> None:
        self._allowed = self._allow_rows = self._penalties = self._forced = _NOWHERE

    def apply(self, logits: torch.Tensor, more: Sequence[Additions] = ()) -> dict[int, Exception]:
        """Edit the logits in place. See ``Editor``."""
        if logits.stride(1) != 1 and logits.shape[1] > 1:
            copy = logits.contiguous()
            failed = self.apply(copy, more)
            logits.copy_(copy)
            return failed
        layout = (logits.stride(0), logits.dtype, logits.device)
        if layout != self._layout:
            self._layout = layout
            self._forget_placed()
        return super().apply(logits, more)

    def highest_logit(self, dtype: torch.dtype) -> float:
        return highest_logit(dtype)

    def _add(self, additions: Additions, logits: torch.Tensor) -> None:
        add_once(additions, logits)

    def _allow(self, allowed: Allowed, logits: torch.Tensor) -> None:
        flat = flattened(logits)
        if self._allowed.plan is not allowed:
            row_of = to_device(allowed.row_of, logits.device)
            placed = _Placed(allowed, flat_index(allowed.cells, logits), row_of)
            rows = to_device(allowed.rows, logits.device)
            self._allow_rows = _Placed(allowed, rows, logits.new_empty(len(rows)))
            self._allowed = placed
        if allowed.kept is None:
            allowed.kept = self._kept(allowed, logits, flat)
        if logits.device.type == "cpu":  # slices fill twice as fast as single rows
            for first, end in allowed.runs:
                logits[first:end].fill_(-torch.inf)
        else:
            logits.index_fill_(0, self._allow_rows.index, -torch.inf)
        flat[self._allowed.index] = allowed.kept

    def _allow_in_row(self, part: AllowedRow, logits: torch.Tensor) -> None:
        row = logits[part.row]
        if row.device.type == "cpu" and row.amax() > -torch.inf:  # otherwise it may be NaN
            return
        is_allowed = torch.from_numpy(mask(part.token_ids, row.shape[0]))
        is_allowed = to_device(is_allowed, row.device)
        row.masked_fill_(~is_allowed, -torch.inf)
        row.masked_fill_(is_allowed & (row.amax() == -torch.inf), 0)

    def _kept(self, allowed: Allowed, logits: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
        """Compute the final values of the allowed cells."""
        kept = flat[self._allowed.index]
        if (penalties := allowed.penalties) is not None:
            if self._penalties.plan is not penalties:
                values = to_device(torch.from_numpy(penalties.values), logits.device)
                self._penalties = _Placed(penalties, self._penalties.index, values)
            kept = bounded_sum(kept, self._penalties.values)
        best = self._allow_rows.values.fill_(-torch.inf)
        best.scatter_reduce_(0, self._allowed.values, kept, "amax")
        if logits.device.type != "cpu" or best.min() == -torch.inf:
            kept.masked_fill_((best == -torch.inf)[self._allowed.values], 0)
        return kept

    def _force(self, forced: Cells, logits: torch.Tensor) -> None:
        if self._forced.plan is not forced:
            self._forced = _Placed(forced, flat_index(forced, logits), _NOWHERE.values)
        index, highest = self._forced.index, highest_logit(logits.dtype)
        flattened(logits).index_fill_(0, index, highest)
