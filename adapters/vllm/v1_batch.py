"""The batch of vLLM's V1 model runner: a row is a request, and the host says how rows move."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from vllm.v1.sample.logits_processor.interface import BatchUpdate, MoveDirectionality

from ...spec import SpecError
from ..core import Program, Realizer
from .callers import nearest
from .failures import FailureReport
from .params import stop_token_of
from .placeholders import Placeholders, tells_output_ids

if TYPE_CHECKING:
    import torch
    from vllm import SamplingParams
    from vllm.config import VllmConfig

Move = tuple[int, int, MoveDirectionality]


class V1Batch:
    """Maps the engine's batch to the core's.

    Args:
        vllm_config: the engine's configuration.
        vocab_size: number of tokens.
        program_of: what acts on a request; may raise.
    """

    def __init__(
        self,
        vllm_config: "VllmConfig",
        vocab_size: int,
        program_of: "Callable[[SamplingParams], Program | None]",
    ) -> None:
        self._moves: list[Move] = []  # of the update that is being followed
        report = FailureReport(vllm_config, partial(_request_id, self._moves))
        self.realizer = Realizer(vocab_size, report=report)
        self._program_of = program_of
        self._placeholders = None if tells_output_ids(vllm_config) else Placeholders()

    def update(self, batch_update: BatchUpdate | None) -> None:
        """Follow the engine's rows, before the forward pass."""
        if batch_update is not None:
            self._follow(batch_update)
        if self._placeholders is not None:
            self._placeholders.note(self.realizer.outputs)

    def _follow(self, batch_update: BatchUpdate) -> None:
        realizer = self.realizer
        self._moves[:] = batch_update.moved
        for row in batch_update.removed:
            realizer.remove(row)
        for row, params, prompt_ids, output_ids in batch_update.added:
            self._add(row, params, prompt_ids, output_ids)
        for source, destination, direction in self._moves:
            if direction is MoveDirectionality.SWAP:
                realizer.swap(source, destination)
            else:
                realizer.move(source, destination)
        self._moves.clear()

    def _add(
        self,
        row: int,
        params: "SamplingParams",
        prompt_ids: list[int] | None,
        output_ids: list[int],
    ) -> None:
        try:
            program = self._program_of(params)
        except Exception as error:
            self.realizer.fail(row, error, output_ids, stop_token_of(params))
            return
        if program is None:
            self.realizer.remove(row)
        elif prompt_ids is None and program.reads_prompt:
            error = SpecError("The specs look at the prompt, which is one of embeddings")
            self.realizer.fail(row, error, output_ids, stop_token_of(params))
        else:
            self.realizer.add(row, program, prompt_ids, output_ids, stop_token_of(params))

    def apply(self, logits: "torch.Tensor") -> None:
        """Edit the logits, ``[requests, vocabulary]``, after the forward pass."""
        if self._placeholders is not None:
            self._placeholders.put_back()
        self.realizer.apply(logits)


def _request_id(moves: Iterable[Move], row: int) -> str:
    """The engine's id of the request in a row, from where the engine has done these moves."""
    for source, destination, direction in moves:
        if row == source:
            row = destination
        elif row == destination and direction is MoveDirectionality.SWAP:
            row = source
    return nearest("input_batch", frames=40).req_ids[row]
