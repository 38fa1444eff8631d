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
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.support.paths import ROOT

from .command import run

FORCED = {"kind": "forced_sequence", "token_ids": [7, 8], "eos_token_id": 2}
BANNED = {"kind": "banned_tokens", "token_ids": [8]}
BIAS = {"kind": "logit_bias", "bias": {"3": 2}}
TRIGGER = {"kind": "trigger", "trigger_token_ids": [-1], "token_ids": [], "times": 0}
CHOICE = {"kind": "choice", "choices": [[1, 2], [3]]}
AUTOMATON = {
    "kind": "automaton",
    "states": [{"ban": 0, "edges": [{"token_set": 0, "state": 0}]}],
    "token_sets": [[3]],
}
PHASES = {
    "kind": "phases",
    "phases": [{"specs": [CHOICE], "ends": [{"complete": True}]}, {"specs": []}],
}

MISSING = "Object missing required field"
TEXTS = [{"specs": [{"kind": "choice", "texts": ["a", "b"]}]}]
NESTED_TEXTS = {"kind": "phases", "phases": TEXTS, "stop_tokens": ["x"]}


def payload(*specs: Any) -> str:
    return json.dumps({"version": 1, "specs": specs})


def allowed(*token_ids: int) -> dict[str, Any]:
    return {"kind": "allowed_tokens", "token_ids": token_ids}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    words = {f"word{i}": i for i in range(16)}
    Tokenizer(WordLevel(words, unk_token="word0")).save(str(tmp_path / "tokenizer.json"))
    return tmp_path


THREE_TEXTS = """
- {kind: banned_text, texts: [a]}
- {kind: banned_text, texts: [b], ignore_case: true}
- {kind: banned_text, texts: [c], whole_words: true}
"""


class TestExplain:
    @pytest.mark.parametrize(
        ("content", "line"),
        [
            (json.dumps(FORCED), "$ forced_sequence: Output token `i` is `token_ids[i]`; then EOS"),
            (json.dumps([FORCED]), "$[0] forced_sequence: "),
            (payload(BANNED, CHOICE), "$.specs[1] choice: "),
            (payload(FORCED), '    token_ids: 7 "word7", 8 "word8"'),
            (payload(FORCED), '    eos_token_id: 2 "word2"'),
            (payload(CHOICE), '    choices: [1 "word1", 2 "word2"], [3 "word3"]'),
            (payload({"kind": "logit_bias", "bias": {"3": -2}}), '    bias: 3 "word3" -2'),
            (payload(PHASES), "  $.specs[0].phases[0].specs[0] choice: "),
            (payload(PHASES), "      $.specs[0].phases[0].ends[0].complete: true"),
            (payload({**BANNED, "token_ids": [9] * 20}), ", and 4 more"),
            (payload(AUTOMATON), "$.specs[0].states[0].ban: 0"),
            (payload(AUTOMATON), "$.specs[0].states[0].edges[0].state: 0"),
        ],
    )
    def test_words(self, content: str, line: str, tokenizer: Path):
        result = run("explain", "-", "--tokenizer", tokenizer, text=content)
        assert result.exit_code == 0, result.output
        assert line in result.stdout

    def test_texts_in_place_of_token_ids(self, tokenizer: Path):
        spec = {"kind": "forced_sequence", "text": "word7", "eos_token_id": None}
        result = run("explain", "-", "--tokenizer", tokenizer, text=payload(spec))
        assert '    token_ids: 7 "word7"' in result.stdout
        assert run("check", "-", "--tokenizer", tokenizer, text=payload(spec)).exit_code == 0
        result = run("explain", "-", text=payload(spec))
        assert "$.specs[0].text: A text needs the model's tokenizer" in result.stderr
        assert "use --tokenizer" in result.stderr

    @pytest.mark.parametrize(
        ("texts", "status", "found"),
        [
            (["yes", "no"], 0, ""),
            (["yes", "yes"], 1, "$.specs[0].texts[1]: The same as"),
            ([], 1, "$.specs[0].texts: Expected `array` of length >= 1"),
            (["yes", 7], 1, "$.specs[0].texts[1]: Expected `str`, got `int`"),
        ],
    )
    def test_texts_without_a_tokenizer(self, texts: Any, status: int, found: str):
        result = run("check", "-", text=payload({"kind": "choice", "texts": texts}))
        assert (result.exit_code, found in result.stdout) == (status, True)
        note = "-: Texts in place of token ids are not compared: use --tokenizer to name the model"
        assert (note in result.stderr) is (not status)
        assert bool(result.stdout) is bool(status)

    @pytest.mark.parametrize("kind", WIRE_KINDS, ids=kind_of)
    def test_every_kind(self, kind: Any):
        spec = KINDS[kind].minimal
        result = run("explain", "-", "--json", text=encode(spec))
        assert result.exit_code == 0, result.output
        (found,) = json.loads(result.stdout)["specs"]
        assert found.pop("meaning")
        assert found.pop("path") == "$.specs[0]"
        assert found == json.loads(msgspec.json.encode(spec))
        assert run("explain", "-", text=encode(spec)).stdout.startswith(f"$.specs[0] {spec.kind}: ")

    def test_problems_beside_the_words(self):
        result = run("explain", "-", text=payload(FORCED, BANNED))
        assert result.exit_code == 1
        assert "banned_tokens" in result.stdout
        assert "Conflicts with `$.specs[1]`" in result.stderr

    @pytest.mark.parametrize(
        ("graph", "spec", "lines"),
        [
            (
                "mermaid",
                FORCED,
                ["stateDiagram-v2", "  s1: 1, after 7#58; force 8", "  s0 --> s1: 7"],
            ),
            ("dot", FORCED, ['digraph "$ forced_sequence" {', '  s0 -> s1 [label="7"];', "}"]),
            ("dot", BANNED, ['  s0 [label="0: ban 8"];', "  bgcolor=transparent;"]),
            ("dot", BIAS, ['  s0 [label="0: add +2 to 3"];']),
            ("dot", {"kind": "no_repeat_ngram", "n": 2, "window": 9}, ["// $ no_repeat_ngram"]),
        ],
    )
    def test_graph(self, graph: str, spec: Any, lines: list[str]):
        result = run("explain", "-", "--graph", graph, text=json.dumps(spec))
        assert result.exit_code == 0, result.output
        for line in lines:
            assert line in result.stdout

    @pytest.mark.parametrize(
        "arguments",
        [
            ("explain", "/no/such/file"),
            ("explain", "-", "--tokenizer", "/no/such/folder"),
            ("explain", "-", "--graph", "svg"),
            ("explain", "-", "--graph", "dot"),
        ],
        ids=" ".join,
    )
    def test_wrong_usage(self, arguments: tuple[str, ...]):
        too_large = json.dumps({**FORCED, "token_ids": [7] * 200})
        assert run(*arguments, text=too_large).exit_code == 2


