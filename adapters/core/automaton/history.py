"""Token histories of requests, as sequences and as arrays."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ....spec import SpecError
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


class Continued(Sequence[int]):
    """An output that an earlier request has begun, and to which the engine appends."""

    def __init__(self, earlier: Sequence[int], output_ids: Sequence[int]) -> None:
        self._earlier, self._output_ids = earlier, output_ids
        self._whole = list[int]()

    def whole(self) -> list[int]:
        """Return all tokens as they are now, in one list, which is the same at each call."""
        self._whole = self._whole or [*self._earlier]
        self._whole[len(self._earlier) :] = self._output_ids
        return self._whole

    def __len__(self) -> int:
        return len(self._earlier) + len(self._output_ids)

    def __getitem__(self, index: Any) -> Any:
        at, count = range(len(self))[index], len(self._earlier)
        if isinstance(at, range):
            return [self[i] for i in at]
        return self._earlier[at] if at < count else self._output_ids[at - count]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return all tokens as they are now."""
        parts = _array(self._earlier), _array(self._output_ids)
        return np.concatenate(parts, dtype=dtype or np.int32)


def continued(
    prompt_ids: Sequence[int] | None, output_ids: Sequence[int], count: int
) -> tuple[Sequence[int] | None, Sequence[int]]:
    """Count the last tokens of a prompt as output; ``None`` is a prompt that the host lacks.

    ``continued([5, 6, 7], [8], 2)`` is ``[5]`` and a sequence of 6, 7 and 8, which grows with the
    output.

    Raises:
        SpecError: as ``check_continued`` does.
    """
    if not count or prompt_ids is None:
        return prompt_ids, output_ids
    check_continued(count, len(prompt_ids))
    length = len(prompt_ids) - count
    return prompt_ids[:length], Continued(prompt_ids[length:], output_ids)


def check_continued(count: int, length: int | None) -> None:
    """Refuse to continue more tokens than a prompt has; ``None`` stands for one of embeddings.

    Raises:
        SpecError: at ``continued``.
    """
    if count and length is None:
        raise SpecError("A prompt of embeddings has no token ids that could be output", "continued")
    if count > (length or 0):
        raise SpecError(f"Expected at most {length}, the prompt's tokens, got {count}", "continued")


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
