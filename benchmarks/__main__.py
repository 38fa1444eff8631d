"""``python -m benchmarks``: measure, compare with the targets, write the results."""

from enum import StrEnum
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape

from . import cases, targets
from .report import Results
from .tables import RESULTS, number

console = Console(soft_wrap=True)


class Device(StrEnum):
    """The device of the logits."""

    CPU = "cpu"
    CUDA = "cuda"


def main(
    quick: Annotated[bool, typer.Option(help="Small batches, to try the command.")] = False,
    only: Annotated[str, typer.Option(help="Only cases with this in their names.")] = "",
    engine: Annotated[bool | None, typer.Option(help="A real engine too; not when quick.")] = None,
    device: Annotated[Device, typer.Option(help="Where the logits are.")] = Device.CPU,
) -> None:
    """Measure logitport against its peers on the same tensors; write benchmarks/results/."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    seconds = 0.05 if quick else 4.0  # about, for each comparison
    results = Results(device.value, quick)
    for target in targets.targets(
        seconds=seconds, rows=16 if quick else 256, device=device.value, only=only
    ):
        results.targets.append(target)
        measured = f"{number(target.warm)} {target.unit}"
        if target.cold is not None:
            measured += f" (cold {number(target.cold)})"
        color = "red" if target.verdict == "not met" else "green"
        console.print(
            f"{escape(target.case)}: {escape(target.goal)}: {measured} "
            f"[{color}]{target.verdict}[/{color}]"
        )
    for case in cases.cases(quick=quick):
        if only in f"{case.group}: {case.name}":
            measured = case.run(seconds, device.value)
            results.cases.append((case, measured))
            times = ", ".join(f"{k} {number(v.warm.least * 1e6)} us" for k, v in measured.items())
            console.print(
                f"{case.name} {case.active}/{case.rows} x {case.vocab_size}: {escape(times)}"
            )
    if (not quick if engine is None else engine) and only in "engine" and device is Device.CPU:
        _run_engine(results, quick)
    for path in results.write():
        console.print(f"wrote {path.relative_to(RESULTS.parent.parent)}")


def _run_engine(results: Results, quick: bool) -> None:
    from examples._support.smollm2 import prepare

    from .engine import MIXED, OURS, Engine

    engine = Engine(str(prepare()))
    for requests in (4,) if quick else (16, 64):
        for way in engine.throughput(requests, length=8 if quick else 24, rounds=2 if quick else 6):
            results.engine.append(way)
            console.print(
                f"engine, {requests} requests, {way.name}: {way.ratio.median:.3f} of the "
                f"throughput without a processor; {100 * way.share:.2f} % of the time inside"
            )
            if way.name in (OURS, MIXED):
                results.targets.append(targets.engine_target(way))


if __name__ == "__main__":
    typer.run(main)
