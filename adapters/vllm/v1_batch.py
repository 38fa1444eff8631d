"""The batch of vLLM's V1 model runner: each row is a request, and the host moves the rows."""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import torch
from vllm.v1.sample.logits_processor.interface import BatchUpdate, MoveDirectionality

from ..core import ProgramOf, Realizer
from .callers import nearest
from .failures import FailureReport
from .params import stop_token_of
from .placeholders import Placeholders, provides_output_ids

if TYPE_CHECKING:
    from vllm.config import VllmConfig

Move = tuple[int, int, MoveDirectionality]


class V1Batch:
    """Maps the engine's batch to the core's. ``program_of`` takes ``SamplingParams``."""

    def __init__(
        self,
        vllm_config: "VllmConfig",
        vocab_size: int,
        program_of: ProgramOf,
        device: torch.device,
    ) -> None:
        self._moves: list[Move] = []  # of the current update
        report = FailureReport(vllm_config, partial(_request_id, self._moves))
        self.realizer = Realizer(vocab_size, program_of, report)
        self._placeholders = None if provides_output_ids(vllm_config) else Placeholders()
        self.realizer.warm_up(torch.zeros((1, vocab_size), device=device))

    def update(self, batch_update: BatchUpdate | None) -> None:
        """Follow the engine's rows, before the forward pass."""
        realizer = self.realizer
        if batch_update is not None:
            self._moves[:] = batch_update.moved
            for row in batch_update.removed:
                realizer.remove(row)
            for row, params, prompt_ids, output_ids in batch_update.added:
                realizer.enter(row, params, prompt_ids, output_ids, stop_token_of(params))
            for source, destination, direction in self._moves:
                move = realizer.swap if direction is MoveDirectionality.SWAP else realizer.move
                move(source, destination)
            self._moves.clear()
        if self._placeholders is not None:
            self._placeholders.note(realizer.outputs)

    def apply(self, logits: torch.Tensor) -> None:
        """Edit the logits, ``[requests, vocabulary]``, after the forward pass."""
        if self._placeholders is not None:
            self._placeholders.put_back()
        self.realizer.apply(logits)


def _request_id(moves: Iterable[Move], row: int) -> str:
    """Return the engine's id of the request in a row. The engine has already done the moves."""
    for source, destination, direction in moves:
        if row == source:
            row = destination
        elif row == destination and direction is MoveDirectionality.SWAP:
            row = source
    return nearest("input_batch", frames=40).req_ids[row]
