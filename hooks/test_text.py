"""The wiring check: set an environment variable, and any model says "Hello world!"."""

import logging
import os
from collections.abc import Callable, Sequence

from ..spec import ForcedTokenSequenceSpec, LogitsProcessorSpec, Tokenizer

logger = logging.getLogger(__name__)

VARIABLES = ("LOGITPORT_ENABLE_TEST_LOGITS_PROCESSOR", "DYN_ENABLE_TEST_LOGITS_PROCESSOR")
"""Ours, and the one that Dynamo's documentation knows; either turns the check on."""

TEXT = "Hello world!"


def default_specs(tokenizer: Callable[[], Tokenizer]) -> Sequence[LogitsProcessorSpec]:
    """The forced sequence ``TEXT`` when one of ``VARIABLES`` is on, otherwise nothing.

    Raises:
        ValueError: if a variable is set to something that is neither on nor off.
    """
    name = next((name for name in VARIABLES if _is_on(name)), None)
    if name is None:
        return ()
    logger.warning(
        "%s is on: every request without specs or a grammar of its own says %r.", name, TEXT
    )
    return (ForcedTokenSequenceSpec.from_text(TEXT, tokenizer()),)


def _is_on(name: str) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if value in ("1", "true", "yes", "on"):
        return True
    if value in ("", "0", "false", "no", "off"):
        return False
    raise ValueError(f"{name}={os.environ[name]!r}: expected 1 or 0")
