"""Files that no command may wait for, read without end, or repeat to the terminal as they are."""

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from logitport import spec as s
from logitport.adapters import files
from logitport.adapters.cli import source
from logitport.adapters.reference.kinds import KINDS
from logitport.spec.limits import MAX_SPECS
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from .command import run

HOSTILE = "a\x1b[2J\nAll tokens obey the specs.\u202e\x9b"
FORCED = {"kind": "forced_sequence", "token_ids": [7, 8], "eos_token_id": 2}
SPEC, REPLY = json.dumps(FORCED), json.dumps({"output_ids": [7, 8, 2]})
GITHUB = "check", "--output", "github"
FILE = "FILE"
"""In a command: the file that is not what it should be."""
COMMANDS = [
    ("explain", FILE),
    ("explain", "spec.json", "--tokenizer", FILE),
    ("explain", "spec.json", "--tokenizer", "model"),
    ("check", FILE),
    ("check", "spec.json", FILE),
    ("check", "--config", FILE),
    ("check", "--config", "choice.yaml", "--tokenizer", FILE),
    ("body", "vllm", FILE),
    ("replay", FILE, "--reply", "reply.json"),
    ("replay", "spec.json", "--reply", FILE),
    ("replay", "spec.json", "--reply", "reply.json", "--tokenizer", FILE),
    ("detect", "--profiles", FILE),
    ("detect", "--profiles", "marks.json", "--tokens", FILE),
    ("detect", "--profiles", "marks.json", "--tokens", "reply.json", "--prompt", FILE),
    ("detect", "--profiles", "marks.json", "--tokenizer", FILE, "reply.json"),
    ("detect", "--profiles", "marks.json", "--tokenizer", "model", "reply.json"),
    ("detect", "--profiles", "key.json", "--tokens", "reply.json"),
    ("tags", FILE),
    ("tags", "model"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.json").write_text(SPEC)
    (tmp_path / "reply.json").write_text(REPLY)
    (tmp_path / "choice.yaml").write_text("default: [{kind: choice, from_text: {texts: [a]}}]")
    (tmp_path / "a.key").write_text("7")
    for key in ("a.key", "pipe"):
        marks = {"a": {"scheme": "vllm-gumbel", "key": {"file": key}}}
        (tmp_path / f"{'key' if key == 'pipe' else 'marks'}.json").write_text(json.dumps(marks))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "model").mkdir()
    os.mkfifo(tmp_path / "model" / "tokenizer.json")
    return tmp_path


@pytest.mark.timeout(300)
@pytest.mark.parametrize("file", ["pipe", "/dev/zero"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_regular_file(command: tuple[str, ...], file: str, folder: Path):
    result = run(*(file if each == FILE else each for each in command))
    assert result.exit_code == (1 if command[1:] == ("--config", FILE) else 2), result.output
    (line,) = result.output.splitlines()
    assert "expected a regular file" in line


@pytest.mark.parametrize("name", ["spec.json", "-"])
def test_size(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(source, "MAX_FILE_BYTES", 100)
    monkeypatch.setattr(files.read_file, "__defaults__", (100,))
    for spaces, status in ((0, 0), (100, 2)):
        text = SPEC + " " * spaces
        Path("spec.json").write_text(text)
        result = run("check", name, text=text)
        assert result.exit_code == status
        assert ("expected at most 100 " in result.output) is bool(status)


def test_more_specs_than_a_request_may_have(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Each two specs are compared, so their number is checked first."""
    compared: list[Any] = []
    monkeypatch.setattr(source, "check_native", compared.append)
    specs = [{"kind": "banned_tokens", "token_ids": [i]} for i in range(MAX_SPECS + 1)]
    for content, at in ((specs, "1:1: $: "), ({"version": 1, "specs": specs}, "1:25: $.specs: ")):
        result = run("check", "-", text=json.dumps(content))
        assert result.exit_code == 1
        what = f"Expected 1 to {MAX_SPECS} specs, got {MAX_SPECS + 1}; they are not checked"
        assert result.stdout == f"-:{at}{what}\n"
    assert not compared
    assert run("check", "-", text=json.dumps(specs[:-1])).exit_code == 0
    assert len(compared) == MAX_SPECS * (MAX_SPECS - 1) // 2 + 1


@pytest.mark.parametrize("command", ["explain", "check"])
def test_a_vocabulary_is_the_servers(command: str):
    after = {"specs": [{"kind": "grammar", "regex": "[0-9]+"}]}
    spec = {"kind": "phases", "phases": [{"ends": [{"n": 2}]}, after]}
    result = run(command, "-", text=json.dumps(spec))
    assert result.exit_code == 0, result.output
    assert "vocabulary" not in result.output


@pytest.mark.parametrize(
    "content",
    [
        {"kind": HOSTILE},
        {**FORCED, HOSTILE: 1},
        {HOSTILE: 1},
        {"version": 1, "specs": [FORCED], HOSTILE: 1},
        {"kind": "banned_text", "texts": [HOSTILE]},
        {"kind": "plugin", "name": "a", "params": {HOSTILE: HOSTILE}},
        {"kind": "plugin", "name": HOSTILE},
        {"kind": "grammar", "regex": HOSTILE},
        {"kind": "banned_scripts", "scripts": [HOSTILE[:20]]},
    ],
    ids=lambda content: next(iter(content.values())) if HOSTILE not in content else "field",
)
@pytest.mark.parametrize("command", ["explain", "check", "body vllm", "replay --reply reply.json"])
def test_names_cannot_steer_a_terminal(command: str, content: Any, folder: Path):
    Path("hostile.json").write_text(json.dumps(content))
    name, *options = command.split()
    result = run(name, *options, "hostile.json")
    assert "\nAll tokens obey" not in result.output
    assert "\n" in result.output or result.output == ""
    assert result.output.replace("\n", "").isprintable()


def test_tokens_cannot_steer_a_terminal(folder: Path):
    words = {HOSTILE: 7, "b": 8, "c": 2}
    Tokenizer(WordLevel(words, unk_token="b")).save("tokenizer.json")
    for command in (
        ("explain", "spec.json"),
        ("explain", "spec.json", "--graph", "mermaid"),
        ("replay", "spec.json", "--reply", "reply.json"),
    ):
        result = run(*command, "--tokenizer", "tokenizer.json")
        assert result.exit_code == 0, result.output
        assert result.output.replace("\n", "").isprintable()
        assert "\\x1b" in result.output or "\\u001b" in result.output


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
)
MINIMAL = [json.loads(s.encode(KINDS[kind].minimal)) for kind in s.WIRE_KINDS]


@st.composite
def contents(draw: st.DrawFn) -> str:
    """A text of specs in which a field is another, or characters are missing."""
    payload = draw(st.sampled_from(MINIMAL))
    spec = dict(payload["specs"][0])
    name = draw(st.sampled_from([*spec, "x", "$.specs[9]"]))
    spec[name] = draw(VALUES | st.just("$.specs[9]"))
    first = {**payload, "specs": [spec, draw(st.sampled_from(MINIMAL))["specs"][0]]}
    text = json.dumps(draw(st.sampled_from([first, first["specs"], spec])))
    return text[: draw(st.integers(len(text) - 5, len(text)))]


@given(contents())
@example("[" * 980 + "]" * 980)
@example('{"specs": ' + "[" * 980 + "]" * 980 + "}")
@example("9" * 5000)
def test_specs_of_any_shape(text: str):
    with TemporaryDirectory() as folder:
        file = Path(folder, "spec.json")
        file.write_text(text, encoding="utf-8")
        for command in (("explain",), ("check",), ("body", "vllm"), ("check", "--json"), GITHUB):
            result = run(*command, file)
            assert isinstance(result.exception, SystemExit | None), result.exception
            assert result.exit_code in (0, 1, 2)
            assert result.output.replace("\n", "").isprintable()
