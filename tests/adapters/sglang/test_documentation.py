"""The Python of ``docs/sglang.md`` runs, and prints what it says it prints."""

from pathlib import Path

from examples._support.sglang_server import OPTIONS
from tests.support.pages import MODEL, Program, programs, run
from tests.support.paths import ROOT

(PROGRAM,) = programs((ROOT / "docs" / "sglang.md").read_text(encoding="utf-8"))


def test_python(model: Path, tmp_path: Path):
    arguments = "enable_custom_logit_processor=True"
    assert PROGRAM.source.count(arguments) == 1
    source = PROGRAM.source.replace(MODEL, str(model)).replace(arguments, f"**{OPTIONS!r}")
    failure = run([Program(PROGRAM.line, source)], tmp_path)
    assert not failure, failure
