"""Token histories of requests, as sequences and as arrays."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .automaton import UNKNOWN

Tokens = npt.NDArray[np.int32]

_HIGHEST = np.iinfo(np.int32).max


@dataclass(slots=True, eq=False)
class TokenHistory:
    """A request's tokens so far. The engine appends to ``output_ids``."""

    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    _prompt: Tokens | None = field(default=None, init=False)
    _output: Tokens | None = field(default=None, init=False)

    def prompt_array(self) -> Tokens:
        """Return the prompt's token ids, read-only; kept until ``drop_arrays``."""
        if self._prompt is None:
            self._prompt = _array(self.prompt_ids)
        return self._prompt

    def output_array(self) -> Tokens:
        """Return the output's token ids, read-only; as of the first call until ``drop_arrays``."""
        if self._output is None:
            self._output = _array(self.output_ids)
        return self._output

    def drop_arrays(self) -> None:
        """Free the arrays, which do not follow the output."""
        self._prompt = self._output = None


def _array(token_ids: Sequence[int]) -> Tokens:
    """Convert token ids; those that no vocabulary has may become others that it does not have."""
    if not isinstance(token_ids, list | tuple):
        numbers = np.array(token_ids, np.int64)
    else:
        try:
            numbers = np.frombuffer(array("Q", token_ids), np.int64)  # twice as fast as signed
        except OverflowError:
            numbers = np.frombuffer(array("q", token_ids), np.int64)
    tokens = numbers.astype(np.int32)
    if not np.array_equal(tokens, numbers):
        np.clip(numbers, UNKNOWN - 1, _HIGHEST, out=tokens, casting="unsafe")
    return tokens
