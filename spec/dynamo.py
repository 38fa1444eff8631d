"""Dynamo's own format for specs."""

from collections.abc import Sequence
from typing import Any

import msgspec

from .base import LogitsProcessorSpec, as_specs
from .errors import SpecError
from .kinds import ForcedTokenSequenceSpec


def dynamo_entries(
    specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec],
) -> list[dict[str, Any]]:
    """Convert specs to Dynamo's list of entries.

    ``serialize_logits_processor_entries`` (``dynamo/common/backend/engine.py``, Dynamo 1.6.1) has
    the same format. It has only forced sequences that end in EOS.

    Raises:
        SpecError: for a spec that Dynamo's format cannot express.
    """
    specs = as_specs(specs)
    entries: list[dict[str, Any]] = []
    for i, spec in enumerate(specs):
        if not isinstance(spec, ForcedTokenSequenceSpec):
            raise SpecError(f"Dynamo's entries have no kind for {type(spec).__name__}", i)
        if spec.eos_token_id is None:
            raise SpecError("Dynamo's entries always end in EOS", i, "eos_token_id")
        entries.append(msgspec.json.decode(msgspec.json.encode(spec)))
    return entries
