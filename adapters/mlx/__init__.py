"""MLX through mlx-lm: specs for prompts of a ``generate`` or of a batch, in one process.

::

    processor = LogitportProcessor(model, tokenizer, specs)
    mlx_lm.generate(model, tokenizer, prompt, logits_processors=[processor])

Processors act in the order of the list: put ours last, and specs have the last word.
``BatchGenerator.insert`` takes such a list for each prompt; ``batch_generate`` takes one for all.
The logits stay where they are, for MLX to edit; the tokens are read at each step, and so each
step waits for the one before it.
"""

from typing import TYPE_CHECKING

from .. import lazy
from .backend import BACKEND

if TYPE_CHECKING:
    from .processor import LogitportProcessor

__all__ = ["BACKEND", "LogitportProcessor"]

__getattr__ = lazy(__name__, LogitportProcessor=".processor")
