"""Environment variables with which an operator configures a worker, and installed packages."""

import os
from importlib.metadata import PackageNotFoundError, version

from ..spec import SpecError, Stage
from ..spec.limits import VARIABLE as LIMITS_VARIABLE

STAGE_VARIABLE = "LOGITPORT_STAGE"
"""The variable that sets an engine's stage, to one of the values of ``Stage``."""

ADMIT_OTHERS_VARIABLE = "LOGITPORT_SGLANG_ADMIT_OTHERS"
"""Set to 1, SGLang admits processors of others, and so code: it unpickles what clients send."""

TEST_VARIABLES = ("LOGITPORT_ENABLE_TEST_LOGITS_PROCESSOR", "DYN_ENABLE_TEST_LOGITS_PROCESSOR")
"""Our variable and the variable of Dynamo's documentation; either turns the wiring check on."""

CONFIGURATION_VARIABLE = "LOGITPORT_CONFIG"
"""The variable that names an operator's file, with default specs, presets and bounds."""

RECEIPT_VARIABLE = "LOGITPORT_RECEIPT"
"""Set to 0, answers have no receipts. Set to ``all``, those to requests without specs have one,
too, where the server's specs act."""

ROUTE_VARIABLE = "LOGITPORT_ROUTE"
"""Set to 0, the middleware does not answer ``GET /logitport``."""

VARIABLES = (
    LIMITS_VARIABLE,
    STAGE_VARIABLE,
    CONFIGURATION_VARIABLE,
    ADMIT_OTHERS_VARIABLE,
    RECEIPT_VARIABLE,
    ROUTE_VARIABLE,
    *TEST_VARIABLES,
)
"""All of them."""


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


def version_of(package: str) -> str | None:
    """Return the version of a distribution, or ``None`` if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def setting(name: str) -> str:
    """Return the value of a variable, in small letters; empty if it is not set."""
    return os.environ.get(name, "").strip().lower()


def is_on(name: str, default: bool = False, other: str | None = None) -> bool:
    """Whether a variable is on, or has another value that is one; ``default`` if it is not set.

    Raises:
        ValueError: if it is neither on nor off.
    """
    value = setting(name)
    if value in ("1", "true", "yes", "on", other):
        return True
    if not value:
        return default
    if value in ("0", "false", "no", "off"):
        return False
    expected = "1 or 0" if other is None else f"1, 0 or {other}"
    raise ValueError(f"{name}={os.environ[name]!r}: expected {expected}")
