"""pytest's summary of what conformance suites have not covered, which is an entry point of pytest.

It imports nothing of logitport, so it costs other tests nothing.
"""

from collections import Counter
from typing import Any

NOT_COVERED = "Not covered by the conformance suite: "
"""How the reasons begin; the suite has the same."""


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print each reason once, with the number of cases."""
    reasons = Counter[str]()
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if (begins := reason.find(NOT_COVERED)) >= 0:
            reasons[reason[begins + len(NOT_COVERED) :]] += 1
    if reasons:
        terminalreporter.section("not covered by the conformance suite")
    for reason, cases in sorted(reasons.items()):
        terminalreporter.line(f"{reason}: {cases} case{'s' * (cases > 1)}")
