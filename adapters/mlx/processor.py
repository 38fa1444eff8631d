"""The processor that mlx-lm calls."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from cachetools import LRUCache

from ...spec import Given, SamplingSpec, SpecError
from .. import admit_live
from ..core import Ints, Program, Realizer, log_failure
from ..detection import Profile
from . import editor  # noqa: F401 - `editor_for` finds it
from .backend import BACKEND

MAX_HISTORIES = 1 << 14
"""The number of newest histories that are kept, for all concurrent generations together."""

MAX_RUNNING = 32
"""The number of generations that are kept ready. Others restart from their tokens."""


class LogitportProcessor:
    """Realizes specs on what one model generates, as one of mlx-lm's ``logits_processors``.

    It may serve several generations, in sequence or in a batch, with drafts that are taken back.
    The tokens of an earlier call plus one token continue its generation; any other tokens are the
    prompt of a new generation. If one prompt of a batch is another prompt plus one token, the two
    need separate processors.

    mlx-lm passes the whole prompt, or the rest of it if a part is in a cache. With a draft model
    (``speculative_generate_step``, mlx-lm 0.32) it passes only the last token.

    Args:
        model: as ``mlx_lm.load`` returns it.
        tokenizer: as ``mlx_lm.load`` returns it, or a Hugging Face tokenizer.
        specs: one or several, also as JSON (see ``extra_body``).
        prompt_ids: the prompt of all generations; by default, the tokens that mlx-lm passes. Kinds
            that read the prompt need it with a draft model or a cache, and for one-token prompts.
            So does ``continued``.
        continued: the number of the prompt's last tokens that count as output; see ``Payload``.
        profiles: the profiles of marks, by name; see ``logitport.adapters.detection``.
        sampling: how the text is drawn, with a temperature, which a mark and a ``chain`` need. The
            engine's own sampling comes after: it finds a forced token, or what a chain leaves.

    Raises:
        SpecError: for a spec that cannot be realized, with its path; for a model without a
            vocabulary size.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        specs: Given,
        prompt_ids: Sequence[int] | None = None,
        continued: int = 0,
        profiles: Mapping[str, Profile] | None = None,
        sampling: SamplingSpec | None = None,
    ) -> None:
        self._vocab_size = _vocab_size(model)
        # A set of mlx-lm's tokenizer, a number of transformers'.
        ends: Any = getattr(tokenizer, "eos_token_ids", None) or ()
        ends = (ends,) if isinstance(ends, int) else tuple(ends)
        backend = BACKEND.for_tokenizer(tokenizer, self._vocab_size, end_tokens=lambda: ends)
        size, marking = self._vocab_size, (profiles, sampling)
        program = admit_live(backend, specs, size, continued, *marking)
        self._stop: int | None = tokenizer.eos_token_id
        self._prompt_ids = None if prompt_ids is None else list(prompt_ids)
        # No method of this object: the realizers would keep it, and its arrays, alive.
        self._program_of = partial(_program_of, program, self._prompt_ids)
        self._prompt_lengths: LRUCache[int, int] = LRUCache(MAX_HISTORIES)
        self._running: LRUCache[int, Realizer] = LRUCache(MAX_RUNNING)

    def __call__(self, tokens: Any, logits: Any) -> Any:
        """Return the edited logits, a new array.

        This does not raise, because an error would end the whole batch. A generation is ended, and
        the reason logged, if it begins with another prompt than ``prompt_ids``, or with one token,
        which may be the last of any prompt, and a spec reads the prompt. Without an EOS, it goes on
        without its specs.

        Args:
            tokens: ``mlx.core.array``, ``[tokens]``: the known part of the prompt, and the output.
            logits: ``mlx.core.array``, ``[1, vocabulary]`` float32, float16 or bfloat16.
        """
        if logits.shape[-1] < self._vocab_size:
            return logits  # of a draft model, which has a vocabulary of its own
        history = np.array(tokens).astype(np.int64)
        edited = mx.array(logits)
        try:
            self._at(history).apply(edited)
        except Exception:  # the generation's tokens are enough to try again
            try:
                self._at(history).apply(edited)
            except Exception as error:
                self._end(edited, error)
        return edited

    def _at(self, token_ids: Ints) -> Realizer:
        """Return the realizer whose row 0 is the generation with these tokens."""
        before, now = hash(token_ids[:-1].tobytes()), hash(token_ids.tobytes())
        length = self._prompt_lengths.get(before, len(token_ids))
        self._prompt_lengths[now] = length
        realizer = self._running.pop(before, None)
        if realizer is None:
            realizer = Realizer(self._vocab_size, self._program_of)
            shown, output_ids = token_ids[:length].tolist(), token_ids[length:].tolist()
            prompt_ids = shown if self._prompt_ids is None else self._prompt_ids
            realizer.enter(0, shown, prompt_ids, output_ids, self._stop)
        else:
            realizer.append(token_ids[-1:].tolist())
        self._running[now] = realizer
        return realizer

    def _end(self, logits: Any, error: Exception) -> None:
        """Allow only EOS. If there is no EOS, the generation goes on without its specs."""
        if self._stop is not None:
            logits[:] = -mx.inf
            logits[:, self._stop] = 0
        log_failure("a generation", error, ends=self._stop is not None)


def _vocab_size(model: Any) -> int:
    args = getattr(model, "args", None)
    for config in (args, getattr(args, "text_config", None)):
        get = config.get if isinstance(config, dict) else partial(getattr, config)
        if (size := get("vocab_size", None)) is not None:
            return size
    raise SpecError("Expected a model whose args have a vocab_size")


def _program_of(program: Program, prompt_ids: list[int] | None, shown: list[int]) -> Program:
    """Return the program of a generation; ``shown`` is what mlx-lm shows of its prompt."""
    if prompt_ids is not None:
        if prompt_ids[-len(shown) :] != shown:
            raise SpecError("Expected the prompt that this processor has been made for")
    elif (program.reads_prompt or program.per_request or program.continued) and len(shown) == 1:
        # The token may end any prompt.
        raise SpecError("Expected prompt_ids, because mlx-lm shows one token of the prompt")
    return program
