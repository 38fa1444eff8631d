"""The benchmark runs to its end: nothing else would say that it follows what it measures."""

import subprocess
import sys

import pytest

from tests.support.paths import ROOT


@pytest.mark.engine
def test_quick():
    pytest.importorskip("vllm")
    command = [sys.executable, "-m", "benchmarks", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "admission of 8,000 tokens, allowed_tokens, cached" in done.stdout
