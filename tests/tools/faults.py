"""Makes every numpy and torch call of the core fail, one after the other: ``make faults``.

A script of what an engine does with its batch (see ``tests/support/lives.py``) is run once as it
is, and its calls are counted. Then it is run again for each of them, which raises; and for pairs of
them. Nothing may be raised into the engine, no request may get other edits than its own, one failed
call may end one request at most, and a request that has failed has to be ended, or be ended by the
next step. Where a step fails and fails again, all requests with specs may end.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pytest
import torch

from examples._support import v2_on_cpu
from tests.support.faults import Faults
from tests.support.host_driver import Host
from tests.support.lives import Driver, Lives

EVENTS, SECONDS = 7, 120


@dataclass
class Figures:
    """What has come out."""

    counts: Counter[str] = field(default_factory=Counter[str])
    examples: list[str] = field(default_factory=list[str])

    def note(self, what: str, example: str) -> None:
        self.counts[what] += 1
        if len(self.examples) < 8:
            self.examples.append(f"{what}: {example}")


@lru_cache
def groups_of(make: type[Driver], seed: int) -> Sequence[Sequence[Any]]:
    with pytest.MonkeyPatch.context() as patch:
        return Lives(make, seed, patch, failing=()).groups


def run(make: type[Driver], seed: int, faults: Faults, failing: list[int]) -> int:
    """Run a script; return how many requests were ended besides those that had to."""
    with pytest.MonkeyPatch.context() as patch:
        lives = Lives(make, seed, patch, groups_of(make, seed), failing, faults)
        lives.lead(EVENTS)
    return lives.ended


@contextmanager
def not_for_ever() -> Iterator[None]:
    """Raise ``TimeoutError`` after ``SECONDS``."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def try_out(
    singles: int, doubles: int, seed: int = 0, make: type[Driver] = Host, most: int = 40
) -> Figures:
    """Let so many calls fail, and so many pairs of calls; of one script, ``most`` at most."""
    faults, figures = Faults(), Figures()
    logging.disable(logging.CRITICAL)
    try:
        with faults.installed(make.modules):
            for name, count in (("single", singles), ("double", doubles)):
                tried = f"{name} tried"
                while (missing := count - figures.counts[tried]) > 0:
                    run(make, seed, faults, [])
                    calls, choose = faults.calls, random.Random(seed)
                    for first in choose.sample(range(calls), min(calls, missing, most)):
                        failing = [first]
                        if name == "double":
                            failing.append(first + choose.choice((1, 1, 2, 3, 5, 9, 30)))
                        figures.counts[tried] += 1
                        _try(make, faults, failing, name, figures, seed)
                    seed += 1
    finally:
        logging.disable(logging.NOTSET)
    return figures


def _try(
    make: type[Driver], faults: Faults, failing: list[int], name: str, figures: Figures, seed: int
) -> None:
    where = f"script {seed}, calls {failing}"
    try:
        with not_for_ever():
            ended = run(make, seed, faults, failing)
    except TimeoutError:
        figures.note("hangs", where)
    except AssertionError as error:
        figures.note("wrong neighbours", f"{where}: {error}")
    except Exception as error:
        figures.note("engine exceptions", f"{where}: {error!r}")
    else:
        figures.counts[f"{name} survived"] += 1
        figures.counts[f"{name} ended a request"] += bool(ended)
        figures.counts[f"{name} ended several"] += ended > 1


BAD = ("engine exceptions", "wrong neighbours", "hangs")
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
    from tests.support.device_engine import Device

    is_bad = False
    for title, make, counts in (
        ("requests in rows", Host, (options.singles, options.doubles)),
        ("tokens on the device", Device, (options.device, options.device)),
    ):
        started = time.monotonic()
        figures = try_out(*counts, options.seed, make)
        print(title)
        for name in (*(f"{each} {what}" for each in ("single", "double") for what in WHAT), *BAD):
            print(f"  {name:24} {figures.counts[name]:8}")
        print(f"  {'seconds':24} {time.monotonic() - started:8.0f}", flush=True)
        print(*figures.examples, sep="\n")
        is_bad |= any(figures.counts[bad] for bad in BAD)
    sys.exit(is_bad)


if __name__ == "__main__":
    main()
