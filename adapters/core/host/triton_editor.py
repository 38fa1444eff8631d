"""The editor that applies a step's edits with one Triton kernel, for CUDA and ROCm.

The automata's tables live on the device. The host sends one state per automaton, and only if a
state has changed; the kernel finds the cells.
"""

import logging

import numpy as np
import torch

from ..automaton import Edit
from ..automaton.automata import Automata
from ..automaton.history import Tokens
from ..device.edit_kernel import EditKernel
from ..device.pool import DeviceArray, DevicePool
from ..logits import Additions, write_twice
from ..tensors import add
from .editors import Edits
from .tensor_editors import TensorEditor

logger = logging.getLogger(__name__)


class TritonEditor(TensorEditor):
    """An editor with the same edits as ``HostEditor``, written by a kernel.

    It never waits for the device. Uploads and launches go to the current stream, and so take
    effect in order.

    Args:
        device: the device of the logits.
    """

    compiles = True

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._tables: DevicePool | None = None  # those of the automata
        self._kernel: EditKernel | None = None
        self._states = DeviceArray(torch.int32, device)
        self._rows = DeviceArray(torch.int32, device)
        self._starts = DeviceArray(torch.int32, device)
        self._of: tuple[Automata | None, int] = None, -1
        self._sent: Tokens = np.empty(0, np.int32)  # the states on the device
        self._acts = self._allows = False
        self._is_broken = False  # the kernel has failed: torch operations from now on

    def apply(self, logits: torch.Tensor, edits: Edits) -> None:
        if self._is_broken:
            super().apply(logits, edits)
        elif logits.stride(1) != 1 and logits.shape[1] > 1:
            copy = logits.contiguous()
            self.apply(copy, edits)
            logits.copy_(copy)
        else:
            edits.check_rows(len(logits))
            additions = _additions(edits)
            self._upload(edits)
            edits.has_written = True
            if additions is not None:
                write_twice(add, additions, logits)
            if self._acts:
                self._launch(logits, edits)

    def _upload(self, edits: Edits) -> None:
        """Copy to the device what has changed of tables, rows and states."""
        automata = edits.automata
        if self._tables is None or self._of[0] is not automata:
            self._tables = DevicePool(automata.tables, self._device)
            self._kernel = EditKernel(self._tables, self._device)
            self._of = automata, -1
        self._tables.update()
        count = automata.count[: len(automata)]
        is_used = np.arange(automata.states.shape[1]) < count[:, None]
        states = automata.states[: len(automata)][is_used]
        composed = self._of[1] != automata.generation
        if composed:
            self._rows.write(edits.rows)
            self._starts.write(np.append(0, count.cumsum()))
        if composed or not np.array_equal(states, self._sent):
            kinds = automata.tables.edit[states]
            self._states.write(states)
            self._acts = bool(kinds.any())
            self._allows = bool(np.isin(kinds, (Edit.ALLOW, Edit.BAN_OTHERS)).any())
            self._sent = states
        self._of = automata, automata.generation

    def _launch(self, logits: torch.Tensor, edits: Edits) -> None:
        """Launch the kernel; if it fails twice, edit with torch operations from now on."""
        rows, allows = len(edits.automata), self._allows
        inputs = self._rows.tensor, self._starts.tensor, self._states.tensor
        assert self._kernel is not None  # ``_upload`` has made it
        try:
            write_twice(self._kernel.launch, logits, *inputs, rows, allows=allows)
        except Exception as error:
            logger.warning("Logits are edited with torch operations from now on: %s", error)
            self._is_broken = True
            super().apply(logits, edits.of_automata())  # the others are made


def _additions(edits: Edits) -> Additions | None:
    """List the additions of code and history rules."""
    cells = [(request.row, *added) for request, added in edits.own]
    cells += [(request.row, *each.cells(edits.scratch)) for request, each in edits.rules.items()]
    if not cells:
        return None
    rows = np.repeat([row for row, *_ in cells], [len(tokens) for _, tokens, _ in cells])
    tokens = np.concatenate([tokens for _, tokens, _ in cells])
    values = np.concatenate([values for *_, values in cells])
    return Additions(rows, tokens, values)
