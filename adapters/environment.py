"""What an operator says to a worker by environment variables."""

import os

from ..spec import SpecError, Stage

STAGE_VARIABLE = "LOGITPORT_STAGE"
"""Says an engine's stage where its configuration does not: one of the values of ``Stage``."""


def stage_from_environment() -> Stage | None:
    """The stage that ``STAGE_VARIABLE`` says, if it says one.

    Raises:
        SpecError: if it names no stage.
    """
    name = os.environ.get(STAGE_VARIABLE)
    try:
        return Stage(name) if name else None
    except SpecError as error:
        raise SpecError(f"{STAGE_VARIABLE}: {error}") from None
