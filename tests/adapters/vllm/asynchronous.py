"""Asynchronous scheduling under the V1 model runner, as on a GPU; vLLM turns it off on CPUs.

All is vLLM's own but the CUDA streams and events with which the runner waits for sampled ids to
arrive on the host, where they are from the outset.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from .in_process import Engine, engine


class _Silent:
    """A stream, or an event."""

    def __init__(self, blocking: bool = False) -> None:
        self.wait_stream = self.record = self.synchronize = lambda *_: None


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
        patch("torch.cuda.Stream", _Silent),
        patch("torch.cuda.Event", _Silent),
        patch("torch.cuda.current_stream", _Silent),
        patch("torch.cuda.stream", nullcontext),
        engine(model, runner="v1", **arguments) as running,
    ):
        core = running.client.engine_core
        runner = core.model_executor.driver_worker.worker.model_runner
        assert isinstance(core.scheduler, AsyncScheduler)
        assert runner.use_async_scheduling
        yield running
