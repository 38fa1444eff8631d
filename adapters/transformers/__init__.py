"""Hugging Face transformers: specs for the prompts of a ``generate``, in one process.

::

    inputs = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    processor = LogitportProcessor(model, specs, **inputs)
    model.generate(**inputs, logits_processor=[processor])

The edits of a row are a function of the row's tokens, which ``generate`` passes at each step. So
beams may change places, and drafts of assisted generation may be taken back.

``generate`` calls the processor after its own processors, so specs have the last word. Specs that
certainly contradict the ``generation_config`` are refused.

Continuous batching has a processor of its own, ``ContinuousLogitportProcessor``, for specs that
each request brings. ``generate_batch`` has no argument for processors, and ``generate`` with
``cache_implementation="paged"`` silently drops them (transformers 5.19).
"""

from typing import TYPE_CHECKING

from .. import lazy
from .backend import BACKEND

if TYPE_CHECKING:
    from .continuous import ContinuousLogitportProcessor
    from .processor import LogitportProcessor

__all__ = ["BACKEND", "ContinuousLogitportProcessor", "LogitportProcessor"]

__getattr__ = lazy(
    __name__,
    LogitportProcessor=".processor",
    ContinuousLogitportProcessor=".continuous",
)
