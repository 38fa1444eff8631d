"""The device's copy of the automata's tables, which follows the host's tables."""

from typing import Any

import numpy.typing as npt
import torch

from ..automaton.pool import ROOM_KEPT, AutomatonPool


class DeviceArray:
    """A device's copy of the front of a host array.

    It is allocated anew to grow, or if it would be mostly unused. Copies start from pinned memory.
    Torch's allocator keeps a pinned block until its copy is done, and then reuses it. So no ring of
    buffers with events is needed.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.tensor = torch.empty(0, dtype=dtype, device=device)

    def write(self, values: npt.NDArray[Any], start: int = 0) -> None:
        """Put values at ``start``; values before them stay, and values after them are undefined.

        If this fails, the values before ``start`` are unchanged.
        """
        if not len(values):
            return
        end, tensor = start + len(values), self.tensor
        host = torch.empty(len(values), dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        host.numpy()[:] = values
        if end > len(tensor):
            tensor = tensor.new_empty(max(end, 2 * len(tensor)))
        elif len(tensor) > max(ROOM_KEPT, 8 * end):
            tensor = tensor.new_empty(2 * end)
        if tensor is not self.tensor:
            tensor[:start] = self.tensor[:start]
        tensor[start:end].copy_(host, non_blocking=True)
        self.tensor = tensor


_EDITS = dict.fromkeys(("edit", "operand"), "states")
_EDITS |= {"set_ends": "sets", "set_tokens": "tokens", "set_values": "tokens"}
_TRANSITIONS = dict.fromkeys(
    ("default_target", "is_failure_link", "timer", "timeout", "edge_ends", "is_complete"), "states"
)
_TRANSITIONS |= {"edge_tokens": "edges", "targets": "edges"}
_DTYPES: dict[str, torch.dtype] = dict.fromkeys(
    ("edit", "is_failure_link", "is_complete"), torch.int8
)
_DTYPES |= {"set_values": torch.float32}


class DevicePool:
    """A device's copy of an ``AutomatonPool``: its edits, and on demand its ``transitions``.

    The columns have the pool's names, and are int32 unless they hold flags or values. The edges of
    state ``s`` are ``[edge_ends[s], edge_ends[s + 1])`` of ``edge_tokens`` and ``targets``.
    """

    def __init__(
        self, tables: AutomatonPool, device: torch.device, *, transitions: bool = False
    ) -> None:
        self._tables = tables
        self._generation = -1
        self._columns = _EDITS | _TRANSITIONS if transitions else _EDITS
        self._sent = dict.fromkeys(self._columns, 0)  # how many entries are on the device
        self._arrays = {
            name: DeviceArray(_DTYPES.get(name, torch.int32), device) for name in self._columns
        }

    def columns(self, *names: str) -> list[torch.Tensor]:
        """Return columns on the device."""
        return [self._arrays[name].tensor for name in names]

    def update(self) -> None:
        """Upload the appended entries, or all entries if automata were moved."""
        tables = self._tables
        if tables.generation != self._generation:
            self._sent = dict.fromkeys(self._columns, 0)
            self._generation = tables.generation
        for name, what in self._columns.items():
            new = slice(self._sent[name], tables.used[what])
            if new.start != new.stop:
                self._upload(name, new)
                self._sent[name] = new.stop  # only now: if memory is short, `update` is repeated

    def _upload(self, name: str, new: slice) -> None:
        tables = self._tables
        if name == "set_ends" or name == "edge_ends":  # after a leading 0
            new = slice(new.start, new.stop + 1)
        self._arrays[name].write(getattr(tables, name)[new], new.start)