class TestCheck:
    @pytest.mark.parametrize(
        ("content", "problems"),
        [
            (payload(FORCED), []),
            (json.dumps(FORCED), []),
            ('{"version": 1,\n "specs": [}', ["2:12: $: Not JSON"]),
            ("[" * 100_000, ["1:1: $: Nested too deeply"]),
            ("7", ["1:1: $: Expected a payload"]),
            ("{}", ["1:1: $: Object missing required field `version`"]),
            ('{"version": 2,\n"specs": []}', ["1:13: $.version: Version 2 is newer"]),
            ('{"version": 1,\n"specs": []}', ["2:10: $.specs: Expected `array` of length >= 1"]),
            ('[\n{"kind": "nope"}]', ["2:10: $[0].kind: Invalid value 'nope'"]),
            ('[\n{"kind": "choice"}]', [f"2:1: $[0]: {MISSING} `choices` or `texts`"]),
            (json.dumps([NESTED_TEXTS]), []),
            (json.dumps([NESTED_TEXTS, FORCED, BANNED]), ["]: Conflicts with `$[2]`"]),
            ('[{"kind": "baned_tokens"}]', ["'baned_tokens' (did you mean banned_tokens?); "]),
            (
                '[{"kind": "forced_end",\n"aftr": 1,\n"token_ids": "x"}]',
                [
                    f"1:2: $[0]: {MISSING} `after`",
                    "2:9: $[0].aftr: There is no field 'aftr'; did you mean after?",
                    "3:14: $[0].token_ids: Expected `array`, got `str`",
                ],
            ),
            (
                json.dumps([FORCED, TRIGGER], indent=1),
                [
                    "13:4: $[1].trigger_token_ids[0]: Expected `int` >= 0",
                    "15:16: $[1].token_ids: Expected `array` of length >= 1",
                    "16:12: $[1].times: Expected `int` >= 1",
                ],
            ),
            (
                '[{"kind": "logit_bias",\n"bias": {"1": 0,\n"2": 1e9}}]',
                ["3:6: $[0].bias[2]: Expected `float` <= 10000.0"],
            ),
            (
                json.dumps([{"kind": "choice"}, FORCED, BANNED, {**BANNED, "token_ids": [7]}]),
                [
                    "$[0]: ",
                    "$[1].token_ids[0]: Conflicts with `$[3]`, which bans token 7. Remove one",
                    "$[1].token_ids[1]: Conflicts with `$[2]`, which bans token 8. Remove one",
                ],
            ),
            (
                json.dumps([allowed(1, 2), allowed(2, 3), allowed(3, 1)]),
                ["$[2]: Conflicts with `$[0]` and `$[1]`: no token is left"],
            ),
        ],
        ids=lambda value: "" if isinstance(value, list) else value[:40],
    )
    def test_problems(self, content: str, problems: list[str], tmp_path: Path):
        file = tmp_path / "spec.json"
        file.write_text(content)
        result = run("check", file)
        found = result.stdout.splitlines()
        assert result.exit_code == bool(problems), result.output
        assert len(found) == len(problems), found
        for line, problem in zip(found, problems, strict=True):
            assert line.startswith(f"{file}:")
            assert problem in line

    def test_several_files(self, tmp_path: Path):
        good, bad = tmp_path / "good.json", tmp_path / "bad.json"
        good.write_text(payload(FORCED))
        bad.write_text(payload(TRIGGER))
        result = run("check", "--json", good, bad)
        assert result.exit_code == 1
        assert [each["file"] for each in json.loads(result.stdout)] == [str(bad)] * 3

    @pytest.mark.parametrize(
        ("content", "problems"),
        [
            ("own: add", []),
            ("default: [{kind: choice, from_text: {choices: [a, b]}}]", []),
            ("{own: ad,\nforbid: [choices]}", ["line 1: $.own: ", "line 2: $.forbid[0]: "]),
            ("default: [{kind: choice, from_text: {choices: ['']}}]", ["makes no tokens of ''"]),
            ("own: [", ["line 1, column 7"]),
            (
                "presets: {far: [{kind: banned_tokens, token_ids: [5, 99999]}]}",
                ["The preset 'far' cannot be realized: Token id 99999 is beyond the vocabulary "],
            ),
            ("presets: {mild: [{kind: banned_text, texts: [bad]}]}", []),
            (f"guard: {THREE_TEXTS}", ["got 3 - at `the server's guard`"]),
            (f"default: {THREE_TEXTS}", ["got 3 - at `$.default`"]),
            (
                "own: add\ndefault: [{kind: banned_text, texts: [bad], ignore_case: true}, "
                "{kind: banned_text, texts: [bad], whole_words: true}]\n"
                "presets: {mild: [{kind: banned_text, texts: [bad]}]}",
                ["The preset 'mild' cannot be realized: Expected at most 2 rules about text"],
            ),
        ],
    )
    def test_configuration(self, content: str, problems: list[str], model: Path, tmp_path: Path):
        file = tmp_path / "bot.yaml"
        file.write_text(content)
        arguments = "check", "--config", file, "--tokenizer", model
        result = run(*arguments, "--json", LOGITPORT_CONFIG="/another.yaml")
        assert result.exit_code == bool(problems), result.output
        found = [each["message"] for each in json.loads(result.stdout)]
        assert len(found) == len(problems)
        for message, problem in zip(found, problems, strict=True):
            assert problem in message
            assert f"{file}: {message}\n" in run(*arguments).stdout

    def test_a_configuration_whose_texts_need_a_tokenizer(self, tmp_path: Path):
        file = tmp_path / "bot.yaml"
        file.write_text("default: [{kind: choice, from_text: {choices: [a, b]}}]")
        result = run("check", "--config", file)
        assert result.exit_code == 1
        assert "Use --tokenizer" in result.stdout
        assert not result.stderr
        file.write_text("own: add")
        result = run("check", "--config", file)
        assert result.exit_code == 0
        assert result.stderr.startswith("Token ids are not compared with a vocabulary")


