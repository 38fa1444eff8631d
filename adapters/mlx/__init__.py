"""MLX through mlx-lm: specs for prompts of a ``generate`` or of a batch, in one process.

::

    processor = LogitportProcessor(model, tokenizer, specs)
    mlx_lm.generate(model, tokenizer, prompt, logits_processors=[processor])

Processors act in the order of the list; the last processor has the last word.
``BatchGenerator.insert`` takes such a list for each prompt; ``batch_generate`` takes one for all.
MLX edits the logits where they are. The tokens are read at each step, so steps do not overlap.
"""

from typing import TYPE_CHECKING

from .. import lazy
from .backend import BACKEND

if TYPE_CHECKING:
    from .processor import LogitportProcessor

__all__ = ["BACKEND", "LogitportProcessor"]

__getattr__ = lazy(__name__, LogitportProcessor=".processor")
