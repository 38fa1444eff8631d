"""Every console block of docs/command-line.md prints what the page shows."""

import re
import shlex
from pathlib import Path

import pytest
from logitport.adapters.cli.app import app
from typer.testing import CliRunner

from tests.support.paths import ROOT

PAGE = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
FILES = re.findall(r"^`(\S+)`:\n\n```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
RUNS = re.findall(r"^```console\n\$ logitport (.*?)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("command", "output"), RUNS, ids=[command for command, _ in RUNS])
def test_console(command: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES:
        Path(name).write_text(text, encoding="utf-8")
    assert CliRunner().invoke(app, shlex.split(command)).output == output


def test_something_is_tested():
    assert len(FILES) == 3
    assert len(RUNS) == 5


def test_every_command_has_a_row():
    names = [command.callback.__name__ for command in app.registered_commands if command.callback]
    assert [name for name in names if f"`{name}" not in PAGE] == []
