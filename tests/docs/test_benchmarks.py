"""The benchmarks run to their end: nothing else would say that they follow what they measure.

``python -m benchmarks.gpu`` is made for a machine that CI never sees.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import report
from tests.support.processes import python

GPU = "benchmarks.gpu"
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def run(module: str, *arguments: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    return python("-m", module, *arguments, **environment)


@pytest.mark.slow
@pytest.mark.needs("dynamo.logits_processing", "sglang")  # peers, which `make bench` installs
def test_quick() -> None:
    pytest.importorskip("vllm")
    done = run("benchmarks", "--quick")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "admission of 8,000 tokens, allowed_tokens, cached" in done.stdout


@without_gpu
def test_says_in_one_line_what_it_needs() -> None:
    done = run(GPU, GPU_REHEARSAL="")
    assert done.returncode == 2
    assert done.stdout.count("\n") == 1
    assert "needs a GPU" in done.stdout
    assert not done.stderr


@pytest.mark.slow
@without_gpu
def test_rehearsal(tmp_path: Path) -> None:
    """All parts but those that only run what other tests run, too."""
    pytest.importorskip("triton")
    pytest.importorskip("vllm")  # whose kernels are peers
    parts = "kernels", "expected", "first compilations", "waits", "generate", "times", "neighbours"
    done = run(
        GPU, "--out", tmp_path, "--seconds", 1500, "--only", ",".join(parts), GPU_REHEARSAL="1"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "gpu-rehearsal.json").read_text())
    statuses = {part["part"]: part["status"] for part in results["parts"]}
    assert statuses == {**dict.fromkeys(parts, "passed"), "waits": "skipped"}
    assert all("needs a GPU" in part["note"] for part in results["parts"] if part["note"])
    contenders = {row["contender"] for row in results["rows"] if row["table"] == "Every kind"}
    assert contenders >= {"logitport", "plain torch, prepared", "vLLM's V2 kernel", "transformers"}
    assert not any("error" in row for row in results["rows"])
    assert (tmp_path / "gpu-rehearsal.md").read_text().count("\n## ") > 8
    assert (tmp_path / "gpu-rehearsal.png").exists()


@without_gpu
def test_a_part_that_is_cut_or_fails(tmp_path: Path) -> None:
    """What it had found is in the results, and the others go on."""
    pytest.importorskip("triton")
    done = run(GPU, "--out", tmp_path, "--seconds", 1, "--only", "kernels,copy", GPU_REHEARSAL="1")
    assert done.returncode == 1
    results = json.loads((tmp_path / "gpu-rehearsal.json").read_text())
    assert [part["status"] for part in results["parts"]] == ["timed out", "timed out"]


def test_report(tmp_path: Path) -> None:
    """The tables of a run on a GPU, and the line for the README."""
    pytest.importorskip("matplotlib")
    machine = {"card": "NVIDIA H100", "commit": "abc"}
    parts = [{"part": "times", "status": "failed", "seconds": 1.0, "note": "first\na | b"}]
    times = {"device us": 12.34, "host us": 150.2, "launches": 5, "us by the bytes": 3.0}
    rows = [
        {"table": "Batch", "case": report.HEADLINE, "contender": "logitport", **times},
        {"table": "Vocabulary", "case": report.HEADLINE, "contender": "logitport", **times},
        {"table": "Every kind", "case": "forced", "contender": "logitport", **times},
        {"table": "Every kind", "case": "forced", "contender": "vLLM", "error": "no"},
        *({"table": "Neighbours", "payload": f"p{n}", report.SHARE: float(n)} for n in range(20)),
    ]
    report.write(tmp_path, "gpu-x", machine, parts, rows)
    text = (tmp_path / "gpu-x.md").read_text()
    assert "| times | failed | 1 | a \\| b |" in text
    assert "| forced | vLLM |  |  |  |  | no |" in text
    assert "| p19 | 19 |" in text
    assert "| p7 | 7 |" not in text
    assert (
        f"Measured on an NVIDIA H100: a step of {report.HEADLINE} takes 12.3 us on the device "
        "and 150 us on the host (5 launches)." in text
    )
    assert json.loads((tmp_path / "gpu-x.json").read_text())["rows"] == rows
    assert (tmp_path / "gpu-x.png").exists()
