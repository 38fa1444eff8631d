"""Hugging Face transformers: specs for the prompts of a ``generate``, in one process.

::

    inputs = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    processor = LogitportProcessor(model, specs, **inputs)
    model.generate(**inputs, logits_processor=[processor])

What acts on a row is a function of the row's tokens, which ``generate`` passes at each step. So
beams may change places, and drafts of assisted generation may be taken back. Continuous batching
(``generate_batch``) has no place for a processor of ours (transformers 5.19).
"""

from typing import TYPE_CHECKING, Any

from .back_end import BACK_END

if TYPE_CHECKING:
    from .processor import LogitportProcessor

__all__ = ["BACK_END", "LogitportProcessor"]


def __getattr__(name: str) -> Any:
    if name == "LogitportProcessor":
        from .processor import LogitportProcessor

        return LogitportProcessor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
