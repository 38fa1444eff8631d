"""Realization on a device: the layer of the requests' programs, and that of their guards."""

from collections.abc import Sequence

import torch

from ..automaton import Ints
from ..callables import Report
from ..parts import Program
from ..program import ProgramOf
from .context import History, LogitsLayout
from .layer import DeviceLayer


class DeviceRealizer(DeviceLayer):
    """Realizes programs and their guards on the rows of an engine whose tokens are on the device.

    Guards are a layer of their own, which edits last, as in ``Realizer``.
    """

    def __init__(
        self,
        vocab_size: int,
        max_requests: int,
        device: torch.device,
        program_of: ProgramOf = lambda program: program,
        report: Report | None = None,
    ) -> None:
        """See ``DeviceLayer``."""
        super().__init__(vocab_size, max_requests, device, program_of, report)
        self._guards = DeviceLayer(vocab_size, max_requests, device, report=report)

    def add(
        self,
        slot: int,
        program: Program,
        prompt_ids: Sequence[int] | None = None,
        output_ids: Sequence[int] = (),
        stop_token_id: int | None = None,
    ) -> None:
        """See ``DeviceLayer``."""
        super().add(slot, program, prompt_ids, output_ids, stop_token_id)
        if (guard := program.guard) is not None:
            # A client's `ignore_eos` takes its own token away.
            stop = stop_token_id if guard.end_token is None else guard.end_token
            self._guards.add(slot, guard, prompt_ids, output_ids, stop)

    def remove(self, slot: int) -> None:
        """See ``DeviceLayer``."""
        super().remove(slot)
        self._guards.remove(slot)

    def upload(self, history: History) -> None:
        """See ``DeviceLayer``."""
        super().upload(history)
        self._guards.upload(history)

    def apply(
        self,
        logits: torch.Tensor,
        history: History,
        rows: LogitsLayout,
        slots: Ints,
        longest: int,
    ) -> None:
        """See ``DeviceLayer``."""
        super().apply(logits, history, rows, slots, longest)
        self._guards.apply(logits, history, rows, slots, longest)
