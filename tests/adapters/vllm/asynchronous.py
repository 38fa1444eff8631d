"""Asynchronous scheduling under the V1 model runner, as on a GPU.

vLLM's platform for CPUs turns it off. Here it is left on: the engine, its asynchronous scheduler
and the model runner are vLLM's own. Stand-ins are only the CUDA streams and events with which the
runner waits for the sampled ids to arrive on the host, where they are from the outset.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from .in_process import Engine, engine


class _Stream:
    def wait_stream(self, other: object) -> None:
        pass


class _Event:
    def __init__(self, blocking: bool) -> None:
        pass

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


@contextmanager
def asynchronous(model: Path, **arguments: Any) -> Iterator[Engine]:
    """An engine that schedules asynchronously, as any does that has an accelerator."""
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    check_and_update = CpuPlatform.check_and_update_config

    def leave_on(vllm_config: Any) -> None:
        check_and_update(vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    with (
        patch.object(CpuPlatform, "check_and_update_config", staticmethod(leave_on)),
        patch("torch.cuda.Stream", _Stream),
        patch("torch.cuda.Event", _Event),
        patch("torch.cuda.current_stream", _Stream),
        patch("torch.cuda.stream", nullcontext),
        engine(model, runner="v1", **arguments) as running,
    ):
        core = running.client.engine_core
        runner = core.model_executor.driver_worker.worker.model_runner
        assert isinstance(core.scheduler, AsyncScheduler)
        assert runner.use_async_scheduling
        yield running