class TestBody:
    @pytest.mark.parametrize("engine", ["vllm", "sglang"])
    @pytest.mark.parametrize("stage", Stage)
    @pytest.mark.parametrize("carrier", ["field", "schema"])
    @pytest.mark.parametrize(
        "how", [{}, {"generation_only": False, "continued": 3}], ids=["", "continued"]
    )
    @pytest.mark.parametrize("specs", [[FORCED], [BANNED, NESTED_TEXTS]], ids=["", "texts"])
    def test_body(self, engine: str, stage: Stage, carrier: Any, how: Any, specs: list[Any]):
        content = {"version": 1, "specs": specs, **how}
        options = "--stage", stage, "--carrier", carrier
        result = run("body", engine, "-", *options, text=json.dumps(content))
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout) == extra_body(
            engine, specs, stage=stage, carrier=carrier, **how
        )

    def test_one_spec_for_a_server_that_generates(self):
        result = run("body", "vllm", "-", text=json.dumps(FORCED))
        assert json.loads(result.stdout) == extra_body("vllm", FORCED)

    @pytest.mark.parametrize(
        ("engine", "content", "status", "message"),
        [
            ("vllm", payload(FORCED, BANNED), 1, "Conflicts with"),
            ("vllm", payload({"kind": "choice", "texts": ["a", "a"]}), 1, "specs[0].texts[1]"),
            ("vllm", payload({"kind": "choice", "texts": ["a"], "x": 1}), 1, "no field 'x'"),
            ("vllm", json.dumps({"version": 1, "specs": [FORCED], "stage": 1}), 1, "`stage`"),
            ("no_engine", payload(FORCED), 2, "Expected an installed backend"),
            ("vlm", payload(FORCED), 2, "got 'vlm'; did you mean vllm?"),
            ("dynamo", payload(FORCED), 2, "`annotation` of logitport.adapters.dynamo"),
            ("transformers", payload(FORCED), 2, "no server"),
        ],
    )
    def test_failures(self, engine: str, content: str, status: int, message: str):
        result = run("body", engine, "-", text=content)
        assert result.exit_code == status
        assert message in result.stderr
        assert not result.stdout


