"""The device of a part, and what it yields."""

import os
from typing import Any

import torch

REHEARSAL = os.environ.get("GPU_REHEARSAL") == "1"
"""Whether Triton's interpreter stands in for a GPU, on small batches."""

DEVICE = torch.device("cpu" if REHEARSAL else "cuda")

Row = dict[str, Any]
"""A row of a table of the results: the table's name under ``table``, and its cells by column."""


class SkippedError(Exception):
    """A part cannot run here; the message says why."""


def need_gpu(why: str) -> None:
    """Skip the rest of a part in a rehearsal.

    Raises:
        SkippedError: with the reason.
    """
    if REHEARSAL:
        raise SkippedError(f"needs a GPU: {why}")
