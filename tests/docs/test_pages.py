"""What the pages of docs state about the code is what the code has."""

import ast
import json
import re
import shlex
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from logitport.adapters.cli.app import app
from logitport.adapters.content import parse_yaml
from logitport.adapters.detection import read_profiles
from logitport.adapters.detection.schemes import Scheme
from logitport.adapters.detection.server import make_app
from logitport.adapters.metrics import Decision
from logitport.spec import (
    AutomatonEdge,
    AutomatonState,
    ChainStep,
    Phase,
    PhaseEnd,
    Smoothing,
    Stage,
    Xtc,
    decode,
)
from logitport.spec.base import kind_of
from logitport.spec.kinds import WIRE_KINDS
from logitport.spec.kinds.banned_text import in_word
from logitport.spec.limits import LIMITS
from starlette.testclient import TestClient
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from tests.support.pages import blocks, text
from tests.support.paths import ROOT

GALLERY = "docs/kinds-by-example.md"
KINDS = {kind_of(kind): kind for kind in WIRE_KINDS}
NOT_OURS = {"PackageNotFoundError: vllm"}


def messages() -> list[str]:
    """The messages in the tables of docs/troubleshooting.md."""
    tables = text("docs/troubleshooting.md").split("| message |")[1:]
    return [row for table in tables for row in re.findall(r"^\| `(.*?)` \|", table, re.MULTILINE)]


