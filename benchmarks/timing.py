"""How things are timed: taking turns, so that a noisy moment falls on all of them."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from time import perf_counter

import numpy as np
import torch

from .workload import History, Step, Workload

LEAST_REPETITIONS = 2

Begin = Callable[[Workload, History], Step]
"""Puts a batch's requests into a processor and returns what is to be called at each step."""


@dataclass(frozen=True, slots=True)
class Times:
    """Of a number of repetitions, in seconds.

    Ratios are taken of ``least``: on a machine that does other things too, the repetition that was
    disturbed least says most.
    """

    least: float
    low: float
    median: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Times":
        """Minimum and quartiles."""
        return cls(*map(float, np.quantile(seconds, [0, 0.25, 0.5, 0.75])))


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What one step costs.

    Attributes:
        cold: the first step after all logits were rewritten, caches full of other things.
        warm: the median of the steps that follow it at once.
    """

    cold: Times
    warm: Times


class Logits:
    """``[rows, columns]`` random logits that can be had as they were, again and again."""

    def __init__(self, rows: int, columns: int, device: str = "cpu") -> None:
        # 64 rows, repeated: a second copy of the largest batch would take another gigabyte.
        self._origin = torch.randn(min(rows, 64), columns, device=device)
        self.tensor = torch.empty(rows, columns, device=device)

    def restore(self) -> None:
        """Undo all edits."""
        for part in self.tensor.split(len(self._origin)):
            part.copy_(self._origin[: len(part)])


def _nothing() -> None: ...


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection meanwhile."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def time_steps(
    contenders: Mapping[str, Begin],
    workload: Workload,
    logits: Logits,
    *,
    seconds: float,
    steps: int = 6,
) -> dict[str, StepTimes]:
    """Time the contenders' steps, all on the same workload and tensor, for about ``seconds``.

    In each repetition each contender, in turn, gets a new batch and makes one step that does not
    count; then the logits are restored, and ``steps`` steps are timed one by one. Between them
    the outputs grow by a token, which is not timed, nor is a step's own ``advance()``, where it
    has one.
    """
    cold: dict[str, list[float]] = {name: [] for name in contenders}
    warm: dict[str, list[float]] = {name: [] for name in contenders}
    device = logits.tensor.device
    synchronize = _synchronizer(device)
    order = list(contenders)
    with undisturbed():
        end = perf_counter() + seconds
        for repetition in count():
            if repetition > LEAST_REPETITIONS and perf_counter() > end:
                break
            order.append(order.pop(0))
            for name in order:
                history = History(workload)
                with device:  # what is made now goes there
                    step = contenders[name](workload, history)
                advance: Callable[[], None] = getattr(step, "advance", _nothing)
                history.grow()
                with device:
                    advance()
                    step(logits.tensor)
                logits.restore()
                times: list[float] = []
                for _ in range(steps):
                    history.grow()
                    advance()
                    synchronize()
                    start = perf_counter()
                    step(logits.tensor)
                    synchronize()
                    times.append(perf_counter() - start)
                if repetition:  # the first one loads code and makes threads
                    cold[name].append(times[0])
                    warm[name].append(float(np.median(times[1:])))
    return {name: StepTimes(Times.of(cold[name]), Times.of(warm[name])) for name in contenders}


def _synchronizer(device: torch.device) -> Callable[[], None]:
    return torch.cuda.synchronize if device.type == "cuda" else _nothing


def time_call(
    call: Callable[[], object],
    *,
    repetitions: int,
    calls: int = 1,
    before: Callable[[], object] = _nothing,
) -> Times:
    """Time something that no one else does.

    Args:
        call: what to time.
        repetitions: how often.
        calls: how many at a time, for what is too short to be timed alone.
        before: done before each repetition, not timed.
    """
    times: list[float] = []
    with undisturbed():
        for _ in range(repetitions + 1):
            before()
            start = perf_counter()
            for _ in range(calls):
                call()
            times.append((perf_counter() - start) / calls)
    return Times.of(times[1:])
