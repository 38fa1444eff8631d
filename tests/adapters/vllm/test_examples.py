"""The short examples, as their users run them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = [
    pytest.mark.engine,
    pytest.mark.only("v1", reason="an example leaves the choice to vLLM"),
]


def test_attach(model: Path):
    command = [sys.executable, "-m", "examples.attach"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "forced_sequence:' wherever you look.'" in done.stdout
    assert "choice:' Rome'" in done.stdout or "choice:' Oslo'" in done.stdout
    (banned,) = (line for line in done.stdout.splitlines() if line.startswith("banned_sequences:"))
    assert "Paris" not in banned
