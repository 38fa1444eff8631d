"""The problems of a configuration."""

from collections.abc import Sequence

from ..spec.errors import shown
from ..spec.limits import MAX_MESSAGE, MAX_PATH


class ConfigurationError(ValueError):
    """All problems of a configuration, a line each, with unprintable characters escaped.

    Args:
        source: the name of the file.
        problems: what is wrong, with the place.
    """

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.problems = tuple(shown(each, MAX_PATH + MAX_MESSAGE) for each in problems)
        count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n  ".join([f"{shown(source)} has {count}:", *self.problems]))


def by_line(problem: str) -> tuple[int, str]:
    """Return what problems are sorted by: the line, and the text."""
    line = problem.split(":", 1)[0].removeprefix("line ")
    return int(line) if line.isdecimal() else 0, problem
