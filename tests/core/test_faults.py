"""A part of ``make faults``."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from logitport.adapters.core.automaton import pool
from logitport.adapters.core.host import editor, realizer, torch_editor

from tests import faults
from tests.support.triton_process import INTERPRETED, outside, run_in_interpreter


@outside
def test_no_fault_reaches_the_engine_or_a_neighbour() -> None:
    figures = faults.try_out(singles=120, doubles=120, most=20)
    assert not figures.examples
    counts = figures.counts
    assert counts["single survived"] == counts["double survived"] == 120
    assert counts["single ended several"] == 0
    assert counts["single ended a request"] < 60  # most are tried again, which ends nobody
    assert counts["double ended a request"] > 60


@pytest.mark.skipif(not INTERPRETED, reason="its kernels are interpreted")
def test_no_fault_with_tokens_on_the_device() -> None:
    figures = faults.try_out(singles=8, doubles=8, make=faults.DeviceScript, most=4)
    assert not figures.examples
    counts = figures.counts
    assert counts["single survived"] == counts["double survived"] == 8
    assert counts["single ended several"] == 0


@outside
def test_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    run_in_interpreter(__file__)


def emptied_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the tables were once: emptied before the new ones are there."""

    def rebuilt(own: pool.AutomatonPool, in_use: object) -> pool.AutomatonPool:
        own._clear(dict(own._room))
        own.generation += 1
        return original(own, in_use)  # pyright: ignore[reportArgumentType]

    original = pool.AutomatonPool.rebuilt
    monkeypatch.setattr(pool.AutomatonPool, "rebuilt", rebuilt)


def edited_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if who goes on began again: what has happened already happens once more."""
    apply = torch_editor.TorchEditor.apply

    def twice(own: torch_editor.TorchEditor, logits: torch.Tensor, more: Any = ()) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(editor, "attempt", lambda _, write, *part: write(*part))
            try:
                return apply(own, logits, more)
            except MemoryError:
                return apply(own, logits, more)

    monkeypatch.setattr(torch_editor.TorchEditor, "apply", twice)


def all_ended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was once: where a step fails, all that use us pay for it."""

    def apply(own: realizer.Realizer, logits: torch.Tensor) -> None:
        own._own = None
        try:
            own._apply(logits)
        except MemoryError as error:
            for request in list(own._requests.values()):
                own._fail(request, error)
            own._apply(logits)

    monkeypatch.setattr(realizer.Realizer, "apply", apply)


@outside
@pytest.mark.parametrize("breaks", [emptied_too_early, edited_twice, all_ended_at_once])
def test_what_is_not_atomic_is_found(
    monkeypatch: pytest.MonkeyPatch, breaks: Callable[[pytest.MonkeyPatch], None]
) -> None:
    breaks(monkeypatch)
    assert any(faults.try_out(singles=40, doubles=0, seed=seed).examples for seed in range(8))
