"""The problems of a configuration."""

from collections.abc import Sequence

from ..spec import ChainSpec, LogitsProcessorSpec, NativeSpec, WatermarkSpec
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


def refusal(spec: LogitsProcessorSpec, is_guard: bool) -> str | None:
    """Return why a server cannot have a spec, if it cannot."""
    if isinstance(spec, NativeSpec):
        return f"`{spec.kind}` travels in fields of the engine, which a server cannot fill in"
    if not is_guard:
        return None
    if isinstance(spec, WatermarkSpec):
        named = f"`require: {{watermark: {{profile: {spec.profile}}}}}`"
        return f"A mark is no guard: {named} marks every text"
    if isinstance(spec, ChainSpec):
        return "A chain is no guard: it says how tokens are drawn, and may be in `default`"
    forces = f"A guard bans, allows or limits; `{spec.kind}` forces tokens into a reply"
    return forces if spec.breaks_grammar else None
