"""Applies a step's edits with one Triton kernel: the realization for CUDA and ROCm.

The automata's tables live on the device. The host sends one state per automaton, and only when
one has changed; which cells that means, the kernel finds out.
"""

from collections.abc import Sequence

import numpy as np
import torch

from .automata import RANK, Automata
from .automaton import Edit, Ints
from .device_tables import DeviceArray, DeviceTables
from .edit_kernel import EditKernel
from .edits import Additions
from .slots import ROW
from .torch_editor import add


class TritonEditor:
    """Applies the edits that the automata's states ask for, as ``TorchEditor`` does.

    Never waits for the device. What it uploads and launches goes to the current stream, and is
    applied in that order.

    Args:
        automata: to follow.
        device: of the logits.
    """

    def __init__(self, automata: Automata, device: torch.device) -> None:
        self._automata = automata
        self._tables = DeviceTables(automata.tables, device)
        self._kernel = EditKernel(self._tables, device)
        self._states = DeviceArray(torch.int32, device)
        self._rows = DeviceArray(torch.int32, device)
        self._starts = DeviceArray(torch.int32, device)
        self._order: Ints = np.empty(0, np.int64)  # slots by row, then by rank
        self._row_count = 0
        self._sent: Ints = self._order  # the states that the device has
        self._acts = self._allows = False

    def overruled(self) -> int:
        """See ``EditKernel``."""
        return self._kernel.overruled()

    def update(self) -> None:
        """Follow the automata's states."""
        automata = self._automata
        self._tables.update()
        composed = automata.changed
        if composed:
            self._compose()
        states = automata.states[self._order]
        if composed or not np.array_equal(states, self._sent):
            edits = automata.tables.edit[states]
            acts, allows = bool(edits.any()), bool((edits == Edit.ALLOW).any())
            self._states.write(states)
            self._sent, self._acts, self._allows = states, acts, allows
        automata.changed = False

    def _compose(self) -> None:
        """Lay out the automata row by row."""
        rows, rank = self._automata.values[[ROW, RANK], : len(self._automata)]
        self._order = np.lexsort((rank, rows))
        acted_on, starts = np.unique(rows[self._order], return_index=True)
        self._row_count = len(acted_on)
        self._rows.write(acted_on)
        self._starts.write(np.append(starts, len(rows)))

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
        for additions in more:
            add(logits, additions)
        if self._acts:
            self._kernel.launch(
                logits,
                self._rows.tensor,
                self._starts.tensor,
                self._states.tensor,
                self._row_count,
                allows=self._allows,
            )
