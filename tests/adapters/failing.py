"""Code of a request that fails."""

from collections.abc import Sequence
from typing import Any


def fails_later() -> Any:
    """Make a processor that fails for the third token."""

    def process(output_ids: Sequence[int], logits: Any) -> None:
        if len(output_ids) == 2:
            raise RuntimeError("broken")

    return process
