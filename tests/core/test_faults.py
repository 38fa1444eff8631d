"""A part of ``make faults``."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from logitport.adapters.core.host.realizer import Realizer
from logitport.adapters.core.loops import why_slow

from tests.tools import faults


@pytest.mark.slow
@pytest.mark.skipif(why_slow() is not None, reason="as Python, loops that write can fail halfway")
def test_no_fault_reaches_the_engine_or_a_neighbour() -> None:
    figures = faults.try_out(singles=60, doubles=60, most=12)
    assert not figures.examples
    counts = figures.counts
    assert counts["single survived"] == counts["double survived"] == 60
    assert counts["single ended several"] == 0
    assert counts["single ended a request"] < 30  # most are tried again, which ends nobody
    assert counts["double ended a request"] > 20


@pytest.mark.slow
@pytest.mark.device
def test_no_fault_with_tokens_on_the_device() -> None:
    from tests.support.device_engine import Device

    figures = faults.try_out(singles=8, doubles=8, make=Device, most=4)
    assert not figures.examples
    counts = figures.counts
    assert counts["single survived"] == counts["double survived"] == 8
    assert counts["single ended several"] == 0


def left_half_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if what has failed while a request came could be left as it is."""

    def put(own: Realizer, request: Any) -> None:
        own._requests[request.row] = request
        with suppress(MemoryError):
            if not own._is_broken:
                own._place(request)
        own._is_broken = own._is_broken and request.index < 0

    monkeypatch.setattr(Realizer, "_put", put)


def code_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a step that is tried again ran requests' own code again."""
    never = property(lambda _: None, lambda *_: None)
    monkeypatch.setattr(Realizer, "_own", never, raising=False)


def all_ended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was once: where a step fails, all that use us pay for it."""

    def apply(own: Realizer, logits: torch.Tensor) -> None:
        own._own = None
        try:
            own._step(logits)
        except MemoryError as error:
            own._end(error, logits)

    monkeypatch.setattr(Realizer, "_apply", apply)


def not_rebuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a step could be made again without the requests' state."""

    def forget(own: Realizer) -> None:
        own._forget()
        for request in own._requests.values():
            request.index = -1

    monkeypatch.setattr(Realizer, "_rebuild", forget)


# defect | the first script that finds it now
@pytest.mark.slow
@pytest.mark.parametrize(
    ("breaks", "seed"),
    [(left_half_placed, 3), (code_run_twice, 5), (all_ended_at_once, 0), (not_rebuilt, 6)],
)
def test_what_is_not_atomic_is_found(
    monkeypatch: pytest.MonkeyPatch, breaks: Callable[[pytest.MonkeyPatch], None], seed: int
) -> None:
    breaks(monkeypatch)
    assert any(
        faults.try_out(singles=40, doubles=0, seed=each).examples for each in range(seed, seed + 12)
    )