@pytest.fixture(scope="module")
def strings() -> str:
    """All constant texts in the package, with the parts of an f-string one after the other."""
    found: list[str] = []
    for room in ("spec", "adapters", "hooks"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    found += ("".join(str(getattr(part, "value", "")) for part in node.values),)
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


@pytest.mark.parametrize("message", sorted({*messages()} - NOT_OURS))
def test_a_message_is_one_of_ours(message: str, strings: str):
    parts = [part for each in message.split("...") if (part := each.strip(" `.:,;"))]
    assert parts
    assert [part for part in parts if part not in strings] == []


def test_messages_are_found():
    assert len(messages()) > 20


def test_metrics():
    page = text("docs/metrics.md")
    rows = re.findall(r"^\|[^|]*\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted(get_args(Decision))
    assert ", ".join(f"`{stage.value}`" for stage in Stage) in page
    (dashboard,) = [json.loads(code) for code, _, _ in blocks(page, "json")]
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    shown = {name for query in queries for name in re.findall(r"logitport_\w+", query)}
    assert shown
    assert shown <= {*re.findall(r"^#+ .*?`(logitport_\w+)`", page, re.MULTILINE)}


def test_separators_of_the_wire():
    listed = re.search(r"\*Separators\* are (.*?)\. All other", text("docs/wire.md"))
    assert listed is not None
    ranges = re.findall(r"([0-9A-F]{4,5})(?: to ([0-9A-F]{4,5}))?", listed[1])
    found = {i for first, last in ranges for i in range(int(first, 16), int(last or first, 16) + 1)}
    assert found == {i for i in range(0x110000) if not in_word(chr(i))}


def test_fields_of_the_wire():
    """The table has each field of each kind, with a default where the field has one."""
    _, rest = text("docs/wire.md").split("### Fields")
    section, _ = rest.split("### Limits")
    found: dict[str, dict[str, bool]] = {}
    kinds: list[str] = []
    for row in re.findall(r"^\| .*\|$", section, re.MULTILINE)[2:]:
        kind, names, value, _ = (cell.strip() for cell in row.split("|")[1:-1])
        kinds = (
            re.findall(r"[a-z_]+", kind.partition(":")[0].replace("an ", "").replace("a ", ""))
            or kinds
        )
        for each in kinds:
            fields = found.setdefault(each, {})
            for name in re.findall(r"`([a-z_]+)`", names):
                fields[name] = " = " in value or each in ("sampling", "step")
    structs: dict[str, Any] = {**KINDS}
    structs |= {"phase": Phase, "end": PhaseEnd, "state": AutomatonState, "edge": AutomatonEdge}
    structs |= {"step": ChainStep, "smoothing": Smoothing, "xtc": Xtc}
    for kind, struct in structs.items():
        fields = {each.name: not each.required for each in msgspec.structs.fields(struct)}
        assert found[kind] == fields, kind


def test_limits_of_the_wire():
    _, rest = text("docs/wire.md").split("### Limits")
    section, _ = rest.split("### Contradictions")
    names = "payload_bytes", "parts", "token_ids", "phases", "text_bytes", "text_rules"
    for name in (*names, "history_rules", "prompt_rules"):
        assert re.search(rf"^\|.*\b{LIMITS[f'max_{name}'].value:,}\b.*\|", section, re.MULTILINE)


def drawings() -> list[tuple[str, str]]:
    """Each page with a drawing of an automaton, and the drawing's name."""
    pages = "docs/concepts.md", GALLERY
    names = {page: re.findall(r"\(images/kinds/(\w+)\.svg\)", text(page)) for page in pages}
    return [(page, name) for page, found in names.items() for name in found]


@pytest.fixture(scope="module")
def tokenizer_for(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The tokenizer of a kind's examples: SmolLM2's, or one with the tags of Qwen3."""
    tags = tmp_path_factory.mktemp("tags") / "tokenizer.json"
    Tokenizer(WordLevel({"<think>": 151667, "</think>": 151668})).save(str(tags))
    return lambda kind: tags if kind == "thinking_budget" else model / "tokenizer.json"


@pytest.mark.parametrize(("page", "name"), drawings())
def test_a_drawing_is_of_the_automaton_beside_it(
    page: str, name: str, tokenizer_for: Callable[[str], Path], tmp_path: Path
):
    """Its labels are those that ``explain --graph dot`` prints."""
    before, _ = text(page).split(f"(images/kinds/{name}.svg)")
    (tmp_path / "spec.json").write_text([code for code, _, _ in blocks(before, "json")][-1])
    arguments = ["explain", str(tmp_path / "spec.json"), "--graph", "dot", "--tokenizer"]
    printed = CliRunner().invoke(app, [*arguments, str(tokenizer_for(name))]).output
    labels = [json.loads(label) for label in re.findall(r'label=(".*")', printed)]
    drawn = re.findall(r"<text [^>]*>(.*)</text>", text(f"docs/images/kinds/{name}.svg"))
    assert sorted(map(unescape, drawn)) == sorted(labels)


def test_kinds_by_example(tokenizer_for: Callable[[str], Path], tmp_path: Path):
    """Each kind that we realize has an example, with texts where it takes them.

    Its meaning is that of ``explain``, and its texts are its token ids.
    """
    found: list[str] = []
    for section in text(GALLERY).split("\n## ")[1:]:
        *texts, (code, _, _) = blocks(section, "json")
        kind = section.splitlines()[0].strip("`")
        found.append(kind)
        assert json.loads(code)["kind"] == kind
        assert texts or not KINDS[kind].TEXTS or kind == "no_loop"  # of which none is required
        for each, _, _ in texts:
            tokenizer = PreTrainedTokenizerFast(
                tokenizer_file=str(tokenizer_for(kind)), eos_token="<|im_end|>"
            )
            assert decode(f"[{each}]", tokenizer) == decode(f"[{code}]")
        (tmp_path / "spec.json").write_text(code)
        explained = CliRunner().invoke(app, ["explain", str(tmp_path / "spec.json")])
        assert explained.exit_code == 0, explained.output
        assert section.splitlines()[2] == explained.stdout.splitlines()[0].split(f"{kind}: ", 1)[1]
    assert sorted(found) == sorted(KINDS.keys() - {"grammar", "sampling", "plugin"})


COMMANDS = text("docs/command-line.md")
FILES = re.compile(r"^`(\S+)`:\n\n```(?:json|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUNS = re.compile(r"^```console\n\$ (\S.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WITH_RUNS = {"docs/command-line.md": (4, 6), "docs/marks.md": (2, 1)}
"""Pages, and the numbers of their files and commands."""


@pytest.mark.parametrize(
    ("page", "command", "output"),
    [(page, *found) for page in WITH_RUNS for found in RUNS.findall(text(page))],
)
def test_console(
    page: str, command: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.findall(text(page)):
        Path(name).write_text(content, encoding="utf-8")
    variables, _, arguments = command.partition("logitport ")
    env = dict(each.split("=") for each in variables.split())
    assert CliRunner().invoke(app, shlex.split(arguments), env=env).output == output


def test_blocks_are_found():
    assert {
        page: (len(FILES.findall(text(page))), len(RUNS.findall(text(page)))) for page in WITH_RUNS
    } == WITH_RUNS


def test_every_command_has_a_row():
    names = [command.callback.__name__ for command in app.registered_commands if command.callback]
    assert [name for name in names if f"`{name}" not in COMMANDS] == []


MARKS = text("docs/marks.md")
PROFILES = text("docs/wire.md").split("## Profiles of marks")[1].split("## Test vectors")[0]


def test_an_answer_of_the_detector(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NEWS_KEY", "42")
    monkeypatch.setenv("CHAT_KEY", "1a2b")
    content, *_ = (each for each, _, _ in blocks(MARKS, "yaml"))
    client = TestClient(make_app(read_profiles(parse_yaml(content)[0])))
    sent = re.search(r"^curl \S+(/\S+) -d '(.*)'$", MARKS, re.MULTILINE)
    assert sent
    *_, (answer, _, _) = blocks(MARKS, "json")
    made = client.post(sent[1], content=sent[2]).text
    first, second = (json.loads(each, parse_float=rounded) for each in (made, answer))
    assert first == second


def rounded(number: str) -> str:
    return f"{float(number):.3g}"


def test_fields_of_profiles():
    """The tables have each scheme, and each field with its default."""
    ((content, _, _),) = blocks(PROFILES, "yaml")
    assert list(read_profiles(parse_yaml(content)[0])) == ["news"]
    schemes = {each.__struct_config__.tag: each for each in get_args(Scheme)}
    found: dict[str, dict[str, str]] = {name: {} for name in schemes}
    named: list[str] = []
    table, _ = PROFILES.split("| the key's text |")
    for row in re.findall(r"^\| .*\|$", table, re.MULTILINE)[2:]:
        of, field, value, *_ = (cell.strip() for cell in row.split("|")[1:-1])
        named = [*schemes] if of == "each" else re.findall(r"`(.*?)`", of) or named
        for name in named if field else ():
            found[name][field.strip("`")] = value.partition("= ")[2].strip("`").replace(",", "")
    for name, scheme in schemes.items():
        defaults = {
            each.name: "" if each.required else json.dumps(each.default).strip('"')
            for each in msgspec.structs.fields(scheme)
        }
        assert found[name] == defaults, name
        assert f"| `{name}` |" in PROFILES.split("| the key's text |")[1]
        assert f"| `{name}` |" in MARKS
