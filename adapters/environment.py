"""Environment variables with which an operator configures a worker."""

import os

from ..spec import SpecError, Stage

STAGE_VARIABLE = "LOGITPORT_STAGE"
"""The variable that sets an engine's stage, to one of the values of ``Stage``."""


def stage_from_environment() -> Stage | None:
    """Return the stage in ``STAGE_VARIABLE``, or ``None`` if the variable is not set.

    Raises:
        SpecError: if the value is not a stage.
    """
    name = os.environ.get(STAGE_VARIABLE)
    try:
        return Stage(name) if name else None
    except SpecError as error:
        raise SpecError(f"{STAGE_VARIABLE}: {error}") from None
