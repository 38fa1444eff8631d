"""The code in the pages, and programs made of it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt

from tests.support.paths import ROOT
from tests.support.processes import python

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
THINKING_MODEL = "Qwen/Qwen3-8B"
GGUF = "SmolLM2-135M-Instruct.gguf"
ENGINES = {"server", "engine", "llama.cpp"}
NEEDS = {f"needs: {each}": each for each in (*ENGINES, "tokenizer")}
AFTER = {f"after: {each}": each for each in NEEDS.values()}
RUN = """\
import shlex, subprocess, sys
run = [sys.executable, "-m", *shlex.split({command!r})]
printed = subprocess.run(run, capture_output=True, text=True, check=False).stdout
assert printed == {expected!r}, f"printed {{printed!r}}"
"""
SERVER_URL = "http://127.0.0.1:8000/v1"
ENV = {
    # Besides what conftest.py sets.
    "NO_PROXY": "127.0.0.1",
    # To compile the model takes a minute, for a dozen tokens.
    "TORCH_COMPILE_DISABLE": "1",
}


@dataclass
class Program:
    """A block and those that continue it, each at its own line, so that tracebacks fit."""

    line: int
    page: str = "README.md"
    source: str = ""
    needs: set[str] = field(default_factory=set)

    def append(self, code: str, line: int) -> None:
        self.source += "\n" * (line - 1 - self.source.count("\n")) + code


def blocks(markdown: str, *languages: str) -> Iterator[tuple[str, int, list[str]]]:
    """Code, number of its first line and comments right above, of each block in a language."""
    comments: list[str] = []
    for token in MarkdownIt().parse(markdown):
        if token.type == "html_block":
            comments = re.findall(r"<!--\s*(.*?)\s*-->", token.content)
        elif token.type == "fence" and token.map:
            if token.info.strip() in languages:
                yield token.content, token.map[0] + 2, comments
            comments = []
        else:
            comments = []


def programs(markdown: str, page: str = "README.md") -> list[Program]:
    """A page's Python, as what can be run by itself."""
    found: list[Program] = []
    first: dict[str, Program] = {}
    for code, line, comments in blocks(markdown, "python", "console"):
        if code.startswith("$ ") and not comments:
            continue  # tests/docs/test_pages.py runs it
        if after := [first[AFTER[each]] for each in comments if each in AFTER]:
            found.append(program := replace(after[0], line=line, needs={*after[0].needs}))
        elif "continues" not in comments:
            found.append(program := Program(line, page))
        program.append("\n".join(checked_lines(code)) + "\n", line)
        for comment in comments:
            if comment in NEEDS:
                program.needs.add(NEEDS[comment])
                first[NEEDS[comment]] = replace(program)
            elif comment not in {"continues", *AFTER}:
                raise ValueError(f"line {line}: unknown comment {comment!r}")
    return found


def checked_lines(code: str) -> Iterator[str]:
    """A block as Python that fails unless it prints what it says; a command has a line."""
    if code.startswith("$ "):
        command, expected = code.removeprefix("$ ").split("\n", 1)
        yield RUN.format(command=command, expected=expected).replace("\n", "; ", 3).strip()
        return
    for line, following in pairwise((*code.splitlines(), "")):
        if line.lstrip().startswith("# -> "):
            yield ""
        else:
            text = following.strip()
            yield checked(f"{line}  {text}" if text.startswith("# -> ") else line)


def checked(line: str) -> str:
    """``print(x)  # -> text`` as an assertion."""
    match = re.fullmatch(r"(\s*)print\((.*)\)  # -> (.*)", line)
    if match is None:
        if "# ->" in line:
            raise ValueError(f"expected `print(...)  # -> text`, got {line!r}")
        return line
    indent, arguments, expected = match.groups()
    return (
        f"{indent}printed = ' '.join(map(str, [{arguments}])); "
        f"assert printed == {expected!r}, f'printed {{printed!r}}'"
    )


def run(programs: Sequence[Program], folder: Path) -> str:
    """Run each by itself in one process, and return what was wrong: nothing, or a traceback."""
    scripts = [folder / f"line_{program.line}.py" for program in programs]
    for script, program in zip(scripts, programs, strict=True):
        script.write_text(program.source, encoding="utf-8")
    each = "import runpy, sys; [runpy.run_path(path, run_name='__main__') for path in sys.argv[1:]]"
    result = python("-c", each, *scripts, cwd=folder, **ENV)
    return (result.stderr or f"exit status {result.returncode}") if result.returncode else ""


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")
