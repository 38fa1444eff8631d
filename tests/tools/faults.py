"""Makes every numpy and torch call of the core fail, one after the other: ``make faults``.

A script of what an engine does with its batch is run once as it is, and its calls are counted.
Then it is run again for each of them, which raises; and for pairs of them. Nothing may be raised
into the engine, no request may get other edits than its own, one failed call may end one request at
most, and a request that has failed has to be ended, or be ended by the next step. Where a step
fails and fails again, all requests with specs may end.

There are two engines: one that tells a ``Realizer`` which request is in which row, and one that
keeps its tokens on the device, for ``DeviceRealizer``, whose kernels are interpreted here. Of
these, a launch is a call.
"""

import argparse
import logging
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from logitport.adapters.conformance.reference import Edit, edits
from logitport.adapters.core import HistoryRule, Realizer
from logitport.adapters.core.host import warm_up
from logitport.adapters.core.parts import PerRequest
from logitport.spec import LogitBiasSpec

from examples._support import v2_on_cpu
from tests.core.test_realizer import make_small
from tests.support.requests import (
    LAYOUTS,
    ONE_OF_EACH,
    STOP,
    VOCABULARY,
    Request,
    assert_row,
    forced_logit,
    laid_out,
    random_logits,
)

MODULES = (
    *("automaton.arrays", "automaton.automaton", "automaton.builder", "automaton.folding"),
    *("automaton.history", "automaton.pool", "callables", "host.advance"),
    *("host.editors", "host.history_rules", "host.realizer", "host.requests", "logits", "program"),
)
DEVICE_MODULES = (
    *("device.advance_kernel", "device.edit_kernel", "device.history_kernels"),
    *("device.inputs", "device.pool", "device.realizer", "device.requests"),
    *("automaton.folding", "automaton.history", "kinds.prompt_bias"),
)
LOOPS = (
    *(("host.advance", "advance"), ("host.editors", "find_edited")),
    ("automaton.folding", "read"),
)
"""Loops whose calls count. Those that write do not: compiled, they cannot fail."""
METHODS = (
    *("__getitem__", "__setitem__", "add_", "amax", "as_strided", "clamp", "clamp_", "clone"),
    *("contiguous", "copy_", "fill_", "index_add_", "index_fill_", "item", "masked_fill_"),
    *("new_empty", "new_zeros", "numpy", "scatter_reduce_", "sum", "to", "view"),
)
"""Of tensors, those that the core calls."""

ROWS, OPERATIONS, SECONDS = 5, 7, 20
SLOTS, DEVICE_OPERATIONS, LONGEST = 4, 5, 48
OWN = LogitBiasSpec({3: 1.5})
"""What requests' own code does."""


