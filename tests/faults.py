"""Makes every numpy and torch call of the core fail, one after the other: ``make faults``.

A script of what an engine does with its batch is run once as it is, and its calls are counted.
Then it is run again for each of them, which raises; and for pairs of them. Nothing may be raised
into the engine, no request may get other edits than its own, and a request that has failed has to
be ended, or be ended by the next step.
"""

import argparse
import logging
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from logitport.adapters.conformance.meaning import FORCED
from logitport.adapters.core import (
    Realizer,
    array_editor,
    automata,
    automaton,
    compile,
    edits,
    folding,
    ngrams,
    own_code,
    realizer,
    slots,
    tables,
    torch_editor,
)
from logitport.adapters.core.array_editor import ArrayRealizer

from tests.test_realizer import (
    ONE_OF_EACH,
    STOP,
    VOCABULARY,
    Request,
    assert_row,
    make_small,
    random_logits,
)

MODULES = (
    array_editor,
    automata,
    automaton,
    compile,
    edits,
    folding,
    ngrams,
    own_code,
    realizer,
    slots,
    tables,
    torch_editor,
)
METHODS = (
    "as_strided",
    "fill_",
    "index_add_",
    "index_fill_",
    "masked_fill_",
    "new_empty",
    "scatter_reduce_",
)
"""Of tensors, those with which logits are edited."""

ROWS, OPERATIONS, SECONDS = 5, 7, 20


