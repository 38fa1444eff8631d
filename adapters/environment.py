"""Environment variables with which an operator configures a worker, and installed packages."""

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

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


def receipts() -> Literal["none", "own", "all"]:
    """Return which answers have a receipt: those to requests with specs, or all.

    Raises:
        ValueError: for another value.
    """
    if os.environ.get(RECEIPT_VARIABLE, "").strip().lower() == "all":
        return "all"
    try:
        return "own" if is_on(RECEIPT_VARIABLE, default=True) else "none"
    except ValueError as error:
        raise ValueError(f"{error}, or all") from None


def is_on(name: str, default: bool = False) -> bool:
    """Whether a variable is on; ``default`` if it is not set.

    Raises:
        ValueError: if it is neither on nor off.
    """
    value = os.environ.get(name, "").strip().lower()
    if value in ("1", "true", "yes", "on"):
        return True
    if not value:
        return default
    if value in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"{name}={os.environ[name]!r}: expected 1 or 0")
