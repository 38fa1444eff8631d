"""The short examples, as their users run them."""

import re
import subprocess
import sys
from ast import literal_eval
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


def test_probabilities(model: Path):
    """Both ways agree on answers of one token."""
    command = [sys.executable, "-m", "examples.probabilities"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    one, several = (
        literal_eval(re.findall(f"^{name}: (.*)$", done.stdout, re.MULTILINE)[0])
        for name in ("one token", "any length")
    )
    assert one[" Paris"] > one[" Rome"] > 0
    assert several[" Paris"] + several[" Rome"] + several[" New York"] < 1
    assert {text: several[text] for text in one} == pytest.approx(one, abs=2e-5)
