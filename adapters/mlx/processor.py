"""The processor that mlx-lm calls."""

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np

from ...spec import LogitsProcessorSpec, SpecError
from ..core import admitted_live
from ..core.own_code import log_failure
from .back_end import BACK_END
from .editor import MlxRealizer
from .sequences import Sequences


class LogitportProcessor:
    """Realizes specs on what one model generates, as one of mlx-lm's ``logits_processors``.

    It may serve several generations, one after the other or in a batch: it tells them apart by
    their tokens. A prompt that is an earlier history and one more token goes on with that one's
    generation; prompts of a batch of which one is another and one more token need a processor
    each.

    mlx-lm shows it the whole prompt, or if a part of it is in a cache, the rest; with a draft
    model (``speculative_generate_step``, mlx-lm 0.32) the last token alone.

    Args:
        model: as ``mlx_lm.load`` returns it.
        tokenizer: as ``mlx_lm.load`` returns it, or a Hugging Face tokenizer.
        specs: one or several.
        prompt_ids: the prompt of all generations, by default what mlx-lm shows. Kinds that look at
            the prompt need it with a draft model, with a cache, and for prompts of one token.

    Raises:
        SpecError: for a spec that cannot be realized, with its path; for a model that does not
            say how many tokens it has.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec],
        prompt_ids: Sequence[int] | None = None,
    ) -> None:
        self._vocab_size = _vocab_size(model)
        program = admitted_live(BACK_END, specs, self._vocab_size)
        make_realizer = partial(MlxRealizer, self._vocab_size)
        self._stop: int | None = tokenizer.eos_token_id
        self._sequences = Sequences(make_realizer, program, self._stop, prompt_ids)

    def __call__(self, tokens: Any, logits: Any) -> Any:
        """The edited logits, a new array.

        It does not raise, which would take other generations of the batch along. One that begins
        with another prompt than ``prompt_ids`` is ended, and so is one that begins with one token,
        which may be the last of any prompt, where a spec has to know it. (Where the tokenizer has
        no EOS, they go on without their specs.) The log says why.

        Args:
            tokens: ``mlx.core.array``, ``[tokens]``: what is known of the prompt, and the output.
            logits: ``mlx.core.array``, ``[1, vocabulary]`` float32, float16 or bfloat16.
        """
        if logits.shape[-1] < self._vocab_size:
            return logits  # of a draft model, with a vocabulary of its own
        history = np.array(tokens).astype(np.int64)
        edited = mx.array(logits)
        try:
            self._sequences.at(history).apply(edited)
        except Exception:  # it could not begin; its tokens are enough to try again
            try:
                self._sequences.at(history).apply(edited)
            except Exception as error:
                self._end(edited, error)
        return edited

    def _end(self, logits: Any, error: Exception) -> None:
        """Let only EOS be chosen; where there is none, the generation goes on without its specs."""
        if self._stop is not None:
            logits[:] = -mx.inf
            logits[:, self._stop] = 0
        log_failure("a generation", error, ends=self._stop is not None)


def _vocab_size(model: Any) -> int:
    args = getattr(model, "args", None)
    text = getattr(args, "text_config", None)
    if isinstance(text, dict):
        text = SimpleNamespace(**text)
    for config in (args, text):
        if (size := getattr(config, "vocab_size", None)) is not None:
            return size
    raise SpecError("Expected a model whose args have a vocab_size")
