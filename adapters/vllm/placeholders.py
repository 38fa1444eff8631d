"""Output ids under the V1 model runner's asynchronous scheduling."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..core.automaton import UNKNOWN

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def tells_output_ids(vllm_config: "VllmConfig") -> bool:
    """Whether processors see what was sampled at every step, and not only how much.

    With asynchronous scheduling, the V1 runner has placeholders for the newest output ids until
    something of the batch needs to know them. It takes for granted that a processor does which is
    named on the command line, but not one of the entry-point group
    (``logitsprocs_need_output_token_ids`` in ``vllm/v1/worker/gpu_model_runner.py``).
    """
    return (
        vllm_config.use_v2_model_runner
        or not vllm_config.scheduler_config.async_scheduling
        or bool(vllm_config.model_config.logits_processors)
    )


class Placeholders:
    """Keeps output ids as long as the output is.

    When a request joins the batch that does need the ids, for penalties, say, vLLM fills them in
    for all. It takes a list's trailing placeholders for those of a single step then, puts the one
    new id in their place, and leaves the list too short
    (``InputBatch.update_async_output_token_ids``). What has been lost is put back here.
    """

    def __init__(self) -> None:
        self._noted: list[tuple[Any, int]] = []

    def note(self, outputs: Iterable[Sequence[int]]) -> None:
        """Remember how long the engine's lists are, before a step's forward pass."""
        self._noted = [(output_ids, len(output_ids)) for output_ids in outputs]

    def put_back(self) -> None:
        """Make the lists that long again, before the step's logits are edited."""
        for output_ids, length in self._noted:
            if len(output_ids) < length:
                output_ids[-1:-1] = [UNKNOWN] * (length - len(output_ids))
