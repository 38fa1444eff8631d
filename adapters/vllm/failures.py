"""Failures in a worker, where an operator sees them: in the log and in the metrics."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from vllm.distributed.parallel_state import (
    get_pcp_group,
    get_pp_group,
    get_tp_group,
    model_parallel_is_initialized,
)

from .. import count
from ..core import log_failure
from .engine_config import role_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class FailureReport:
    """Logs and counts each request that fails, in one of the workers that run it.

    Args:
        vllm_config: the engine's configuration.
        request_id: finds the engine's id of the request in a row or slot; may raise.
    """

    def __init__(self, vllm_config: "VllmConfig", request_id: Callable[[int], str]) -> None:
        self._config = vllm_config
        self._request_id = request_id
        # The series is there before a failure: `increase` does not see a first sample.
        count("failed", role_of(vllm_config).stage, 0)

    def __call__(self, row: int, error: Exception, ends: bool) -> None:
        """Report a failure, unless another worker does."""
        if not self._is_sampled_here(row):
            return
        name = f"the request in row {row}"
        with suppress(Exception):
            name = f"request {self._request_id(row)}"
        log_failure(name, error, ends=ends)
        count("failed", role_of(self._config).stage)

    def _is_sampled_here(self, row: int) -> bool:
        """Whether the engine takes the tokens of a row from this worker.

        All workers of the last pipeline stage sample the same tokens, and the executor takes those
        of the first (``_get_output_rank`` in ``vllm/v1/executor/multiproc_executor.py``). With
        batch-sharded sampling, each samples its own slots (``shard_sampler_inputs`` in
        ``vllm/v1/worker/gpu/sample/batch_shard.py``, from 0.32 on).
        """
        if not model_parallel_is_initialized():
            return True
        tp = get_tp_group()
        parallel = self._config.parallel_config
        is_sharded = getattr(parallel, "enable_batch_sharded_sampling", False)
        rank = row % tp.world_size if is_sharded else 0
        is_first = get_pcp_group().is_first_rank
        return tp.rank_in_group == rank and is_first and get_pp_group().is_last_rank
