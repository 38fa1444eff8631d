"""Which versions of vLLM realize specs: a part of the engine tests under each, as a table.

``make compat`` makes the environments, each named after its version, and hands them to this script.
What the tests say goes to stderr; the table, in Markdown, to stdout. The exit status is 1 if a test
failed.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
TESTS = ["loading", "admission", "http", "batching", "catalogue", "scheduling", "stages"]
"""What of ``tests/engine`` is run."""

LEFT_OUT = {
    "200": "as long as all others together",
    "random": "what is drawn from a seed differs between versions, and a check needs luck",
    "drafts": "from 0.32 on",
    "agree": "on drafts",
}
"""Of those tests, by what is in their names, and why."""

RUNNERS = {"v1": "V1 model runner", "v2": "V2 model runner"}
NO_PROCESSORS = "takes no custom processors"
"""Why the tests are skipped where it is so, and what the table says then."""


def main(environments: list[Path]) -> int:
    results = {
        environment.name: [result(environment, runner) for runner in RUNNERS]
        for environment in environments
    }
    rows = [["vLLM", *RUNNERS.values()], ["---"] * (1 + len(RUNNERS))]
    rows += [[version, *cells] for version, cells in results.items()]
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))
    good = {"yes", NO_PROCESSORS}
    return not all(cell in good for cells in results.values() for cell in cells)


def result(environment: Path, runner: str) -> str:
    """What the tests say of one model runner, in a word, or the names of those that failed."""
    print(f"vLLM {environment.name}, {RUNNERS[runner]}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [environment / "bin" / "python", "-m", "pytest", "-q", f"--runner={runner}"]
        command += [f"--junitxml={report}", "-k", f"not ({' or '.join(LEFT_OUT)})"]
        command += [f"tests/engine/test_{name}.py" for name in TESTS]
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
