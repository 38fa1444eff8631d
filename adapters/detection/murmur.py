"""The hash of SGLang's watermarks: MurmurHash3 x86 32, over words of 32 bits.

Source: sglang/srt/sampling/watermarking/README.md, which is normative.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

MASK = np.uint64(0xFFFFFFFF)


def murmur(words: Sequence[Any]) -> Any:
    """Hash words, each an integer or an array of uint64 below 2^32; a hash for each row."""
    state = np.zeros((), np.uint64)
    for word in words:
        word = _rotated(_times(np.asarray(word, np.uint64), 0xCC9E2D51), 15)
        state = _rotated(state ^ _times(word, 0x1B873593), 13)
        state = (_times(state, 5) + np.uint64(0xE6546B64)) & MASK
    state = state ^ np.uint64(4 * len(words))
    state = _times(state ^ (state >> np.uint64(16)), 0x85EBCA6B)
    state = _times(state ^ (state >> np.uint64(13)), 0xC2B2AE35)
    return state ^ (state >> np.uint64(16))


def words_of(key: int) -> tuple[int, int]:
    """Return the low and the high word of a key."""
    return key & 0xFFFFFFFF, key >> 32


def _times(words: Any, factor: int) -> Any:
    return (words * np.uint64(factor)) & MASK


def _rotated(words: Any, shift: int) -> Any:
    return ((words << np.uint64(shift)) | (words >> np.uint64(32 - shift))) & MASK
