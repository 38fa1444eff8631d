"""Operations on arrays of numbers that clients choose: token ids and edge keys."""

from collections.abc import Iterable
from struct import pack
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
"""An array of states, token ids or the like."""

TOKEN = 0xFFFFFFFF
"""The part of a key that is the token: ``key = state << 32 | token``."""
N = TypeVar("N", bound=np.integer[Any])


def token_array(token_ids: Iterable[int] | npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Convert token ids to an array, in half the time that numpy takes."""
    if isinstance(token_ids, np.ndarray):
        return token_ids.astype(np.int32)
    every = tuple(token_ids)
    return np.frombuffer(pack(f"{len(every)}i", *every), np.int32)


def distinct(values: npt.NDArray[N]) -> npt.NDArray[N]:
    """Sort the values in ascending order and drop duplicates.

    ``np.unique`` puts integers into a hash table, and a client can choose integers that all
    collide: with 16,384 multiples of 20,753 it takes 170 ms, where sorting takes 0.5 ms.
    """
    ordered = np.sort(values)
    return ordered[differ(ordered)]


def numbered(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values in ascending order, and the index of each value among them."""
    order = np.argsort(values, kind="stable")
    ordered, number = values[order], np.empty(len(values), np.int64)
    is_first = differ(ordered)
    number[order] = np.cumsum(is_first) - 1
    return ordered[is_first], number


def differ(ordered: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Mark each value that differs from the value before it; the first one always does."""
    differ = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=differ[1:])
    return differ


def members(starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """List the members of some ranges: the number of each one's range, and the member."""
    before = np.cumsum(lengths) - lengths
    within = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
    return np.repeat(np.arange(len(starts)), lengths), within
