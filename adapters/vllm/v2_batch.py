"""The batch of vLLM's V2 model runner: requests have slots, and their tokens are on the device."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..core import DeviceRealizer, History, Program, Rows
from .callers import nearest
from .failures import FailureReport
from .params import stop_token_of

if TYPE_CHECKING:
    import torch
    from vllm import SamplingParams
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu.sample.logits_processor.interface import (
        LogitsContext,
        LogitsProcRequestState,
    )


class V2Batch:
    """Maps the engine's slots and rows to the core's.

    Args:
        vllm_config: the engine's configuration.
        states: the engine's tokens; read at each step, never kept.
        vocab_size: number of tokens.
        program_of: what acts on a request; may raise.
    """

    def __init__(
        self,
        vllm_config: "VllmConfig",
        states: "LogitsProcRequestState",
        vocab_size: int,
        program_of: "Callable[[SamplingParams], Program | None]",
    ) -> None:
        report = FailureReport(vllm_config, _request_id)
        self.realizer = DeviceRealizer(vocab_size, states.max_num_reqs, states.device, report)
        self._states = states
        self._program_of = program_of
        DeviceRealizer.warm_up(vocab_size, self._history(), states.vocab_size)

    def add(self, slot: int, params: "SamplingParams") -> bool:
        """Take a request into a slot, whatever was there; whether its logits are to be edited."""
        try:
            program = self._program_of(params)
        except Exception as error:
            self.realizer.fail(slot, error, stop_token_of(params))
        else:
            if program is None:
                self.realizer.remove(slot)
            else:
                self.realizer.add(slot, program, stop_token_of(params))
        return slot in self.realizer

    def upload(self) -> None:
        """Let the device know of the requests that have come, before the forward pass."""
        self.realizer.upload(self._history())

    def apply(self, logits: "torch.Tensor", ctx: "LogitsContext") -> None:
        """Edit the logits, ``[rows, vocabulary]``, after the forward pass."""
        rows = Rows(ctx.expanded_idx_mapping, ctx.expanded_local_pos, ctx.input_ids)
        longest = int(ctx.seq_lens_upper_bound_np.max(initial=0))
        self.realizer.apply(logits, self._history(), rows, ctx.idx_mapping_np, longest)

    def _history(self) -> History:
        # The engine may put another tensor in place of each, from step to step.
        states = self._states
        return History(states.all_token_ids.gpu, states.prompt_len.gpu, states.total_len.gpu)


def _request_id(slot: int) -> str:
    """The engine's id of the request in a slot."""
    return nearest("req_states", frames=40).index_to_req_id[slot]
