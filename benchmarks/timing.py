"""Timing of contenders in turns, so that a noisy moment affects all of them."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from time import perf_counter

import numpy as np
import torch

from .workload import History, Step, Workload

LEAST_REPETITIONS = 2

Begin = Callable[[Workload, History], Step]
"""A function that puts a batch's requests into a processor and returns the function for a step."""


@dataclass(frozen=True, slots=True)
class Times:
    """The minimum and the quartiles of a number of repetitions, in seconds.

    Ratios use ``least``: on a machine with other work, the least disturbed repetition is the most
    reliable.
    """

    least: float
    low: float
    median: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Times":
        """Compute the minimum and the quartiles."""
        return cls(*map(float, np.quantile(seconds, [0, 0.25, 0.5, 0.75])))


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The time of one step.

    Attributes:
        cold: the first step after all logits were rewritten, with other data in the caches.
        warm: the median of the steps that follow at once.
    """

    cold: Times
    warm: Times


class Logits:
    """Random logits, ``[rows, columns]``, that can be restored."""

    def __init__(self, rows: int, columns: int, device: str = "cpu") -> None:
        # Repeat 64 rows: a second copy of the largest batch would take another gigabyte.
        self._origin = torch.randn(min(rows, 64), columns, device=device)
        self.tensor = torch.empty(rows, columns, device=device)

    def restore(self) -> None:
        """Undo all edits."""
        for part in self.tensor.split(len(self._origin)):
            part.copy_(self._origin[: len(part)])


def _nothing() -> None: ...


@cache
def _keep_modules() -> None:
    """Take what exists from the collector: to look at all of torch and vLLM takes a second."""
    gc.collect()
    gc.freeze()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Disable garbage collection in the ``with`` block."""
    _keep_modules()
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

    In each repetition, each contender in turn gets a new batch and makes one step that does not
    count. Then the logits are restored, and ``steps`` steps are timed one by one. Between steps
    the outputs grow by a token. Neither this nor a step's own ``advance()``, if any, is timed.
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
                with device:  # new tensors go there
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
                if repetition:  # the first repetition loads code and starts threads
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
    """Time a function without contenders.

    Args:
        call: the function.
        repetitions: the number of measurements.
        calls: the calls in a measurement, more than 1 if one call is too short to be timed.
        before: a function that runs before each measurement and is not timed.
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
