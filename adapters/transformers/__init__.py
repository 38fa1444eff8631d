"""Hugging Face transformers: specs for the prompts of a ``generate``, in one process.

::

    inputs = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    processor = LogitportProcessor(model, specs, **inputs)
    model.generate(**inputs, logits_processor=[processor])

What acts on a row is a function of the row's tokens, which ``generate`` passes at each step. So
beams may change places, and drafts of assisted generation may be taken back.

``generate`` calls it when its own processors have been called, so specs have the last word beside
``min_new_tokens``, ``bad_words_ids`` and the like. What is certain to contradict specs in the
model's ``generation_config`` is refused; give the processor the one that ``generate`` gets, if it
is another. Continuous batching
has no place for a processor of ours (transformers 5.19): ``generate_batch`` takes none, and
``generate`` with ``cache_implementation="paged"`` drops those that it is given without a word.
"""

from typing import TYPE_CHECKING

from .. import lazy
from .backend import BACKEND

if TYPE_CHECKING:
    from .processor import LogitportProcessor

__all__ = ["BACKEND", "LogitportProcessor"]

__getattr__ = lazy(__name__, LogitportProcessor=".processor")
