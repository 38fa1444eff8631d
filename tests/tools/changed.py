"""``make check``: the fast tests of what has changed since the upstream branch.

A changed module ``.../NAME.py`` is tested by ``test_NAME.py`` and by the files of tests that import
it. Tests of the package, the wire and the pages always run; engines never do.
"""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

ALWAYS = "tests/test_package.py", "tests/test_forge.py", "tests/spec", "tests/docs/test_pages.py"
ENGINES = "vllm", "sglang", "mlx", "llama_cpp", "transformers", "tensorrt_llm"
ELSEWHERE = (
    *(f"tests/adapters/{engine}/" for engine in ENGINES),
    *("tests/core/test_interpreter.py", "tests/adapters/test_counterparts.py"),
    *("tests/adapters/test_marked_texts.py", "tests/docs/test_readme.py", "tests/tools/"),
)
"""What starts an engine, or takes minutes."""


def changed() -> list[Path]:
    """Changed and new files: since the upstream branch, or else since the last commit."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout

    since = git("merge-base", "HEAD", "@{upstream}").strip() or "HEAD"
    files = git("diff", "--name-only", since) + git("ls-files", "--others", "--exclude-standard")
    return [Path(file) for file in files.split() if file.endswith(".py")]


def tests_of(files: list[Path]) -> list[str]:
    """The files of tests that changed, or that are about a changed module."""
    tests = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    found = set[str]()
    for file in files:
        module = ".".join(("logitport", *file.with_suffix("").parts)).removesuffix(".__init__")
        package, _, name = module.rpartition(".")
        imports = re.compile(
            rf"from {re.escape(module)}[. ]|from {re.escape(package)} import .*\b{name}\b"
        )
        found |= {
            path.relative_to(ROOT).as_posix()
            for path, source in tests.items()
            if path == ROOT / file or path.stem == f"test_{name}" or imports.search(source)
        }
    return sorted(name for name in found if not name.startswith((*ELSEWHERE, *ALWAYS)))


if __name__ == "__main__":
    chosen = tests_of(changed())
    print("Changed:", *(chosen or ["nothing that a fast test is about"]), flush=True)
    command = [sys.executable, "-m", "pytest", "-q", *ALWAYS, *chosen, *sys.argv[1:]]
    sys.exit(subprocess.run(command, cwd=ROOT).returncode)
