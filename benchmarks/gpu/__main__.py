"""``python -m benchmarks.gpu``: run all parts and write the results, those of a cut run too."""

import json
import os
import platform
import signal
import subprocess
import sys
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from itertools import groupby
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from time import monotonic
from typing import Any

import torch

from ..tables import RESULTS
from . import carried, report
from .device import REHEARSAL, Row
from .part import PARTS


def main() -> int:
    """Check and measure logitport on a GPU; with GPU_REHEARSAL=1, try the command without one."""
    parser = ArgumentParser("benchmarks.gpu", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the results")
    parser.add_argument("--name", default="", help="their name; by default the card's")
    parser.add_argument("--commit", default="", help="the commit, where there is no repository")
    parser.add_argument("--only", default="", help="only these parts, with commas between")
    parser.add_argument("--seconds", type=int, default=470, help="the time for all parts")
    given = parser.parse_args()
    if not (REHEARSAL or torch.cuda.is_available()):
        print("benchmarks.gpu needs a GPU that torch sees; GPU_REHEARSAL=1 tries it without one")
        return 2
    start = monotonic()
    run = Run(given.out, given.name, given.commit, given.seconds)
    names = [part for part in PARTS if not given.only or part in given.only.split(",")]
    with TemporaryDirectory() as folder:
        run.folder = Path(folder)
        for alone, group in groupby(names, lambda part: PARTS[part].alone):
            with ThreadPoolExecutor(1 if alone or REHEARSAL else 4) as pool:
                list(pool.map(run.part, group))
    print((run.out / f"gpu-{run.name}.md").read_text())
    print(f"{monotonic() - start:.0f} s; wrote {run.out}/gpu-{run.name}.*")
    return int(any(part["status"] not in ("passed", "skipped") for part in run.parts))


class Run:
    """The parts of a run, their processes, and the results so far."""

    def __init__(self, out: Path, name: str, commit: str, seconds: int) -> None:
        self.out, self.folder = out, Path()
        self._end = monotonic() + seconds
        self._lock = Lock()
        self.parts: list[dict[str, Any]] = []
        self._rows: list[Row] = []
        card = "none" if REHEARSAL else torch.cuda.get_device_name()
        self.name = name or ("rehearsal" if REHEARSAL else "-".join(card.lower().split()))
        self.machine = {
            "card": card,
            "torch": torch.__version__,
            "triton": version("triton"),
            "Python": platform.python_version(),
            "commit": commit or _commit(),
        }
        self.environment = _environment()

    def part(self, name: str) -> None:
        """Run a part in its own process, and write all results so far."""
        part, start = PARTS[name], monotonic()
        file = self.folder / name.replace(" ", "-")
        environment = self.environment | {"TRITON_CACHE_DIR": str(self.folder / "triton")}
        if REHEARSAL and not part.compiles:
            environment["TRITON_INTERPRET"] = "1"
        command = [sys.executable, "-m", "benchmarks.gpu.part", name, str(file)]
        status, note = "timed out", ""
        limit = min(inf if REHEARSAL else part.seconds, self._end - start)
        log = self.folder / f"{file.name}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                command,
                cwd=carried.ROOT,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,  # to end its own processes, too
            )
            try:
                code = process.wait(max(limit, 0.1))
                status = {0: "passed", 3: "skipped"}.get(code, "failed")
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if status != "passed":
            note = log.read_text().strip()[-4000:]
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        took = round(monotonic() - start, 1)
        with self._lock:
            self.parts.append({"part": name, "status": status, "seconds": took, "note": note})
            self._rows += rows
            report.write(self.out, f"gpu-{self.name}", self.machine, self.parts, self._rows)
        last = note.splitlines()[-1] if note else ""
        print(f"{name}: {status} in {took} s, {len(rows)} rows. {last}", flush=True)


def _environment() -> dict[str, str]:
    """Make the environment of the parts, with the carried packages if they are needed."""
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "4"),
        "PYTHONUNBUFFERED": "1",
    }
    if find_spec("logitport") is None or find_spec("msgspec") is None:
        paths = [str(carried.unpack()), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        environment["VLLM_TARGET_DEVICE"] = "cpu"  # or vLLM imports its compiled parts for CUDA
    if REHEARSAL:
        environment["CUDA_VISIBLE_DEVICES"] = ""  # or vLLM misses a driver of Triton's
    return environment


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=9"]
    done = subprocess.run(command, cwd=carried.ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
