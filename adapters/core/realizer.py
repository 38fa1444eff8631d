"""Edits a batch's logits as its requests' automata say, and outlives whatever goes wrong."""

import logging
from collections.abc import Sequence

import torch

from .automaton import forced_chain
from .batch import Batch, Indices

logger = logging.getLogger(__name__)

FORCED_LOGIT = 1e9
"""A logit that wins any softmax or argmax, and is finite at any usual temperature.

Raising one logit touches one cell; filling the rest of the row with -inf costs a pass over the
vocabulary and says the same. vLLM's thinking budget uses the same value.
"""


class Realizer:
    """Realizes the specs of one engine's batch, on the device that the logits are on.

    Attributes:
        batch: rows and states.
        failed_requests: how many requests were ended because their specs could not be realized.
    """

    def __init__(self) -> None:
        self.batch = Batch()
        self.failed_requests = 0
        self._rows = self._token_ids = torch.empty(0, dtype=torch.int64)

    def fail(self, row: int, stop_token_id: int | None, output_ids: Sequence[int]) -> None:
        """End the request in a row, because its specs cannot be realized.

        Call it while handling the exception that says why, which is logged.

        Args:
            row: row of the logits.
            stop_token_id: a token that makes the engine stop; without one, the request goes on
                freely.
            output_ids: as for ``Batch.add``.
        """
        self.failed_requests += 1
        logger.exception(
            "The specs of the request in row %d, which has %d output tokens, cannot be realized. "
            "%s; no other request is affected.",
            row,
            len(output_ids),
            "It goes on without them" if stop_token_id is None else "It is ended",
        )
        self.batch.remove(row)
        if stop_token_id is not None:
            self.batch.add(row, forced_chain((), stop_token_id), output_ids)

    def apply(self, logits: torch.Tensor) -> None:
        """Edit the logits in place.

        Args:
            logits: ``[rows, columns]``, floating point; any stride, columns beyond the
                vocabulary are not touched.
        """
        if not self.batch:
            return
        if self.batch.advance():
            rows, token_ids = self.batch.forced()
            self._rows = _to_device(rows, logits.device)
            self._token_ids = _to_device(token_ids, logits.device)
        if len(self._rows):
            highest = min(FORCED_LOGIT, torch.finfo(logits.dtype).max / 2)
            logits[self._rows, self._token_ids] = highest


def _to_device(array: Indices, device: torch.device) -> torch.Tensor:
    """Copy without waiting: pinned memory on its way to a device is kept by torch's allocator."""
    host = torch.from_numpy(array)
    if device.type == "cpu":
        return host
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)
