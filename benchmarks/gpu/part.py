"""One part in a process of its own: ``python -m benchmarks.gpu.part NAME FILE``.

Each row of its tables is appended to the file at once, so that nothing is lost if it ends early.
"""

import json
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import NamedTuple

from examples._support import v2_on_cpu

from .device import Row, SkippedError


class Part(NamedTuple):
    """A part, its function, and its limit in seconds.

    Attributes:
        function: module and name.
        seconds: after these, the part is ended.
        alone: whether nothing may run beside it, because it measures.
        compiles: whether it needs Triton's compiler in a rehearsal, too.
    """

    function: str
    seconds: int
    alone: bool = False
    compiles: bool = False


PARTS = {
    "kernels": Part("kernels.compile_all", 60, alone=True, compiles=True),
    "expected": Part("times.expect", 60, alone=True),
    "copy": Part("times.measure_copy", 60, alone=True),
    "first compilations": Part("checks.compile_early", 120, alone=True, compiles=True),
    "waits": Part("checks.never_wait", 90),
    "all kinds": Part("checks.check_every_kind", 90),
    "memory": Part("checks.check_memory", 150),
    "reference": Part("checks.compare", 150),
    "generate": Part("checks.generate", 90),
    "tests": Part("checks.run_tests", 180),
    "times": Part("times.measure_times", 150, alone=True),
    "neighbours": Part("times.measure_neighbours", 90, alone=True),
}
"""In the order in which they run. Neighbours that may share the device run at the same time."""


def main(name: str, file: str) -> int:
    """Run a part; return 3 if it was skipped, with the reason as the last line of its output."""
    if v2_on_cpu.is_installed():
        v2_on_cpu.install()
    module, function = PARTS[name].function.split(".")
    run: Callable[[], Iterator[Row]] = getattr(import_module(f"benchmarks.gpu.{module}"), function)
    try:
        with open(file, "a") as rows:
            for row in run():
                rows.write(json.dumps(row) + "\n")
                rows.flush()
    except SkippedError as why:
        print(why, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