class Faults:
    """Counts calls of numpy and torch, and lets some of them fail.

    Attributes:
        calls: how many there have been.
        failing: which of them fail, counted from 0.
        raised: how many have.
    """

    def __init__(self) -> None:
        self.calls = self.raised = 0
        self.failing: frozenset[int] = frozenset()
        self._counts = False

    def start(self, failing: Sequence[int] = ()) -> None:
        self.calls = self.raised = 0
        self.failing = frozenset(failing)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """While the core runs: what the test itself calls does not count."""
        self._counts = True
        try:
            yield
        finally:
            self._counts = False

    def wrap(self, function: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if self._counts:
                self.calls += 1
                if self.calls - 1 in self.failing:
                    self.raised += 1
                    raise MemoryError(f"call {self.calls - 1}")
            return function(*arguments, **keywords)

        return call

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Within it, calls are counted, and fail where they shall."""
        places: list[tuple[Any, str, Any]] = []
        for module in MODULES:
            for name in ("np", "torch"):
                if hasattr(module, name):
                    places.append((module, name, Library(self, getattr(module, name))))
        for name in METHODS:
            places.append((torch.Tensor, name, self.wrap(getattr(torch.Tensor, name))))
        originals = [(place, name, getattr(place, name)) for place, name, _ in places]
        try:
            for place, name, value in places:
                setattr(place, name, value)
            yield
        finally:
            for place, name, value in originals:
                setattr(place, name, value)


class Library:
    """Stands in for a module whose functions are counted."""

    def __init__(self, faults: Faults, module: Any) -> None:
        self._faults, self._module = faults, module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if callable(value) and not isinstance(value, type):
            function = self._faults.wrap(value)
            if (at := getattr(value, "at", None)) is not None:  # of a ufunc
                vars(function)["at"] = self._faults.wrap(at)
            value = function
            setattr(self, name, value)
        elif type(value).__name__ == "module":
            value = Library(self._faults, value)
            setattr(self, name, value)
        return value


@dataclass
class Figures:
    """What has come out."""

    counts: Counter[str] = field(default_factory=Counter[str])
    examples: list[str] = field(default_factory=list[str])

    def note(self, what: str, example: str) -> None:
        self.counts[what] += 1
        if len(self.examples) < 8:
            self.examples.append(f"{what}: {example}")


class WrongError(AssertionError):
    """A request got other edits than its own."""


class Script:
    """What an engine does with its batch, the same each time."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self._seed, self._faults = seed, faults

    def run(self) -> int:
        """Run it; returns how many requests were ended besides those that had to.

        Raises:
            WrongError: if a request got other edits than its own.
            Exception: whatever the core raises into the engine.
        """
        choose = random.Random(self._seed)
        kind = choose.choice((Realizer, Realizer, ArrayRealizer))
        core: Any = kind(VOCABULARY)
        make_small(core)
        rows: dict[int, Request] = {}
        gone: dict[Request, int] = {}  # requests without their specs, and since how many steps
        for step in range(OPERATIONS):
            row, other = choose.sample(range(ROWS), 2)
            what = choose.choice(("add", "add", "remove", "move", "swap", "apply"))
            if step < 3:
                what = "add"
            if what == "add":
                rows[row] = request = self._request(choose)
                with self._faults.counting():
                    core.add(row, request.program, request.prompt, request.output, request.stop)
            elif what == "remove":
                rows.pop(row, None)
                with self._faults.counting():
                    core.remove(row)
            elif what == "move":
                moved = rows.pop(row, None)
                rows.pop(other, None)
                if moved is not None:
                    rows[other] = moved
                with self._faults.counting():
                    core.move(row, other)
            elif what == "swap":
                pair = {row: rows.pop(other, None), other: rows.pop(row, None)}
                rows.update({at: one for at, one in pair.items() if one is not None})
                with self._faults.counting():
                    core.swap(row, other)
            self._apply(core, rows, gone, step)
        for step in range(2):
            self._apply(core, rows, gone, OPERATIONS + step)
        for row in range(ROWS):
            core.remove(row)
        if core.rows or len(core._automata) or len(core._ngrams):
            raise WrongError("something is left of requests that are gone")
        return len(gone)

    def _request(self, choose: random.Random) -> Request:
        specs = [choose.choice(ONE_OF_EACH) for _ in range(choose.randrange(1, 4))]
        output = [choose.randrange(VOCABULARY) for _ in range(choose.randrange(3))]
        return Request(specs, [choose.randrange(VOCABULARY) for _ in range(6)], output)

    def _apply(
        self, core: Any, rows: dict[int, Request], gone: dict[Request, int], step: int
    ) -> None:
        before = random_logits(ROWS, VOCABULARY, self._seed + step, torch.float32)
        after, raised = before.clone(), self._faults.raised
        with self._faults.counting():
            core.apply(after.numpy() if isinstance(core, ArrayRealizer) else after)
        failed = self._faults.raised > raised
        for row in range(ROWS):
            request = rows.get(row)
            if request is None or id(request) not in {id(one) for one in gone}:
                try:
                    assert_row(before[row], after[row], request.edits() if request else [])
                    continue
                except AssertionError as error:
                    if request is None or not self._faults.raised:
                        raise WrongError(f"row {row} in step {step}") from error
            # Where something failed in this very step, part of its own edits had been done before.
            if after[row].argmax() == STOP and (failed or _is_ended(before[row], after[row])):
                gone[request] = 0
                continue
            gone[request] = gone.get(request, 0) + 1
            if not failed and not torch.equal(before[row], after[row]):
                raise WrongError(f"row {row} in step {step}, which was to end")
            if gone[request] > 2 and row in core.rows:
                raise WrongError(f"row {row} goes on in step {step}")
        for row, request in rows.items():
            request.output.append(int(after[row].argmax()))


def _is_ended(before: torch.Tensor, after: torch.Tensor) -> bool:
    expected = before.clone()
    expected[STOP] = FORCED
    return torch.equal(after, expected)


def watched(run: Any) -> Any:
    """Run it, but not for ever."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        return run()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def try_out(singles: int, doubles: int, seed: int = 0) -> Figures:
    """Let so many calls fail, and so many pairs of calls."""
    faults, figures = Faults(), Figures()
    logging.disable(logging.CRITICAL)
    request_hash = Request.__hash__
    Request.__hash__ = object.__hash__  # type: ignore[method-assign, assignment]
    try:
        with faults.installed():
            for name, count in (("single", singles), ("double", doubles)):
                tried = 0
                while tried < count:
                    script = Script(seed, faults)
                    faults.start()
                    if script.run():
                        raise WrongError("a request was ended although nothing had failed")
                    gaps = random.Random(seed)
                    for first in range(min(faults.calls, count - tried)):
                        pair = [first]
                        if name == "double":
                            pair.append(first + gaps.choice((1, 1, 2, 3, 5, 9, 30)))
                        tried += 1
                        _try(script, faults, pair, name, figures, seed)
                    seed += 1
    finally:
        logging.disable(logging.NOTSET)
        Request.__hash__ = request_hash
    return figures


def _try(
    script: Script, faults: Faults, pair: list[int], name: str, figures: Figures, seed: int
) -> None:
    faults.start(pair)
    figures.counts[f"{name} tried"] += 1
    where = f"script {seed}, calls {pair}"
    try:
        ended = watched(script.run)
    except TimeoutError:
        figures.note("hangs", where)
    except WrongError as error:
        figures.note("wrong neighbours", f"{where}: {error}")
    except Exception as error:
        figures.note("engine exceptions", f"{where}: {error!r}")
    else:
        figures.counts[f"{name} survived"] += 1
        figures.counts[f"{name} ended a request"] += bool(ended)
        figures.counts[f"{name} ended several"] += ended > 1


BAD = ("engine exceptions", "wrong neighbours", "hangs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--singles", type=int, default=10_000)
    parser.add_argument("--doubles", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    figures = try_out(options.singles, options.doubles, options.seed)
    for name in (
        *(f"{each} {what}" for each in ("single", "double") for what in WHAT),
        *BAD,
    ):
        print(f"{name:24} {figures.counts[name]:8}")
    print(f"{'seconds':24} {time.monotonic() - started:8.0f}")
    with suppress(BrokenPipeError):
        print(*figures.examples, sep="\n")
    sys.exit(any(figures.counts[bad] for bad in BAD))


WHAT = ("tried", "survived", "ended a request", "ended several")


if __name__ == "__main__":
    main()
