"""Transcripts: commands and what they print, in files of ``tests/golden``.

A command is a line that begins with ``> ``. After ``<<EOF``, its input are the lines up to ``EOF``.
What it prints ends at a blank line. ``--write-golden`` writes the files anew.
"""

import re
from collections.abc import Callable, Iterable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import GOLDEN

Run = Callable[[str, str], Iterable[str]]
"""Runs a command with its input and makes the lines that it prints."""


def transcripts(folder: str) -> Any:
    """Parametrize a test with the files of a folder, as ``file``."""
    files = sorted((GOLDEN / folder).glob("*.txt"))
    return pytest.mark.parametrize("file", files, ids=[file.stem for file in files])


def check(file: Path, run: Run, request: pytest.FixtureRequest) -> None:
    """Run the commands of a file, and compare what they print."""
    transcript = file.read_text(encoding="utf-8")
    found = transcribe(transcript, run)
    if request.config.getoption("--write-golden"):
        file.write_text(found, encoding="utf-8")
    else:
        assert found == transcript


def transcribe(transcript: str, run: Run) -> str:
    """Write a transcript with what its commands print now."""
    made: list[str] = []
    lines = iter(transcript.splitlines())
    for line in lines:
        made.append(line)
        if line.startswith("> "):
            command, is_fed, _ = line.removeprefix("> ").partition(" <<EOF")
            given = [*takewhile("EOF".__ne__, lines)] if is_fed else []
            made += [*given, "EOF"] if is_fed else []
            made += (each or "<BLANKLINE>" for each in run(command, "\n".join(given)))
            _ = [*takewhile(bool, lines)]
            made.append("")
    return "\n".join(made).rstrip("\n") + "\n"


def inputs(name: str) -> list[tuple[str, str]]:
    """Return the input of each command of a file, and the first line that it prints."""
    text = (GOLDEN / name).read_text(encoding="utf-8")
    return re.findall(r"^> [^\n]+ <<EOF\n(.*?)\nEOF\n(.*?)\n", text, re.M | re.S)
