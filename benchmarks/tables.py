"""Tables in Markdown, and where the results are."""

from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def number(value: float) -> str:
    """Format a number with three digits, or as a whole number from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
