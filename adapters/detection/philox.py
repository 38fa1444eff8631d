"""The random words of vLLM's watermarks: Philox4x32-10, keyed by a context.

Source: vllm/v1/watermarking/prfs/philox.py, version "philox4x32-10-v1"; Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", https://doi.org/10.1145/2063384.2063405.
"""

from typing import Any

import numpy as np

MASK = 0xFFFFFFFF
CONTEXT_DOMAIN = 0x574D4358
TOKEN_DOMAIN = 0x574D544B

Words = Any
"""Words of 32 bits: an integer, or an array of uint64."""


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> list[Words]:
    """Return the four words that ten rounds make of a counter and a key."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (right >> 32) ^ b ^ k0, right & MASK, (left >> 32) ^ d ^ k1, left & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return [a, b, c, d]


def context_state(key: int, contexts: np.ndarray) -> list[Words]:
    """Return the state of each context, from which the words of its tokens are made.

    Args:
        key: a key of 64 bits.
        contexts: int64 ``[n, width]``; -1 stands for no token.
    """
    width = contexts.shape[1]
    words = contexts.astype(np.int64).astype(np.uint64) & np.uint64(MASK)
    zero = np.zeros(len(contexts), np.uint64)
    state = [zero + np.uint64(CONTEXT_DOMAIN), zero + np.uint64(width), zero, zero]
    for offset in range(0, width, 4):
        counter = [
            state[i] ^ (words[:, offset + i] if offset + i < width else np.uint64(MASK - i))
            for i in range(4)
        ]
        state = philox((*counter,), ((key & MASK) ^ offset, key >> 32))
    return state


def uniforms(key: int, contexts: np.ndarray, token_ids: np.ndarray) -> np.ndarray:
    """Return the uniform number of each token in its context, as float32 ``[n]`` above 0.

    ::

        >>> uniforms(42, np.array([[-1, -1, -1, 7]]), np.array([9]))
        array([0.6941...], dtype=float32)

    Args:
        key: a key of 64 bits.
        contexts: int64 ``[n, width]``, the tokens before; -1 stands for no token.
        token_ids: int64 ``[n]``.
    """
    s0, s1, s2, s3 = context_state(key, contexts)
    tokens = token_ids.astype(np.uint64)
    counter = (tokens >> np.uint64(2), s0, s1, s2)
    out = philox(counter, (s3 ^ np.uint64(key & MASK), (key >> 32) ^ TOKEN_DOMAIN))
    words = np.choose((tokens & np.uint64(3)).astype(np.int64), out)
    return (((words >> np.uint64(8)).astype(np.float64) + 1) / (2**24 + 1)).astype(np.float32)
