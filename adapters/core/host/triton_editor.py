"""The editor that applies a step's edits with one Triton kernel, for CUDA and ROCm.

The automata's tables live on the device. The host sends one state per automaton, and only if a
state has changed; the kernel finds the cells.
"""

import logging
from collections.abc import Sequence

import numpy as np
import torch

from ..automaton import Edit, Ints
from ..device.edit_kernel import EditKernel
from ..device.pool import DeviceArray, DevicePool
from ..logits import AnyAdditions, add, attempt, highest_logit
from .batch import RANK, AutomatonBatch
from .editor import Editor
from .state_table import ROW
from .torch_editor import TorchEditor

logger = logging.getLogger(__name__)


class TritonEditor(Editor):
    """An editor with the same edits as ``TorchEditor``, written by a kernel.

    It never waits for the device. Uploads and launches go to the current stream, and so take
    effect in order.

    Args:
        automata: the automata to follow.
        vocab_size: the number of tokens.
        device: the device of the logits.
    """

    def __init__(self, automata: AutomatonBatch, vocab_size: int, device: torch.device) -> None:
        self._automata, self._vocab_size = automata, vocab_size
        self._tables = DevicePool(automata.tables, device)
        self._kernel = EditKernel(self._tables, device)
        self._states = DeviceArray(torch.int32, device)
        self._rows = DeviceArray(torch.int32, device)
        self._starts = DeviceArray(torch.int32, device)
        self._order: Ints = np.empty(0, np.int64)  # slots by row, then by rank
        self._row_count = 0
        self._sent: Ints = self._order  # the states on the device
        self._acts = self._allows = False
        self._plain: TorchEditor | None = None  # the fallback, once the kernel has failed

    def update(self) -> None:
        """Follow the automata's states."""
        if self._plain is not None:
            self._plain.update()
            return
        automata = self._automata
        self._tables.update()
        composed = automata.changed
        if composed:
            self._compose()
        states = automata.states[self._order]
        if composed or not np.array_equal(states, self._sent):
            edits = automata.tables.edit[states]
            acts = bool(edits.any())
            allows = bool(np.isin(edits, (Edit.ALLOW, Edit.BAN_OTHERS)).any())
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

    def apply(
        self, logits: torch.Tensor, more: Sequence[AnyAdditions] = ()
    ) -> dict[int, Exception]:
        """Edit the logits in place. See ``Editor``."""
        if self._plain is not None:
            return self._plain.apply(logits, more)
        if logits.stride(1) != 1 and logits.shape[1] > 1:
            copy = logits.contiguous()
            failed = self.apply(copy, more)
            logits.copy_(copy)
            return failed
        failed: dict[int, Exception] = {}
        for additions in more:
            attempt(failed, add, additions, logits)
        if self._acts:
            try:
                self._launch(logits)
            except Exception:
                failed |= self._launch_again(logits)
        return failed

    def force(self, logits: torch.Tensor, row: int, token_id: int) -> None:
        """See ``Editor``."""
        logits[row] = 0  # another token may have been forced
        logits[row, token_id] = highest_logit(logits.dtype)

    def _launch(self, logits: torch.Tensor) -> None:
        self._kernel.launch(
            logits,
            self._rows.tensor,
            self._starts.tensor,
            self._states.tensor,
            self._row_count,
            allows=self._allows,
        )

    def _launch_again(self, logits: torch.Tensor) -> dict[int, Exception]:
        """Launch the kernel again; if it still fails, edit with torch operations from now on."""
        try:
            self._launch(logits)
        except Exception as error:
            logger.warning("Logits are edited with torch operations from now on: %s", error)
            try:
                self._plain = plain = TorchEditor(self._automata, self._vocab_size)
                plain.update()
                return plain.apply(logits)
            except Exception as error:  # ``more`` must not be added again
                return dict.fromkeys(
                    self._automata.values[ROW, : len(self._automata)].tolist(), error
                )
        return {}
