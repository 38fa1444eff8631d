"""What the pages of docs state about the code is what the code has."""

import ast
import json
import re
from pathlib import Path
from typing import get_args

import pytest
from logitport.adapters.cli.app import app
from logitport.adapters.metrics import Decision
from logitport.spec import Stage
from typer.testing import CliRunner

from tests.docs.test_readme import blocks, text
from tests.support.paths import ROOT

NOT_OURS = {"PackageNotFoundError: vllm"}


def messages() -> list[str]:
    """The messages in the tables of docs/troubleshooting.md."""
    tables = text("docs/troubleshooting.md").split("| message |")[1:]
    return [row for table in tables for row in re.findall(r"^\| `(.*?)` \|", table, re.MULTILINE)]


@pytest.fixture(scope="module")
def strings() -> str:
    """All constant texts in the package, with the parts of an f-string one after the other."""
    found: list[str] = []
    for room in ("spec", "adapters"):
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


@pytest.mark.parametrize("name", ["choice", "forced_end"])
def test_a_drawing_is_of_the_automaton_beside_it(name: str, model: Path, tmp_path: Path):
    """Its labels are those that ``explain --graph dot`` prints."""
    before, _ = text("docs/concepts.md").split(f"(images/{name}.svg)")
    (tmp_path / "spec.json").write_text([code for code, _, _ in blocks(before, "json")][-1])
    arguments = ["explain", str(tmp_path / "spec.json"), "--graph", "dot", "--tokenizer"]
    printed = CliRunner().invoke(app, [*arguments, str(model)]).output
    labels = [json.loads(label) for label in re.findall(r'label=(".*")', printed)]
    drawn = re.findall(r"<text [^>]*>(.*)</text>", text(f"docs/images/{name}.svg"))
    escaped = [re.sub(r'["<>]', lambda found: ESCAPES[found[0]], label) for label in labels]
    assert sorted(drawn) == sorted(escaped)


ESCAPES = {'"': "&quot;", "<": "&lt;", ">": "&gt;"}
