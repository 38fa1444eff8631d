"""What ``logitport doctor`` finds in an environment, in a command line or at a server."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How grave a finding is."""

    OK = "ok"
    """It is as it should be."""
    NOTE = "note"
    """It is no mistake in itself, but changes what happens to specs."""
    WARNING = "warning"
    """Some specs may be refused late, or dropped."""
    ERROR = "error"
    """Specs do not act, or the engine does not start."""


@dataclass(frozen=True)
class Finding:
    """One thing that was examined.

    Attributes:
        what: what was examined.
        found: what is there, or what happened.
        status: how grave it is.
        advice: what to do or to know, unless all is well.
    """

    what: str
    found: str
    status: Status = Status.OK
    advice: str = ""


def misspelt(command: Sequence[str], options: Collection[str]) -> Iterator[Finding]:
    """Yield a finding for each argument of a command line that is nearly one of the options."""
    from difflib import get_close_matches  # for `doctor` alone

    for argument in command:
        name = argument.partition("=")[0].replace("_", "-")
        if name not in options and (near := get_close_matches(name, options, 1, 0.85)):
            what = f"misspelt, or an abbreviation; did you mean {near[0]}?"
            yield Finding(name, what, Status.ERROR, f"Write {near[0]}")
