"""Every Python block of ``PAGES`` runs, and prints what it says.

``print(x)  # -> text`` must print exactly ``text``, which may be on a line of its own, after
``# -> ``. HTML comments right above a block say more:
``<!-- continues -->`` that it goes on where the block before ended, ``<!-- needs: server -->`` that
it talks to a running vLLM server, ``<!-- after: server -->`` that it goes on after the last such
block alone, ``<!-- needs: engine -->`` that it starts an engine itself,
``<!-- needs: llama.cpp -->`` that it loads the model's GGUF file with llama.cpp,
``<!-- needs: tokenizer -->`` that it loads the tokenizer of a model that thinks.
"""

import re
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from logitport.adapters import admit_live
from logitport.adapters.transformers.backend import BACKEND
from logitport.spec import StandIn, decode
from logitport.spec.base import kind_of, processor_specs
from logitport.spec.kinds import WIRE_KINDS

from examples._support.smollm2 import gguf
from examples._support.vllm_server import VllmServer
from tests.support.families import tokenizer_of
from tests.support.pages import (
    ENGINES,
    GGUF,
    MODEL,
    SERVER_URL,
    THINKING_MODEL,
    Program,
    blocks,
    programs,
    run,
    text,
)
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def server_url(vllm_server: VllmServer) -> str:
    return vllm_server.base_url


@pytest.fixture(scope="module")
def thinking_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tokenizer of a model that thinks."""
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer_of("think"), eos_token="<eos>")
    tokenizer.save_pretrained(folder)
    return folder


DOCS = (
    *("coming-from", "concepts", "engines", "index", "loops", "marks", "plugins", "recipes"),
    "surviving",
)
PAGES = "README.md", *(f"docs/{page}.md" for page in DOCS)
MARKS = {"engine": pytest.mark.slow, "llama.cpp": pytest.mark.needs("llama_cpp")}
PROGRAMS = sorted(
    (program for page in PAGES for program in programs(text(page), page)),
    key=lambda program: (program.page, sorted(program.needs)),
)


@pytest.mark.parametrize(
    "alike",
    [
        pytest.param(
            [*alike],
            id=" ".join([page, *needs]),
            marks=[mark for need, mark in MARKS.items() if need in needs],
        )
        for (page, needs), alike in groupby(
            PROGRAMS, lambda program: (program.page, sorted(program.needs))
        )
    ],
)
def test_python(alike: list[Program], request: pytest.FixtureRequest, tmp_path: Path):
    """Programs of a page that need the same share a process, which imports an engine once."""

    def completed(program: Program) -> Program:
        source = program.source
        if "tokenizer" in program.needs:
            source = source.replace(THINKING_MODEL, str(request.getfixturevalue("thinking_model")))
        if program.needs & ENGINES:
            source = source.replace(MODEL, str(request.getfixturevalue("model")))
        if "server" in program.needs:
            source = source.replace(SERVER_URL, request.getfixturevalue("server_url"))
        if "llama.cpp" in program.needs:
            assert GGUF in source
            source = source.replace(GGUF, str(gguf()))
        return replace(program, source=source)

    failure = run([*map(completed, alike)], tmp_path)
    assert not failure, failure


@pytest.mark.parametrize("page", ["docs/coming-from.md", "docs/recipes.md"])
def test_specs_are_admitted(page: str, thinking_model: Path):
    """Each block leaves specs that an engine admits for the tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(thinking_model)
    backend = BACKEND.for_tokenizer(tokenizer, len(tokenizer))
    found: dict[str, Any] = {}
    asks = False
    for code, _, comments in blocks(text(page), "python"):
        of = {each.rpartition(": ")[2] for each in comments} - {"continues"}
        asks = bool(of & ENGINES) if of else asks and "continues" in comments
        if asks:
            continue
        exec(code.replace(THINKING_MODEL, str(thinking_model)), found)
        if specs := processor_specs(found.get("specs", ())):
            admit_live(backend, specs, len(tokenizer))


@pytest.mark.parametrize("page", ["docs/concepts.md", "docs/wire.md"])
def test_json(page: str):
    payloads = [code for code, _, _ in blocks(text(page), "json")]
    assert payloads
    for payload in payloads:
        decode(payload, StandIn())


