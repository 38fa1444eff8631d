"""Output ids under the V1 model runner's asynchronous scheduling."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..core import UNKNOWN
from .names import PROCESSOR

if TYPE_CHECKING:
    from vllm.config import VllmConfig


PROVIDE_IDS = (
    f"start the engine with --logits-processors {PROCESSOR}, or with --no-async-scheduling"
)
"""What to do where the engine does not pass the sampled ids on; see ``provides_output_ids``."""


def provides_output_ids(vllm_config: "VllmConfig") -> bool:
    """Whether processors see the sampled ids at every step, rather than placeholders.

    With asynchronous scheduling, the V1 runner has placeholders for the newest output ids until
    a part of the batch needs them. It assumes that a processor from the command line needs them,
    but not a processor from the entry-point group
    (``logitsprocs_need_output_token_ids`` in ``vllm/v1/worker/gpu_model_runner.py``).
    """
    return (
        vllm_config.use_v2_model_runner
        or not vllm_config.scheduler_config.async_scheduling
        or bool(vllm_config.model_config.logits_processors)
    )


class Placeholders:
    """A repair of the engine's lists of output ids, which can become too short.

    When a request that needs the ids joins the batch, vLLM fills them in for all requests. It then
    replaces all trailing placeholders of a list by the one new id, as if they were those of a
    single step (``InputBatch.update_async_output_token_ids``).
    """

    def __init__(self) -> None:
        self._noted: list[tuple[Any, int]] = []

    def note(self, outputs: Iterable[Sequence[int]]) -> None:
        """Record the lengths of the engine's lists before a step's forward pass."""
        self._noted = [(output_ids, len(output_ids)) for output_ids in outputs]

    def put_back(self) -> None:
        """Restore the recorded lengths before the step's logits are edited."""
        for output_ids, length in self._noted:
            if len(output_ids) < length:
                output_ids[-1:-1] = [UNKNOWN] * (length - len(output_ids))