def test_schema():
    assert json.loads(run("schema").stdout) == json.loads(json.dumps(json_schema()))


@pytest.mark.parametrize(("name", "entry"), [("capabilities", "no_loop"), ("limits", "max_specs")])
def test_tables(name: str, entry: str):
    assert entry in run(name).stdout
    assert entry in json.loads(run(name, "--json").stdout)


WITHOUT_TYPER = """
import sys
sys.modules |= dict.fromkeys(["typer", "torch", "numpy"])
from logitport.__main__ import main
main()
"""
VERSION = f"logitport {logitport.__version__}\n"


def test_without_typer():
    command = [sys.executable, "-c", WITHOUT_TYPER, "schema"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "typer is missing: pip install 'logitport[cli]'\n"


@pytest.mark.parametrize("command", ["check", "replay", "explain --graph dot"])
def test_without_numpy(command: str, tmp_path: Path):
    """What cannot be checked is no success."""
    file = tmp_path / "specs.json"
    clash = {"kind": "banned_tokens", "token_ids": [7]}
    file.write_text(payload({"kind": "forced_sequence", "token_ids": [7]}, clash))
    code = "import sys; sys.modules['numpy'] = None\nfrom logitport.__main__ import main; main()"
    arguments = [*command.split(), str(file)]
    if command == "replay":
        arguments += ["--reply", str(file)]
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stderr == "numpy is missing: pip install 'logitport[cli]'\n"


def test_the_extra_brings_what_the_commands_need():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert {*extras["core"]} - {*extras["cli"]} == {"pytest>=8"}


@pytest.mark.parametrize("command", ["explain", "doctor", None])
def test_short_help(command: str | None):
    arguments = [command] if command else []
    assert run(*arguments, "-h").stdout == run(*arguments, "--help").stdout != ""


def test_version():
    assert run("--version").stdout == VERSION
    module = [sys.executable, "-m", "logitport", "--version"]
    assert subprocess.run(module, capture_output=True, text=True, check=True).stdout == VERSION


@pytest.mark.parametrize("command", ["limits", "--help"])
def test_wrong_limits_are_one_line(command: str):
    """Every command refuses to start, as a server does."""
    result = subprocess.run(
        [sys.executable, "-m", "logitport", command],
        env=os.environ | {"LOGITPORT_LIMITS": "max_spec=3"},
        capture_output=True,
        text=True,
        check=False,
    )
    what = "LOGITPORT_LIMITS: there is no limit 'max_spec'; did you mean max_specs?\n"
    assert (result.returncode, result.stdout, result.stderr) == (2, "", what)


@pytest.mark.parametrize("arguments", [["schema"], ["doctor", "--engine", "vllm"]])
def test_a_pipe_that_closes(arguments: list[str]):
    command = [sys.executable, "-m", "logitport", *arguments]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        (("check", "nofile.json"), None, "nofile.json: No such file or directory\n"),
        (("check", "--config", "no.yaml"), None, "no.yaml: No such file or directory\n"),
        (
            ("replay", f"{ROOT}/examples/guard.yaml", "--reply", f"{ROOT}/pyproject.toml"),
            None,
            "pyproject.toml: expected the answer of a server as JSON: Expecting value: line 1 "
            "column 2 (char 1)\n",
        ),
        (("check", "-"), b"\xff", "Standard input: expected UTF-8, got the byte 0xff at 0\n"),
    ],
)
def test_files_are_named(arguments: tuple[str, ...], text: bytes | None, message: str):
    result = run(*arguments, text=text)
    assert result.exit_code == 2
    assert result.stderr.endswith(message)
    assert "Errno" not in result.stderr