def test_make_targets():
    makefile = ROOT / "Makefile"
    targets = re.findall(r"^([\w-]+):", makefile.read_text(encoding="utf-8"), re.MULTILINE)
    named = set(re.findall(r"`make ([\w-]+)", text("README.md")))
    assert named >= {"demo", "test"}
    assert named <= set(targets)


@pytest.mark.parametrize(
    ("page", "heading", "after"),
    [
        ("README.md", "## The kinds", "`grammar` and `sampling` are *native*"),
        ("docs/wire.md", "## Kinds", "**`choice`.**"),
    ],
)
def test_the_table_of_kinds_has_them_all(page: str, heading: str, after: str):
    _, kinds = text(page).split(heading)
    table, *_ = kinds.split(after)
    cells = "".join(
        row.split("|")[1] for row in table.splitlines() if row.startswith(("| `", "| [`"))
    )
    assert [each for each in map(kind_of, WIRE_KINDS) if f"`{each}`" not in cells] == []


def test_speed():
    """The figures are those of the benchmark, and each share is beside what it is of."""
    results = text("benchmarks/results/cpu.md")
    (commit,) = re.findall("measured this at commit (\\w+)", text("README.md"))
    assert f"commit {commit};" in results
    row = r"^\| (\d+) \| ([\d,]+) tokens .* \| (\S+ \(.*\)) \|$"
    rows = re.findall(row, text("README.md"), re.M)
    assert [requests for requests, _, _ in rows] == ["16", "64"]
    for requests, tokens, share in rows:
        assert f"| {requests} | no processor | {tokens} | 1.000" in results
        assert re.search(
            rf"^\| {requests} .* all kinds \| [\d,]+ \| {re.escape(share)} ", results, re.M
        )


def test_capabilities():
    from logitport.adapters.cli import capabilities

    assert capabilities() in text("docs/kinds.md")


SAMPLE = """\
# Sample

```python
x = 1 + 1
print("a", x)  # -> a 2
print("b")
# -> b
```

Text between.

<!-- continues -->
```python
for y in (x, x):
    print(y)  # -> 2
```

<!-- needs: server -->

```python
client = "http://127.0.0.1:8000/v1"
```

```sh
make demo
```

<!-- a remark about the paragraph that follows -->
A paragraph.

```python
import sys
assert "x" not in globals()
```

<!-- after: server -->
```python
assert client
```

<!-- continues -->
```console
$ logitport serve --print sglang MODEL
sglang serve --model-path MODEL --enable-custom-logit-processor
```
"""


class TestTheTest:
    def test_green(self, tmp_path: Path):
        first, second, third, fourth = programs(SAMPLE)
        assert (first.line, first.needs) == (4, set())
        assert (second.line, second.needs) == (21, {"server"})
        assert (third.line, third.needs) == (32, set())
        assert (fourth.line, fourth.needs) == (38, {"server"})
        assert [run([each], tmp_path) for each in (first, second, third, fourth)] == [""] * 4

    @pytest.mark.parametrize(
        ("true", "false", "found"),
        [
            ("# -> a 2", "# -> a2", "line 5, in <module>"),
            ("# -> b", "# -> c", "line 6, in <module>"),
            ("    print(y)  # -> 2", "    print(y)  # -> 1", "line 15, in <module>"),
            ("for y in (x, x):", "for y in (x, exit(1)):", "exit status 1"),
            ("<!-- continues -->\n```python", "```python", "line 13, in <module>"),
            ("<!-- after: server -->", "<!-- continues -->", "line 38, in <module>"),
            ("--model-path MODEL", "--model-path M", "line 43, in <module>"),
        ],
    )
    def test_red(self, true: str, false: str, found: str, tmp_path: Path):
        failures = [run([p], tmp_path) for p in programs(SAMPLE.replace(true, false))]
        assert sum(map(bool, failures)) == 1
        assert found in "".join(failures)

    @pytest.mark.parametrize(
        ("true", "false"),
        [
            ("needs: server", "needs: sever"),
            ("print(y)  # -> 2", "y  # -> 2"),
            ("print(y)  # -> 2", "print(y) # -> 2"),
        ],
    )
    def test_mistakes_in_the_markup(self, true: str, false: str):
        with pytest.raises(ValueError, match=r"unknown comment|expected `print"):
            programs(SAMPLE.replace(true, false))
