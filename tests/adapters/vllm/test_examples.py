"""The short examples, as their users run them."""

import re
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.only("v1", reason="an example leaves the choice to vLLM"),
]


def printed(name: str) -> str:
    """What an example writes."""
    command = [sys.executable, "-m", f"examples.{name}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_attach(model: Path):
    said = printed("attach")
    assert "forced_sequence:' wherever you look.'" in said
    assert "choice:' Rome'" in said or "choice:' Oslo'" in said
    (banned,) = (line for line in said.splitlines() if line.startswith("banned_sequences:"))
    assert "Paris" not in banned


def test_probabilities(model: Path):
    """Both ways agree on answers of one token."""
    said = printed("probabilities")
    one, several = (
        literal_eval(re.findall(f"^{name}: (.*)$", said, re.MULTILINE)[0])
        for name in ("one token", "any length")
    )
    assert one[" Paris"] > one[" Rome"] > 0
    assert several[" Paris"] + several[" Rome"] + several[" New York"] < 1
    assert {text: several[text] for text in one} == pytest.approx(one, abs=2e-5)
