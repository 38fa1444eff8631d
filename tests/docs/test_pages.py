"""What the pages of docs state about the code is what the code has."""

import ast
import json
import re
import shlex
from html import unescape
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from logitport.adapters.cli.app import app
from logitport.adapters.metrics import Decision
from logitport.spec import AutomatonEdge, AutomatonState, Phase, PhaseEnd, Stage
from logitport.spec.base import kind_of
from logitport.spec.kinds import WIRE_KINDS
from logitport.spec.kinds.banned_text import in_word
from logitport.spec.limits import LIMITS
from typer.testing import CliRunner

from tests.support.pages import blocks, text
from tests.support.paths import ROOT

GALLERY = "docs/kinds-by-example.md"
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
    assert all("logitport_requests_total" in query for query in queries)


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
                fields[name] = " = " in value or each == "sampling"
    structs: dict[str, Any] = {kind_of(kind): kind for kind in WIRE_KINDS}
    structs |= {"phase": Phase, "end": PhaseEnd, "state": AutomatonState, "edge": AutomatonEdge}
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


@pytest.mark.parametrize(("page", "name"), drawings())
def test_a_drawing_is_of_the_automaton_beside_it(page: str, name: str, model: Path, tmp_path: Path):
    """Its labels are those that ``explain --graph dot`` prints."""
    before, _ = text(page).split(f"(images/kinds/{name}.svg)")
    (tmp_path / "spec.json").write_text([code for code, _, _ in blocks(before, "json")][-1])
    arguments = ["explain", str(tmp_path / "spec.json"), "--graph", "dot", "--tokenizer"]
    printed = CliRunner().invoke(app, [*arguments, str(model)]).output
    labels = [json.loads(label) for label in re.findall(r'label=(".*")', printed)]
    drawn = re.findall(r"<text [^>]*>(.*)</text>", text(f"docs/images/kinds/{name}.svg"))
    assert sorted(map(unescape, drawn)) == sorted(labels)


def test_kinds_by_example(tmp_path: Path):
    """Each kind that we realize has an example; its meaning is that of ``explain``."""
    found: list[str] = []
    for section in text(GALLERY).split("\n## ")[1:]:
        ((code, _, _),) = blocks(section, "json")
        kind = section.splitlines()[0].strip("`")
        found.append(kind)
        assert json.loads(code)["kind"] == kind
        (tmp_path / "spec.json").write_text(code)
        explained = CliRunner().invoke(app, ["explain", str(tmp_path / "spec.json")])
        assert explained.exit_code == 0, explained.output
        assert section.splitlines()[2] == explained.stdout.splitlines()[0].split(f"{kind}: ", 1)[1]
    others = {"grammar", "sampling", "plugin"}
    assert sorted(found) == sorted({*map(kind_of, WIRE_KINDS)} - others)


COMMANDS = text("docs/command-line.md")
FILES = re.findall(r"^`(\S+)`:\n\n```json\n(.*?)^```$", COMMANDS, re.MULTILINE | re.DOTALL)
RUNS = re.findall(
    r"^```console\n\$ logitport (.*?)\n(.*?)^```$", COMMANDS, re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize(("command", "output"), RUNS, ids=[command for command, _ in RUNS])
def test_console(command: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES:
        Path(name).write_text(content, encoding="utf-8")
    assert CliRunner().invoke(app, shlex.split(command)).output == output


def test_blocks_are_found():
    assert len(FILES) == 3
    assert len(RUNS) == 5


def test_every_command_has_a_row():
    names = [command.callback.__name__ for command in app.registered_commands if command.callback]
    assert [name for name in names if f"`{name}" not in COMMANDS] == []
