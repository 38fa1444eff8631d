"""Applies a step's edits with torch operations, on any device."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from .automata import Automata
from .automaton import Ints
from .edits import NO_ADDITIONS, Additions, Cells, Planner, merged

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
        self._added = [_NOWHERE] * len(self._planner.added)
        self._allowed = self._allow_rows = self._penalties = self._forced = _NOWHERE

    def overruled(self) -> int:
        """How often a ban, an ALLOW or a FORCE lost to a FORCE, or a ban or a mask to an ALLOW.

        Waits for the device.
        """
        return self._outvoted + (0 if self._overruled is None else int(self._overruled))

    def update(self) -> None:
        """Follow the automata."""
        self._planner.update()

    def apply(self, logits: torch.Tensor, more: Sequence[Additions] = ()) -> None:
        """Edit the logits in place.

        Args:
            logits: ``[rows, columns]`` float32, float16 or bfloat16; rows may be any distance
                apart.
            more: additions of this step alone.
        """
        if logits.stride(1) != 1 and logits.shape[1] > 1:
            copy = logits.contiguous()
            self.apply(copy, more)
            logits.copy_(copy)
            return
        planner, flat = self._planner, _flat(logits)
        limit = highest_logit(logits.dtype)
        layout = (logits.stride(0), logits.dtype, logits.device)
        if layout != self._layout:
            self._layout = layout
            self._forget_placed()
        if limit < FORCED_LOGIT:
            if added := [each for each in (*planner.added, *more) if each is not NO_ADDITIONS]:
                _add_bounded(logits, merged(added))
        else:
            for i, additions in enumerate(planner.added):
                if additions is NO_ADDITIONS:
                    continue
                if self._added[i].plan is not additions:
                    self._added[i] = _Placed(additions, *_placed(additions, logits))
                flat.index_add_(0, self._added[i].index, self._added[i].values)
            for additions in more:
                add(logits, additions)
        if len(planner.allowed.rows):
            self._allow(logits, flat)
        if self._forced.plan is not planner.forced:
            index = _flat_index(planner.forced, logits)
            self._forced = _Placed(planner.forced, index, self._forced.values)
        if len(self._forced.index):
            self._outvoted += planner.outvoted
            if len(planner.contested) and planner.contested.any():
                contested = _to_device(np.flatnonzero(planner.contested), logits.device)
                self._count(flat[self._forced.index[contested]] < -limit / 2)
            flat.index_fill_(0, self._forced.index, limit)

    def _allow(self, logits: torch.Tensor, flat: torch.Tensor) -> None:
        allowed = self._planner.allowed
        if self._allowed.plan is not allowed:
            row_of = _to_device(allowed.row_of, logits.device)
            self._allowed = _Placed(allowed, _flat_index(allowed.cells, logits), row_of)
            rows = _to_device(allowed.rows, logits.device)
            best = logits.new_empty(len(rows))
            self._allow_rows = _Placed(allowed, rows, best)
        kept = flat[self._allowed.index]
        if (penalties := self._planner.penalties) is not None:
            if self._penalties.plan is not penalties:
                values = _to_device(torch.from_numpy(penalties.values), logits.device)
                self._penalties = _Placed(penalties, self._penalties.index, values)
            kept = _bounded_sum(kept, self._penalties.values)
        best = self._allow_rows.values.fill_(-torch.inf)
        best.scatter_reduce_(0, self._allowed.values, kept, "amax")
        lowest = -highest_logit(logits.dtype) / 2
        on_host = logits.device.type == "cpu"
        if not on_host or best.min() < lowest:  # asking would make the host wait for a device
            self._count(best < lowest)
            kept.masked_fill_((best == -torch.inf)[self._allowed.values], 0)
        if on_host:  # slices are filled twice as fast as single rows
            for first, end in allowed.runs:
                logits[first:end].fill_(-torch.inf)
        else:
            logits.index_fill_(0, self._allow_rows.index, -torch.inf)
        flat[self._allowed.index] = kept

    def _count(self, events: torch.Tensor) -> None:
        if self._overruled is None:
            self._overruled = torch.zeros((), dtype=torch.int64, device=events.device)
        self._overruled += events.sum()


def add(logits: torch.Tensor, additions: Additions) -> None:
    """Add to cells of logits whose columns are next to each other."""
    if highest_logit(logits.dtype) < FORCED_LOGIT:
        _add_bounded(logits, merged([additions]))
        return
    layout = (logits.stride(0), logits.dtype, logits.device)
    placed = None if additions.kept is None else additions.kept.get(layout)
    if placed is None:
        placed = _placed(additions, logits)
        if additions.kept is not None:
            additions.kept[layout] = placed
    _flat(logits).index_add_(0, *placed)


def _add_bounded(logits: torch.Tensor, additions: Additions) -> None:
    """Add to cells, each of them once, of a type that cannot hold every sum."""
    flat, index = _flat(logits), _flat_index(additions.cells, logits)
    values = _to_device(torch.from_numpy(additions.values), logits.device)
    flat[index] = _bounded_sum(flat[index], values)


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
    limit = highest_logit(logits.dtype)
    values = torch.from_numpy(np.clip(additions.values, -limit, limit)).to(logits.dtype)
    return _flat_index(additions.cells, logits), _to_device(values, logits.device)


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
