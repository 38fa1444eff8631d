"""The batch of vLLM's V2 model runner: requests have slots, and their tokens are on the device."""

from typing import TYPE_CHECKING

from ..core import History, LogitsLayout, ProgramOf, SplitRealizer
from .callers import caller_frame, nearest
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
    """Maps the engine's slots and rows to the core's. ``program_of`` takes ``SamplingParams``.

    The engine's tokens are in ``states``. They are read at each step, never kept.
    """

    def __init__(
        self,
        vllm_config: "VllmConfig",
        states: "LogitsProcRequestState",
        vocab_size: int,
        program_of: ProgramOf,
    ) -> None:
        report = FailureReport(vllm_config, _request_id)
        self.realizer = SplitRealizer(
            vocab_size, states.max_num_reqs, states.device, program_of, report
        )
        self._states = states
        SplitRealizer.warm_up(vocab_size, self._history(), states.vocab_size)

    def add(self, slot: int, params: "SamplingParams") -> bool:
        """Put a request into a free or used slot; return whether its logits are to be edited."""
        return self.realizer.enter(slot, params, *_known(), stop_token_of(params))

    def upload(self) -> None:
        """Copy the changes of requests to the device, before the forward pass."""
        self.realizer.upload(self._history())

    def apply(self, logits: "torch.Tensor", ctx: "LogitsContext") -> None:
        """Edit the logits, ``[rows, vocabulary]``, after the forward pass."""
        rows = LogitsLayout(ctx.expanded_idx_mapping, ctx.expanded_local_pos, ctx.input_ids)
        longest = int(ctx.seq_lens_upper_bound_np.max(initial=0))
        self.realizer.apply(logits, self._history(), rows, ctx.idx_mapping_np, longest)

    def _history(self) -> History:
        # The engine may replace each of these tensors between steps.
        states = self._states
        return History(states.all_token_ids.gpu, states.prompt_len.gpu, states.total_len.gpu)


def _known() -> "tuple[list[int] | None, list[int]]":
    """Return the prompt of the request that the engine is adding, and its output if it resumes.

    The engine's tensors do not have them yet (``add_requests`` in
    ``vllm/v1/worker/gpu/model_runner.py``).
    """
    frame = caller_frame("sampler", frames=8)  # the model runner's
    added = None if frame is None else frame.f_locals.get("new_req_data")
    ids, prompt = getattr(added, "prefill_token_ids", None), getattr(added, "prompt_len", None)
    if ids is None or prompt is None:
        return None, []
    return (ids, []) if len(ids) == prompt else (ids[:prompt], ids[prompt:])


def _request_id(slot: int) -> str:
    """Return the engine's id of the request in a slot."""
    return nearest("req_states", frames=40).index_to_req_id[slot]
