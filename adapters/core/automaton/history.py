"""Token histories of requests, as sequences and as arrays."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .arrays import Ints


@dataclass(slots=True, eq=False)
class TokenHistory:
    """A request's tokens so far. The engine appends to ``output_ids``."""

    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    _prompt: Ints | None = field(default=None, init=False)
    _output: Ints | None = field(default=None, init=False)

    def prompt_array(self) -> Ints:
        """Return the prompt's token ids, read-only; kept until ``drop_arrays``."""
        if self._prompt is None:
            self._prompt = _array(self.prompt_ids)
        return self._prompt

    def output_array(self) -> Ints:
        """Return the output's token ids, read-only; as of the first call until ``drop_arrays``."""
        if self._output is None:
            self._output = _array(self.output_ids)
        return self._output

    def drop_arrays(self) -> None:
        """Free the arrays, which do not follow the output."""
        self._prompt = self._output = None


def _array(token_ids: Sequence[int]) -> Ints:
    if not isinstance(token_ids, list | tuple):
        return np.array(token_ids, np.int64)
    try:
        numbers = array("Q", token_ids)  # reads a list twice as fast as a signed type
    except OverflowError:
        numbers = array("q", token_ids)
    return np.frombuffer(numbers, np.int64)