class Faults:
    """Counts calls of numpy, torch and kernels, and lets some of them fail.

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
    def counting(self, counts: bool = True) -> Iterator[None]:
        """While the core runs: what the test itself calls does not count."""
        before, self._counts = self._counts, counts
        try:
            yield
        finally:
            self._counts = before

    def counted(self, function: Any) -> Any:
        """A function of the core, which calls what counts."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            with self.counting():
                return function(*arguments, **keywords)

        return call

    def wrap(self, function: Any) -> Any:
        """A call that counts; what it calls itself does not."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            if not self._counts:
                return function(*arguments, **keywords)
            self.calls += 1
            if self.calls - 1 in self.failing:
                self.raised += 1
                raise MemoryError(f"call {self.calls - 1}")
            with self.counting(False):
                return function(*arguments, **keywords)

        return call

    @contextmanager
    def installed(self, modules: Sequence[str], methods: Sequence[str] = METHODS) -> Iterator[None]:
        """Within it, calls are counted, and fail where they shall."""
        warm_up.run_loops()  # compiled now, they refer to one another and not to what stands in
        with ExitStack() as stack:

            def put(place: Any, name: str, value: Any) -> None:
                stack.enter_context(patch.object(place, name, value))

            for module in modules:
                place = import_module(f"logitport.adapters.core.{module}")
                for name, value in list(vars(place).items()):
                    if name in ("np", "torch"):
                        put(place, name, Library(self, value))
                    elif (module, name) in LOOPS:
                        put(place, name, self.wrap(value))
                    elif name.endswith("_kernel") and hasattr(value, "warmup"):
                        put(place, name, Kernel(self, value))
            for name in methods:
                put(torch.Tensor, name, self.wrap(getattr(torch.Tensor, name)))
            yield


class Library:
    """Stands in for a module whose functions are counted."""

    def __init__(self, faults: Faults, module: Any) -> None:
        self._faults, self._module = faults, module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if callable(value) and not isinstance(value, type):
            function = self._faults.wrap(value)
            for method in ("accumulate", "at"):  # of a ufunc
                if hasattr(value, method):
                    vars(function)[method] = self._faults.wrap(getattr(value, method))
            value = function
            setattr(self, name, value)
        elif type(value).__name__ == "module":
            value = Library(self._faults, value)
            setattr(self, name, value)
        return value


class Kernel:
    """Stands in for a Triton kernel whose launches are counted."""

    def __init__(self, faults: Faults, kernel: Any) -> None:
        self._faults, self._kernel = faults, kernel

    def __getitem__(self, grid: Any) -> Any:
        return self._faults.wrap(self._kernel[grid])


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


class Adds(HistoryRule):
    """Does what ``OWN`` does."""

    def additions(self, prompt_ids: Any, output_ids: Any) -> dict[int, float]:
        return {3: 1.5}


def _adds(output_ids: Any, logits: torch.Tensor) -> None:
    """Does what ``OWN`` does."""
    logits[3] += 1.5


def random_request(choose: random.Random) -> Request:
    """Some have code of their own besides their specs."""
    specs = choose.sample(ONE_OF_EACH, choose.randrange(1, 4))
    output = [choose.randrange(VOCABULARY) for _ in range(choose.randrange(3))]
    request = Request(specs, [choose.randrange(VOCABULARY) for _ in range(6)], output)
    if choose.random() < 0.3:
        own = choose.choice((Adds, lambda: _adds))
        request.program = replace(request.program, per_request=(PerRequest(own),))
        request.specs = [*specs, OWN]
    return request


class Ledger:
    """Holds each request to its own edits, until it is ended."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._gone: dict[int, int] = {}  # requests without their specs; since how many steps
        self._seen: list[Request] = []  # so that no other one is known by the same number

    @property
    def ended(self) -> int:
        """How many requests have been."""
        return len(self._gone)

    def check(
        self,
        where: str,
        request: Request | None,
        rows: Sequence[tuple[torch.Tensor, torch.Tensor, list[Edit]]],
        *,
        failed: bool,
        is_there: bool,
    ) -> None:
        """Look at a request's rows of one step.

        Args:
            where: for who reads what is wrong.
            request: whose the rows are, if they are one's.
            rows: logits before and after the step, and what it should have done to them.
            failed: whether a call has failed in this step; part of the edits of a request that is
                ended had been done before.
            is_there: whether the core has the request.

        Raises:
            WrongError: if it is not as it has to be.
        """
        if request is None or id(request) not in self._gone:
            try:
                for before, after, expected in rows:
                    assert_row(before, after, expected)
                return
            except AssertionError as error:
                if request is None or not self._faults.raised:
                    raise WrongError(where) from error
        self._seen.append(request)
        ends = all(after.argmax() == STOP for _, after, _ in rows)
        if ends and (failed or all(_is_ended(before, after) for before, after, _ in rows)):
            self._gone[id(request)] = 0
            return
        self._gone[id(request)] = since = self._gone.get(id(request), 0) + 1
        if not all(torch.equal(before, after) for before, after, _ in rows):
            raise WrongError(f"{where}, which was to end")
        if since > 2 and is_there:
            raise WrongError(f"{where} goes on")


def _is_ended(before: torch.Tensor, after: torch.Tensor) -> bool:
    expected = before.clone()
    expected[STOP] = forced_logit(before.dtype)
    return torch.equal(after, expected)


