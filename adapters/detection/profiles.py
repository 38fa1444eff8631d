"""Profiles: how a text was marked, and where the key of the mark is.

A file has profiles by name; see "Profiles of marks" in docs/wire.md::

    profiles:
      news:
        scheme: vllm-gumbel
        key: {env: NEWS_KEY}
        width: 4
"""

import logging
import os
import re
import stat
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, ClassVar, NamedTuple

import msgspec
import numpy as np

from ...spec.errors import shown
from ..files import read_file

logger = logging.getLogger(__name__)

Width = Annotated[int, msgspec.Meta(ge=1, le=64)]
"""A number of tokens before a token, by which its random number is chosen."""

Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]
"""A probability."""

MAX_KEY_BYTES = 4096
"""The size of a key's text."""


class KeySource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a key is. A profile has no key.

    Attributes:
        env: the name of an environment variable. A number is none, so a key that stands here by
            mistake is refused, and not repeated.
        file: the name of a file.
    """

    env: Annotated[str, msgspec.Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    file: str | None = None

    def __post_init__(self) -> None:
        if (self.env is None) == (self.file is None):
            raise ValueError("Expected `env` or `file`, and one of them")

    def read(self) -> str:
        """Return the key's text.

        Raises:
            ValueError: if there is none, or the file cannot be read. No message has a key in it.
        """
        if self.file is None:
            if not (text := os.environ.get(self.env or "", "").strip()):
                raise ValueError(f"No key in the variable {self.env}")
            return text
        try:
            text = read_file(self.file, MAX_KEY_BYTES).strip()
            _warn_of_readers(self.file)
            return text
        except OSError as error:
            why = str(error.strerror)
        except ValueError:
            why = f"expected a regular file with a text of at most {MAX_KEY_BYTES:,} bytes"
        raise ValueError(f"No key in the file {self.file}: {why}")


@lru_cache
def _warn_of_readers(file: str) -> None:
    """Warn once of a key that everybody on the machine can read."""
    if os.stat(file).st_mode & stat.S_IROTH:
        logger.warning("logitport: everybody can read the key in %s: chmod o-r", shown(file))


class Scores(NamedTuple):
    """The evidence of single tokens.

    Attributes:
        positions: int64 ``[n]``, the indices of the tokens that are scored, in order.
        values: float64 ``[n]``, their scores: the higher, the likelier a mark.
    """

    positions: np.ndarray
    values: np.ndarray


class Profile(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="scheme", forbid_unknown_fields=True
):
    """How a text was marked. Each scheme is a class.

    Attributes:
        key: where the key is.
        tokenizer: the digest of the tokenizer's file, ``sha256:`` and 64 digits; it is checked
            where a text is given. ``logitport detect`` prints it.
    """

    THETA: ClassVar = 0.4
    """How strong a mark the search for spans expects: one that makes a score ``exp(THETA * score)``
    times as likely."""
    MOST: ClassVar = 1 << 20
    """The most tokens of a text: some seconds."""
    COST: ClassVar = 1
    """How many times as long as others the scheme takes for a token, of two microseconds."""

    key: KeySource
    tokenizer: Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")] | None = None

    @property
    def scheme(self) -> str:
        """The name of the scheme."""
        return str(self.__struct_config__.tag)

    def keys(self) -> tuple[int, ...]:
        """Read the key.

        Raises:
            ValueError: if there is none, or it is none of this scheme.
        """
        return (one_key(self.key.read(), 64),)

    def scores(self, keys: Sequence[int], token_ids: np.ndarray, prompt: np.ndarray) -> Scores:
        """Score the tokens of a text. Of tokens with the same context, only the first counts."""
        raise NotImplementedError

    def log_tail(self, values: np.ndarray) -> float:
        """Return the logarithm of the chance that a text without the mark scores as high."""
        raise NotImplementedError

    @property
    def log_mgf(self) -> float:
        """The logarithm of the mean of ``exp(THETA * score)`` over tokens without the mark.

        A higher number makes spans rarer.
        """
        raise NotImplementedError


def one_key(text: str, bits: int, base: int = 0) -> int:
    """Read a key: digits to the base of 10, or of 16 behind ``0x``.

    Raises:
        ValueError: if it is no such number. The message does not repeat it.
    """
    try:
        key = int(text, base)
    except ValueError:
        key = -1
    if not 0 <= key < 1 << bits:
        raise ValueError(f"Expected a key of at most {bits} bits as a number")
    return key


def many_keys(text: str, base: int = 0) -> tuple[int, ...]:
    """Read keys that spaces or commas separate; see ``one_key``."""
    return tuple(one_key(each, 64, base) for each in re.split(r"[\s,]+", text.strip(" ,[]\n")))


def contexts_before(token_ids: np.ndarray, width: int, padding: int) -> np.ndarray:
    """Return the tokens before each token, int64 ``[n, width]``."""
    padded = np.concatenate([np.full(width, padding, np.int64), token_ids])
    return np.lib.stride_tricks.sliding_window_view(padded, width)[: len(token_ids)]


def ngrams_of(token_ids: np.ndarray, length: int) -> np.ndarray:
    """Return all n-grams of a text, int64 ``[n - length + 1, length]``."""
    return contexts_before(np.append(token_ids, 0), length, 0)[length:]


def first_of_each(rows: np.ndarray) -> np.ndarray:
    """Return the indices of the rows that no row before is equal to, in order."""
    order = np.lexsort(rows.T)  # a third of the time of "np.unique"; of equal rows, the first leads
    differs = (rows[order][1:] != rows[order][:-1]).any(axis=1)
    return np.sort(order[np.append(np.ones(min(len(rows), 1), np.bool_), differs)])
