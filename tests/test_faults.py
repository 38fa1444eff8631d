"""A part of ``make faults``."""

import pytest
from logitport.adapters.core import tables

from tests import faults


def test_no_fault_reaches_the_engine_or_a_neighbour() -> None:
    figures = faults.try_out(singles=120, doubles=120)
    assert not figures.examples
    assert figures.counts["single survived"] == figures.counts["double survived"] == 120
    assert figures.counts["double ended a request"] > 60


def test_what_is_not_atomic_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the tables were once: emptied before the new ones are there."""

    def rebuilt(own: tables.Tables, in_use: object) -> tables.Tables:
        own._clear(dict(own._room))
        own.generation += 1
        return original(own, in_use)  # pyright: ignore[reportArgumentType]

    original = tables.Tables.rebuilt
    monkeypatch.setattr(tables.Tables, "rebuilt", rebuilt)
    figures = faults.try_out(singles=250, doubles=0)
    assert any(figures.counts[bad] for bad in faults.BAD)