class Script:
    """What an engine does with its batch, the same each time.

    Attributes:
        modules: whose calls count.
    """

    modules: tuple[str, ...] = MODULES

    def __init__(self, seed: int, faults: Faults) -> None:
        self._seed, self._faults = seed, faults

    def run(self) -> int:
        """Run it; returns how many requests were ended besides those that had to.

        Raises:
            WrongError: if a request got other edits than its own.
            Exception: whatever the core raises into the engine.
        """
        choose = random.Random(self._seed)
        core = Realizer(VOCABULARY)
        self._of_arrays = choose.choice((False, False, True))
        self._dtype = choose.choice((torch.float32, torch.float32, torch.float16, torch.bfloat16))
        if self._of_arrays and self._dtype == torch.bfloat16:
            self._dtype = torch.float16
        self._layout = choose.choice(LAYOUTS)
        self._ledger = Ledger(self._faults)
        make_small(core)
        own = core.add, core.remove, core.move, core.swap
        add, remove, move, swap = map(self._faults.counted, own)
        rows: dict[int, Request] = {}
        for step in range(OPERATIONS):
            row, other = choose.sample(range(ROWS), 2)
            what = choose.choice(("add", "add", "remove", "move", "swap", "apply"))
            if step < 3:
                what = "add"
            if what == "add":
                rows[row] = request = random_request(choose)
                add(row, request.program, request.prompt, request.output, request.stop)
            elif what == "remove":
                rows.pop(row, None)
                remove(row)
            elif what == "move":
                moved = rows.pop(row, None)
                rows.pop(other, None)
                if moved is not None:
                    rows[other] = moved
                move(row, other)
            elif what == "swap":
                pair = {row: rows.pop(other, None), other: rows.pop(row, None)}
                rows.update({at: one for at, one in pair.items() if one is not None})
                swap(row, other)
            self._apply(core, rows, step)
        for step in range(2):
            self._apply(core, rows, OPERATIONS + step)
        for row in range(ROWS):
            core.remove(row)
        if core.rows or len(core._automata) or core._edits.rules or core._outputs.requests:
            raise WrongError("something is left of requests that are gone")
        return self._ledger.ended

    def _apply(self, core: Any, rows: dict[int, Request], step: int) -> None:
        before = random_logits(ROWS, VOCABULARY, self._seed + step, self._dtype)
        after, raised = laid_out(before, self._layout), self._faults.raised
        logits: Any = after
        if self._of_arrays:
            logits = after.numpy()
        with self._faults.counting():
            core.apply(logits)
        failed = self._faults.raised > raised
        for row in range(ROWS):
            request = rows.get(row)
            self._ledger.check(
                f"row {row} in step {step}",
                request,
                [(before[row], after[row], request.edits() if request else [])],
                failed=failed,
                is_there=row in core.rows,
            )
        for row, request in rows.items():
            request.output.append(int(after[row].argmax()))


