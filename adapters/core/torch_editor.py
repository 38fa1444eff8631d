"""Applies a step's edits with torch operations, on any device."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from .automata import Automata
from .automaton import Ints
from .edits import (
    NO_ADDITIONS,
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

FORCED_LOGIT = 1e9
"""A logit that wins any softmax or argmax, and is finite at any usual temperature.

Raising one logit touches one cell; filling the rest of the row with -inf costs a pass over the
vocabulary and says the same. vLLM's thinking budget uses the same value.
"""

HIGHEST_SHARE = 0.75
"""In a narrow type (float16), the share of a forced logit that other edited logits may reach. No
sum of biases is higher, and none of bans is lower than minus a forced logit."""


@dataclass(slots=True)
class _Placed:
    """One of a plan's objects on the device, as flat indices into logits of one row stride."""

    plan: object
    index: torch.Tensor
    values: torch.Tensor


_NOWHERE = _Placed(None, torch.empty(0, dtype=torch.int64), torch.empty(0))


class TorchEditor:
    """Applies the edits of automata. A few passes at most, none of which waits for the device."""

    def __init__(self, automata: Automata) -> None:
        self._planner = Planner(automata)
        self._layout: tuple[object, ...] = ()
        self._forget_placed()
        self._outvoted = 0
        self._overruled: torch.Tensor | None = None

    def _forget_placed(self) -> None:
        self._allowed = self._allow_rows = self._penalties = self._forced = _NOWHERE

    def overruled(self) -> int:
        """How often a ban, an ALLOW or a FORCE lost to a FORCE, or a ban or a mask to an ALLOW.

        Waits for the device.
        """
        return self._outvoted + (0 if self._overruled is None else int(self._overruled))

    def update(self) -> None:
        """Follow the automata."""
        self._planner.update()

    def apply(self, logits: torch.Tensor, more: Sequence[Additions] = ()) -> dict[int, Exception]:
        """Edit the logits in place. See ``Editor``."""
        if logits.stride(1) != 1 and logits.shape[1] > 1:
            copy = logits.contiguous()
            failed = self.apply(copy, more)
            logits.copy_(copy)
            return failed
        planner, flat = self._planner, _flat(logits)
        layout = (logits.stride(0), logits.dtype, logits.device)
        if layout != self._layout:
            self._layout = layout
            self._forget_placed()
        added = [each for each in (*planner.added, *more) if each is not NO_ADDITIONS]
        if added and highest_logit(logits.dtype) < FORCED_LOGIT:
            added = [merged(added)]
        failed: dict[int, Exception] = {}
        for additions in added:
            attempt(failed, _add, additions, logits, flat)
        if len(planner.allowed.rows):
            attempt(failed, self._allow, planner.allowed, logits, flat)
            planner.allowed.kept = None
        if len(planner.forced.rows):
            self._outvoted += planner.outvoted
            attempt(failed, self._force, planner.forced, logits, flat)
        return failed

    def force(self, logits: torch.Tensor, row: int, token_id: int) -> None:
        """See ``Editor``."""
        logits[row] = 0  # another token may have been forced
        logits[row, token_id] = highest_logit(logits.dtype)

    def _allow(self, allowed: Allowed, logits: torch.Tensor, flat: torch.Tensor) -> None:
        if self._allowed.plan is not allowed:
            row_of = _to_device(allowed.row_of, logits.device)
            placed = _Placed(allowed, _flat_index(allowed.cells, logits), row_of)
            rows = _to_device(allowed.rows, logits.device)
            self._allow_rows = _Placed(allowed, rows, logits.new_empty(len(rows)))
            self._allowed = placed
        if allowed.kept is None:
            allowed.kept = self._kept(allowed, logits, flat)
        if logits.device.type == "cpu":  # slices are filled twice as fast as single rows
            for first, end in allowed.runs:
                logits[first:end].fill_(-torch.inf)
        else:
            logits.index_fill_(0, self._allow_rows.index, -torch.inf)
        flat[self._allowed.index] = allowed.kept

    def _kept(self, allowed: Allowed, logits: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
        """What the allowed cells are going to be."""
        kept = flat[self._allowed.index]
        if (penalties := allowed.penalties) is not None:
            if self._penalties.plan is not penalties:
                values = _to_device(torch.from_numpy(penalties.values), logits.device)
                self._penalties = _Placed(penalties, self._penalties.index, values)
            kept = _bounded_sum(kept, self._penalties.values)
        best = self._allow_rows.values.fill_(-torch.inf)
        best.scatter_reduce_(0, self._allowed.values, kept, "amax")
        lowest = -highest_logit(logits.dtype) / 2
        # To ask would make the host wait for a device.
        if logits.device.type != "cpu" or best.min() < lowest:
            self._count(best < lowest)
            kept.masked_fill_((best == -torch.inf)[self._allowed.values], 0)
        return kept

    def _force(self, forced: Forced, logits: torch.Tensor, flat: torch.Tensor) -> None:
        limit = highest_logit(logits.dtype)
        if self._forced.plan is not forced:
            self._forced = _Placed(forced, _flat_index(forced, logits), _NOWHERE.values)
        if forced.contested is not None:
            contested = _to_device(np.flatnonzero(forced.contested), logits.device)
            self._count(flat[self._forced.index[contested]] < -limit / 2)
        flat.index_fill_(0, self._forced.index, limit)

    def _count(self, events: torch.Tensor) -> None:
        if self._overruled is None:
            self._overruled = torch.zeros((), dtype=torch.int64, device=events.device)
        self._overruled += events.sum()


def add(additions: Additions, logits: torch.Tensor) -> None:
    """Add to cells of logits whose columns are next to each other."""
    if highest_logit(logits.dtype) < FORCED_LOGIT:
        additions = merged([additions])
    _add(additions, logits, _flat(logits))


def _add(additions: Additions, logits: torch.Tensor, flat: torch.Tensor) -> None:
    """Add to cells; to each of them once, where a type cannot hold every sum."""
    if highest_logit(logits.dtype) < FORCED_LOGIT:
        index = _flat_index(additions.cells, logits)
        values = _to_device(torch.from_numpy(additions.values), logits.device)
        flat[index] = _bounded_sum(flat[index], values)
        return
    if isinstance(additions, RowAdditions):
        _add_to_row(logits[int(additions.rows[0])], additions)
        return
    layout = (logits.stride(0), logits.dtype, logits.device)
    placed = None if additions.kept is None else additions.kept.get(layout)
    if placed is None:
        placed = _placed(additions, logits)
        if additions.kept is not None:
            additions.kept[layout] = placed
    flat.index_add_(0, *placed)


def _add_to_row(row: torch.Tensor, additions: RowAdditions) -> None:
    """Add what may have been added before, to this row or another one."""
    columns, kept = row.shape[0], additions.placed
    layout = columns, row.dtype, row.device
    if layout not in kept:
        if row.device.type == "cpu" and is_dense(len(additions.values), columns):
            kept[layout] = None, torch.from_numpy(additions.whole_row(columns)).to(row.dtype)
        else:
            index = _to_device(torch.from_numpy(additions.cells.token_ids), row.device)
            kept[layout] = index, _values(additions, row)
    index, values = kept[layout]
    if index is None:
        row.add_(values)
    else:
        row.index_add_(0, index, values)


def _bounded_sum(cells: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Sums between a ban and what a forced logit beats; what is masked stays masked."""
    limit = highest_logit(cells.dtype)
    if limit == FORCED_LOGIT:
        return cells + values.to(cells.dtype)
    sums = (cells.float() + values).clamp(-limit, HIGHEST_SHARE * limit).to(cells.dtype)
    return torch.where(cells == -torch.inf, cells, sums)


def _flat(logits: torch.Tensor) -> torch.Tensor:
    rows, columns = logits.shape
    return logits.as_strided(((rows - 1) * logits.stride(0) + columns,), (1,))


def _placed(additions: Additions, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Flat indices and values, on the device of the logits."""
    return _flat_index(additions.cells, logits), _values(additions, logits)


def _values(additions: Additions, logits: torch.Tensor) -> torch.Tensor:
    limit = highest_logit(logits.dtype)
    values = torch.from_numpy(np.clip(additions.values, -limit, limit)).to(logits.dtype)
    return _to_device(values, logits.device)


def _flat_index(cells: Cells, logits: torch.Tensor) -> torch.Tensor:
    return _to_device(cells.rows * logits.stride(0) + cells.token_ids, logits.device)


@lru_cache
def highest_logit(dtype: torch.dtype) -> float:
    """``FORCED_LOGIT``, or what can stand for it in a narrow type with room to be scaled."""
    return min(FORCED_LOGIT, torch.finfo(dtype).max / 4)


def _to_device(array: Ints | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy without waiting: pinned memory on its way to a device is kept by torch's allocator."""
    host = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
    if device.type == "cpu":
        return host
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)
