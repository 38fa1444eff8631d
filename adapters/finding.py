"""What ``logitport doctor`` finds in an environment or at a server."""

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