class DeviceScript(Script):
    """What an engine does that keeps its tokens on the device."""

    modules = MODULES + DEVICE_MODULES

    def run(self) -> int:
        """See ``Script``."""
        from tests.core.test_device_realizer import Engine

        choose = random.Random(self._seed)
        engine = Engine(torch.device("cpu"), slots=SLOTS, longest=LONGEST)
        core: Any = engine.realizer
        for name in ("add", "remove", "upload", "apply"):
            setattr(core, name, self._faults.counted(getattr(core, name)))
        core._tables._clear({"states": 4, "edges": 4, "tokens": 4, "sets": 2})
        self._dtype = choose.choice((torch.float32, torch.float16))
        self._ledger = Ledger(self._faults)
        for step in range(DEVICE_OPERATIONS):
            what = "add" if step < 2 else choose.choice(("add", "leave", "resume", "step"))
            if what == "add" and engine.free:
                request = random_request(choose)
                engine.add(request, request.program)  # pyright: ignore[reportArgumentType]
            elif what in ("leave", "resume") and engine.requests:
                left = engine.finish(choose.choice(list(engine.requests)))
                if what == "resume":  # in another slot, and as itself if it had been ended
                    engine.add(copy(left), left.program)
                else:
                    engine.realizer.remove(engine.free[0])
            if engine.requests and step:
                self._step(engine, choose, step)
        for step in range(2 if engine.requests else 0):
            self._step(engine, choose, DEVICE_OPERATIONS + step)
        for slot in range(SLOTS):
            core.remove(slot)
        if len(core):
            raise WrongError("something is left of requests that are gone")
        return self._ledger.ended

    def _step(self, engine: Any, choose: random.Random, step: int) -> None:
        slots = list(engine.requests)
        choose.shuffle(slots)
        slots = slots[: choose.randint(1, SLOTS)] if step < DEVICE_OPERATIONS else slots
        drafts = {slot: [choose.randrange(VOCABULARY)] * choose.randrange(2) for slot in slots}
        count = sum(len(tokens) + 1 for tokens in drafts.values())
        before = random_logits(count, VOCABULARY, self._seed + step, self._dtype)
        raised, rows = self._faults.raised, {slot: list[Any]() for slot in slots}
        after, of_rows = engine.apply(drafts, before)
        for row, (slot, k) in enumerate(of_rows):
            request = engine.requests[slot]
            output = [*request.output, *drafts[slot][:k]]
            expected = edits(request.specs, request.prompt, output)
            rows[slot].append((before[row], after[row], expected))
        for slot in slots:
            self._ledger.check(
                f"slot {slot} in step {step}",
                engine.requests[slot],
                rows[slot],
                failed=self._faults.raised > raised,
                is_there=slot in engine.realizer,
            )
            engine.accept(slot, [int(rows[slot][0][1].argmax())])


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


def try_out(
    singles: int, doubles: int, seed: int = 0, make: Callable[..., Script] = Script, most: int = 40
) -> Figures:
    """Let so many calls fail, and so many pairs of calls.

    Args:
        singles: how many calls.
        doubles: how many pairs.
        seed: of the first script.
        make: what is done.
        most: so many of a script's calls are tried.
    """
    faults, figures = Faults(), Figures()
    logging.disable(logging.CRITICAL)
    try:
        with faults.installed(make(0, faults).modules):
            for name, count in (("single", singles), ("double", doubles)):
                tried = 0
                while tried < count:
                    script = make(seed, faults)
                    faults.start()
                    if script.run():
                        raise WrongError("a request was ended although nothing had failed")
                    choose = random.Random(seed)
                    tries = min(faults.calls, count - tried, most)
                    for first in choose.sample(range(faults.calls), tries):
                        pair = [first]
                        if name == "double":
                            pair.append(first + choose.choice((1, 1, 2, 3, 5, 9, 30)))
                        tried += 1
                        _try(script, faults, pair, name, figures, seed)
                    seed += 1
    finally:
        logging.disable(logging.NOTSET)
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
        # Where a step fails and is tried again, and fails again, all that it has end.
        if ended > faults.raised and faults.raised < 2:
            figures.note("more ends than faults", f"{where}: {ended} requests")


BAD = ("engine exceptions", "wrong neighbours", "more ends than faults", "hangs")
WHAT = ("tried", "survived", "ended a request", "ended several")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--singles", type=int, default=10_000)
    parser.add_argument("--doubles", type=int, default=10_000)
    parser.add_argument(
        "--device", type=int, default=1000, help="singles, and doubles, with the device realizer"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ["TRITON_INTERPRET"] = "1"  # read where kernels are defined, which is later
    v2_on_cpu.be_quick()
    torch.set_num_threads(1)
    is_bad = False
    for title, make, counts in (
        ("requests in rows", Script, (options.singles, options.doubles)),
        ("tokens on the device", DeviceScript, (options.device, options.device)),
    ):
        started = time.monotonic()
        figures = try_out(*counts, options.seed, make)
        print(title)
        for name in (*(f"{each} {what}" for each in ("single", "double") for what in WHAT), *BAD):
            print(f"  {name:24} {figures.counts[name]:8}")
        print(f"  {'seconds':24} {time.monotonic() - started:8.0f}", flush=True)
        with suppress(BrokenPipeError):
            print(*figures.examples, sep="\n")
        is_bad |= any(figures.counts[bad] for bad in BAD)
    sys.exit(is_bad)


if __name__ == "__main__":
    main()
