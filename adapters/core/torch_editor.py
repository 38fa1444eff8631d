"""Applies a step's edits with torch operations, on any device."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .automata import Automata
from .automaton import Ints
from .edits import Additions, Cells, Planner

FORCED_LOGIT = 1e9
"""A logit that wins any softmax or argmax, and is finite at any usual temperature.

Raising one logit touches one cell; filling the rest of the row with -inf costs a pass over the
vocabulary and says the same. vLLM's thinking budget uses the same value.
"""


@dataclass(slots=True)
class _Sets:
    """A plan's token sets on the device, as flat indices into logits of one row stride."""

    added: torch.Tensor
    values: torch.Tensor
    allow_rows: torch.Tensor
    allowed: torch.Tensor
    allow_of: torch.Tensor


class TorchEditor:
    """Applies the edits of automata. Three passes at most, none of which waits for the device."""

    def __init__(self, automata: Automata) -> None:
        self._planner = Planner(automata)
        self._layout: tuple[object, ...] = ()
        self._sets: _Sets | None = None
        self._forced_cells: Cells | None = None
        self._forced = torch.empty(0, dtype=torch.int64)
        self._overruled: torch.Tensor | None = None

    def overruled(self) -> int:
        """How often a ban, an ALLOW or a FORCE lost to a FORCE, or a ban or a mask to an ALLOW.

        Waits for the device.
        """
        on_device = 0 if self._overruled is None else int(self._overruled)
        return self._planner.overruled + on_device

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
        stride, planner = logits.stride(0), self._planner
        flat = _flat(logits)
        limit = highest_logit(logits.dtype)
        layout = (planner.version, stride, logits.dtype, logits.device)
        if layout != self._layout or self._sets is None:
            self._sets = self._upload(stride, logits)
            self._layout = layout
            self._forced_cells = None
        sets = self._sets
        if len(sets.added):
            flat.index_add_(0, sets.added, sets.values)
        for additions in more:
            add(logits, additions)
        if len(sets.allow_rows):
            self._allow(logits, flat, sets)
        if planner.forced is not self._forced_cells:
            self._forced_cells = planner.forced
            cells = planner.forced
            self._forced = _to_device(cells.rows * stride + cells.token_ids, logits.device)
        if len(self._forced):
            if planner.contested.any():
                contested = _to_device(np.flatnonzero(planner.contested), logits.device)
                self._count(flat[self._forced[contested]] < -limit / 2)
            flat.index_fill_(0, self._forced, limit)

    def _allow(self, logits: torch.Tensor, flat: torch.Tensor, sets: _Sets) -> None:
        kept = flat[sets.allowed]
        best = kept.new_full((len(sets.allow_rows),), -torch.inf)
        best.scatter_reduce_(0, sets.allow_of, kept, "amax")
        self._count(best < -highest_logit(logits.dtype) / 2)
        kept.masked_fill_((best == -torch.inf)[sets.allow_of], 0)
        logits.index_fill_(0, sets.allow_rows, -torch.inf)
        flat.index_copy_(0, sets.allowed, kept)

    def _count(self, events: torch.Tensor) -> None:
        if self._overruled is None:
            self._overruled = torch.zeros((), dtype=torch.int64, device=events.device)
        self._overruled += events.sum()

    def _upload(self, stride: int, logits: torch.Tensor) -> _Sets:
        planner, device = self._planner, logits.device
        added, values = _placed(planner.added, logits)
        return _Sets(
            added=added,
            values=values,
            allow_rows=_to_device(planner.allow_rows, device),
            allowed=_to_device(planner.allowed.rows * stride + planner.allowed.token_ids, device),
            allow_of=_to_device(planner.allow_of, device),
        )


def add(logits: torch.Tensor, additions: Additions) -> None:
    """Add to cells of logits whose columns are next to each other."""
    _flat(logits).index_add_(0, *_placed(additions, logits))


def _flat(logits: torch.Tensor) -> torch.Tensor:
    rows, columns = logits.shape
    return logits.as_strided(((rows - 1) * logits.stride(0) + columns,), (1,))


def _placed(additions: Additions, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Flat indices and values, on the device of the logits."""
    limit = highest_logit(logits.dtype)
    index = additions.cells.rows * logits.stride(0) + additions.cells.token_ids
    values = torch.from_numpy(np.clip(additions.values, -limit, limit)).to(logits.dtype)
    return _to_device(index, logits.device), _to_device(values, logits.device)


def highest_logit(dtype: torch.dtype) -> float:
    """``FORCED_LOGIT``, or what can stand for it in a narrow type with room to be scaled."""
    return min(FORCED_LOGIT, torch.finfo(dtype).max / 4)


def _to_device(array: Ints | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy without waiting: pinned memory on its way to a device is kept by torch's allocator."""
    host = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
    if device.type == "cpu":
        return host
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)
