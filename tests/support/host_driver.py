"""An engine that has one row of logits for each of its requests, and its driver."""

import gc
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from logitport.adapters.core import Realizer
from logitport.adapters.core.host.requests import Outputs

from tests.support.faults import MODULES
from tests.support.lives import MOST, Driver, Life
from tests.support.requests import (
    LAYOUTS,
    STOP,
    VOCABULARY,
    Request,
    Row,
    assert_row,
    laid_out,
    make_small,
    random_logits,
)


class Host(Driver):
    """Rows, of which some may be free; all that run are in each step."""

    any_part = False
    takes_back = is_core = True
    device: ClassVar[str] = "cpu"
    arrays: ClassVar[bool] = True  # of numpy, now and then
    more: ClassVar[tuple[str, ...]] = ("rearrange", "rearrange", "jump", "replace", "restart")

    def __init__(self, groups: Sequence[Sequence[Any]], patch: pytest.MonkeyPatch) -> None:
        self._rows: dict[int, Life] = {}
        self._left: set[int] = set()  # requests that the core is not told of until it has to be
        self._outputs: list[weakref.ref[Any]] = []
        self._of_arrays = self.arrays and self.choose.random() < 0.3
        self._is_small = self.choose.random() < 0.8
        self._core = self._new()

    def _new(self) -> Any:
        core: Any = Realizer(VOCABULARY)
        if self._is_small:
            make_small(core._automata.tables)
        for name in ("add", "enter", "remove", "move", "swap", "apply"):
            setattr(core, name, self.faults.counted(getattr(core, name)))
        return core

    def come(self, life: Life) -> None:
        row = min({*range(MOST + 2)} - self._rows.keys())
        self._left.discard(row)
        self._rows[row], life.of_engine = life, row
        self._add(life)

    def _add(self, life: Life) -> None:
        arguments = self.program(life), life.prompt, life.outputs[0], STOP
        if not (life.specs or life.draw):
            self._core.remove(life.of_engine)
        elif self.choose.random() < 0.5:
            self._core.add(life.of_engine, *arguments)
        else:
            self._core.enter(life.of_engine, *arguments)

    def put_back(self, life: Life) -> None:
        del self._rows[life.of_engine]
        if self.choose.random() < 0.7:
            self._core.remove(life.of_engine)
        else:
            self._left.add(life.of_engine)

    def go(self, life: Life) -> None:
        if life.running:
            self.put_back(life)
        self._outputs.append(weakref.ref(life.outputs[0]))

    def _remove_left(self) -> None:
        while self._left:
            self._core.remove(self._left.pop())

    def rearrange(self) -> None:
        """Two rows change places, or a request moves into a free row, or one that it has."""
        self._remove_left()
        a, b = self.choose.choices(range(MOST + 2), k=2)
        pair = {b: self._rows.pop(a, None), a: self._rows.pop(b, None)} if a != b else {}
        if a != b and pair[a] is None and self.choose.random() < 0.7:
            self._core.move(a, b)
        elif a == b:
            (self._core.move if self.choose.random() < 0.5 else self._core.swap)(a, b)
        else:
            self._core.swap(a, b)
        for row, life in pair.items():
            if life is not None:
                self._rows[row], life.of_engine = life, row

    def restart(self) -> None:
        """Another worker takes everything over: folding is stepping."""
        self._left.clear()
        self._core = self._new()
        for life in self._rows.values():
            life.without_specs = None
            self._add(life)

    def has(self, life: Life) -> bool:
        return life.of_engine in self._core.rows

    def step(self, lives: Sequence[Life], logits: torch.Tensor) -> torch.Tensor:
        self._remove_left()
        before = torch.ones(max(self._rows) + 1, logits.shape[1], dtype=logits.dtype)
        rows = [life.of_engine for life in lives]
        before[rows] = logits
        after = laid_out(before, self.choose.choice(LAYOUTS)).to(self.device)
        of_arrays = self._of_arrays and logits.dtype != torch.bfloat16  # numpy does not have it
        self._core.apply(after.numpy() if of_arrays else after)
        after = after.cpu()
        free = [row for row in range(len(before)) if row not in rows]
        assert torch.equal(before[free], after[free])
        return after[rows]

    def end(self) -> None:
        self._remove_left()
        assert (len(self._core), self._core.rows) == (0, [])
        if any(output() is not None for output in self._outputs):
            gc.collect()
        assert not any(output() is not None for output in self._outputs), (
            "part of a request is left"
        )


class Marked(Host):
    """Rows of requests of which most are marked."""

    draws = "mark"


class Chained(Host):
    """Rows of requests of which most have a chain."""

    draws = "chain"
    modules = *MODULES, "host.shape"


def applied(
    realizer: Realizer,
    rows: int,
    *,
    seed: int = 0,
    layout: str = "plain",
    dtype: torch.dtype = torch.float32,
    columns: int = VOCABULARY,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random logits, and what the realizer makes of them."""
    before = random_logits(rows, columns, seed, dtype)
    after = laid_out(before, layout)
    realizer.apply(after)
    return before, after


def apply(
    realizer: Realizer, requests: Sequence[Request | None], **how: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply to random logits, check every row, and return them before and after."""
    before, after = applied(realizer, len(requests), **how)
    for i, request in enumerate(requests):
        assert_row(before[i], after[i], request.edits() if request else [])
    return before, after


def batch(*requests: Request) -> tuple[Realizer, list[Request]]:
    realizer = Realizer(VOCABULARY)
    for row, request in enumerate(requests):
        request.add_to(realizer, row)
    return realizer, list(requests)


def assert_nothing_left(realizer: Realizer) -> None:
    assert (len(realizer), realizer.rows) == (0, [])


class Batch:
    """An engine that has one row of logits for each of its requests, with one realizer."""

    updates = Outputs, "read"

    def __init__(self) -> None:
        self.realizer = Realizer(VOCABULARY)
        self.requests: dict[int, Request] = {}

    def add(self, request: Request) -> int:
        row = len(self.requests)
        self.requests[row] = request
        request.add_to(self.realizer, row)
        return row

    def accept(self, row: int, token_ids: Sequence[int]) -> None:
        self.requests[row].output += token_ids

    def step(self) -> list[Row]:
        before, after = applied(self.realizer, len(self.requests))
        return [(request, before[i], after[i], ()) for i, request in self.requests.items()]

    def assert_nothing_left(self) -> None:
        assert_nothing_left(self.realizer)
