"""The command ``logitport``: what it prints, and its exit status."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import logitport
import msgspec
import pytest
from logitport.adapters import extra_body
from logitport.adapters.reference.kinds import KINDS
from logitport.spec import WIRE_KINDS, Stage, encode, json_schema
from logitport.spec.base import kind_of

from tests.support.paths import ROOT
from tests.support.processes import python
from tests.support.transcripts import check, transcripts

from .command import printed, run

FORCED = {"kind": "forced_sequence", "token_ids": [7, 8], "eos_token_id": 2}
BANNED = {"kind": "banned_tokens", "token_ids": [8]}
TEXTS = [{"specs": [{"kind": "choice", "texts": ["a", "b"]}]}]
NESTED_TEXTS = {"kind": "phases", "phases": TEXTS, "stop_tokens": ["x"]}


@transcripts("commands")
def test_transcript(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    monkeypatch.chdir(tmp_path)
    check(file, printed, request)


@pytest.mark.parametrize("kind", WIRE_KINDS, ids=kind_of)
def test_explain_every_kind(kind: Any):
    spec = KINDS[kind].minimal
    result = run("explain", "-", "--json", text=encode(spec))
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["specs"]
    assert found.pop("meaning")
    assert found.pop("path") == "$.specs[0]"
    assert found == json.loads(msgspec.json.encode(spec))
    assert run("explain", "-", text=encode(spec)).stdout.startswith(f"$.specs[0] {spec.kind}: ")


@pytest.mark.parametrize(
    ("command", "text", "status", "line"),
    [
        ("explain - --tokenizer /no/such/folder", json.dumps(FORCED), 2, "No tokenizer at"),
        ("check - --tokenizer ../model", "[]", 2, "at '../model': there is no such folder\n"),
        ("explain - --graph svg", json.dumps(FORCED), 2, "'svg' is not one of"),
        ("serve vllm", "", 2, "Missing argument"),
        ("doctor http://localhost b", "", 2, "unexpected extra argument"),
        ("check -", "[" * 100_000, 1, "-:1:1: $: Nested too deeply"),
        ("check -", b"\xff", 2, "Standard input: expected UTF-8, got the byte 0xff at 0\n"),
    ],
)
def test_what_others_refuse(command: str, text: Any, status: int, line: str):
    result = run(*command.split(), text=text)
    assert result.exit_code == status
    assert line in result.output


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("carrier", ["field", "schema"])
@pytest.mark.parametrize(
    "how", [{}, {"generation_only": False, "continued": 3}], ids=["", "continued"]
)
@pytest.mark.parametrize("specs", [[FORCED], [BANNED, NESTED_TEXTS]], ids=["", "texts"])
def test_body(engine: str, stage: Stage, carrier: Any, how: Any, specs: list[Any]):
    content = {"version": 1, "specs": specs, **how}
    options = "--stage", stage, "--carrier", carrier
    result = run("body", engine, "-", *options, text=json.dumps(content))
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == extra_body(
        engine, specs, stage=stage, carrier=carrier, **how
    )


def test_body_of_one_spec_for_a_server_that_generates():
    result = run("body", "vllm", "-", text=json.dumps(FORCED))
    assert json.loads(result.stdout) == extra_body("vllm", FORCED)


def test_schema():
    assert json.loads(run("schema").stdout) == json.loads(json.dumps(json_schema()))


@pytest.mark.parametrize(("name", "entry"), [("capabilities", "no_loop"), ("limits", "max_specs")])
def test_tables(name: str, entry: str):
    assert entry in run(name).stdout
    assert entry in json.loads(run(name, "--json").stdout)


MAIN = "from logitport.__main__ import main; main()"
WITHOUT_TYPER = f"import sys; sys.modules |= dict.fromkeys(['typer', 'torch', 'numpy']); {MAIN}"


def test_limits_say_which_may_be_raised():
    first, *_ = run("limits").stdout.splitlines()
    assert first.endswith("lowers them; max_body_bytes may be raised.")


VERSION = f"logitport {logitport.__version__}\n"


def execute(*command: str | Path, **variables: str) -> tuple[int, str, str]:
    """Run Python in a process; return its status, output and errors."""
    done = python(*command, **variables)
    return done.returncode, done.stdout, done.stderr


def test_without_typer():
    missing = "typer is missing: pip install 'logitport[cli]'\n"
    assert execute("-c", WITHOUT_TYPER, "schema") == (2, "", missing)


@pytest.mark.parametrize("command", ["schema", "doctor --engine vllm"])
def test_a_pipe_whose_reader_has_gone(command: str):
    """As in ``logitport schema | head -1``."""
    reading, writing = os.pipe()
    os.close(reading)
    called = [sys.executable, "-c", MAIN, *command.split()]
    result = subprocess.run(called, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (result.returncode, result.stderr) == (1, b"")


@pytest.mark.parametrize(
    "command",
    ["check", "replay --reply /dev/null", "explain --graph dot", "detect --tokens --profiles"],
)
def test_without_numpy(command: str, tmp_path: Path):
    """What cannot be checked is no success."""
    file = tmp_path / "specs.json"
    file.write_text(json.dumps([{"kind": "forced_sequence", "token_ids": [8]}, BANNED]))
    code = f"import sys; sys.modules['numpy'] = None\n{MAIN}"
    missing = "numpy is missing: pip install 'logitport[cli]'\n"
    assert execute("-c", code, *command.split(), file) == (2, "", missing)


def test_the_extra_brings_what_the_commands_need():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert {*extras["core"]} <= {*extras["cli"]}


@pytest.mark.parametrize("command", ["explain", "doctor", None])
def test_short_help(command: str | None):
    arguments = [command] if command else []
    assert run(*arguments, "-h").stdout == run(*arguments, "--help").stdout != ""


def test_version():
    assert run("--version").stdout == VERSION
    assert execute("-m", "logitport", "--version") == (0, VERSION, "")


@pytest.mark.parametrize("command", ["limits", "--help"])
def test_wrong_limits_are_one_line(command: str):
    """Every command refuses to start, as a server does."""
    what = "LOGITPORT_LIMITS: there is no limit 'max_spec'; did you mean max_specs?\n"
    wrong = {"LOGITPORT_LIMITS": "max_spec=3"}
    assert execute("-m", "logitport", command, **wrong) == (2, "", what)
