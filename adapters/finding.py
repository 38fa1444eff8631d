"""What ``logitport doctor`` finds in an environment, in a command line or at a server."""

from dataclasses import dataclass, replace
from enum import StrEnum

from ..spec import Stage


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


def of_stage(stage: Stage, source: str) -> Finding:
    """Return the finding about an engine's stage, which a setting determines."""
    found = Finding("Stage", f"{stage} ({source})")
    advice = "Specs act here only if their payload has generation_only=false"
    return found if stage.generates else replace(found, status=Status.NOTE, advice=advice)
