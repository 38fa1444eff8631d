"""The draw of a marked token: the highest logit with noise that a key and a context make.

``shape`` finds which logits the request's sampling leaves. Of these, only what can still win gets
noise: its random bits are compared with those that the best token so far asks for, before any
logarithm is taken.

Source: vLLM's vllm/v1/watermarking/gumbel.py and prfs/philox.py, whose float32 numbers these are.
"""

import math
from typing import Any

import numpy as np

from ..logits import Floats
from ..loops import loop
from ..parts import Mark
from .search import skip
from .shape import shape

_MOST = np.float32(16.65)
"""Noise is between -2.82 and 16.64."""
_ALMOST = np.float32(0.99)
"""Of a gap to the best token: sums of large logits are rounded, so that a little less may do."""

_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_LEFT, _RIGHT = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_LEFT, _KEY_RIGHT = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_CONTEXT, _TOKEN = np.uint64(0x574D4358), np.uint64(0x574D544B)
_UNITS = np.float64(2**24 + 1)
_NEEDED = np.array([math.exp(-math.exp(-gap)) * _UNITS - 4 for gap in range(18)], np.uint64)
"""The least random bits that make noise so high, and a few less, because noise is rounded."""

Drawing = tuple[Any, Any, Any]
"""What ``draw`` reads of a mark: its key's words, its counts, and its steps."""


def drawing_of(mark: Mark) -> Drawing:
    """Return what ``draw`` reads of a mark.

    Raises:
        SpecError: if it has no key.
    """
    counts = mark.width, mark.searched, mark.reads_prompt
    return np.array(mark.words(), np.uint64), counts, mark.steps()


def draw(row: Floats, tokens: Any, length: int, origin: int, drawing: Drawing) -> int:
    """Return the token that a mark draws, or -1 where the engine draws by itself.

    Args:
        row: ``[columns]``, logits.
        tokens: ``[length or more]``, the history.
        length: its length.
        origin: the length of the prompt.
        drawing: see ``drawing_of``.
    """
    words, (width, searched, reads_prompt), steps = drawing
    if is_repeated(tokens, length, origin, width, searched, reads_prompt):
        return -1
    left = shape(row, steps, -np.inf)
    if left is None:
        return -1
    likeliest = int(left.logits.argmax())
    return int(choose(*left, likeliest, words, (tokens, length, origin, width)))


@loop
def is_repeated(
    tokens: Any, length: int, origin: int, width: int, searched: int, reads_prompt: bool
) -> bool:
    """Return whether the newest tokens were the context of an earlier position."""
    if length - origin < width:
        return reads_prompt
    oldest = max((0 if reads_prompt else origin) + width - 1, length - 1 - searched)
    at = skip(tokens, length - 2, oldest, tokens[length - 1])  # the end of an earlier context
    while at >= oldest:
        same = 1
        while same < width and tokens[at - same] == tokens[length - 1 - same]:
            same += 1
        if same == width:
            return True
        at = skip(tokens, at - 1, oldest, tokens[length - 1])
    return False


@loop
def choose(tokens: Any, logits: Any, likeliest: int, words: Any, context: Any) -> int:
    """Return the token that is the highest with noise; tokens are ascending."""
    state, group = context_state(words, *context), tokens[likeliest] >> 2
    of_group = bits_of(words, state, group)  # four tokens have their random bits in common
    best, chosen = logits[likeliest] + noise(of_group[tokens[likeliest] & 3]), tokens[likeliest]
    for i in range(len(tokens)):
        gap = (best - logits[i]) * _ALMOST
        if gap > _MOST:
            continue
        if tokens[i] >> 2 != group:
            group = tokens[i] >> 2
            of_group = bits_of(words, state, group)
        bits = of_group[tokens[i] & 3]
        if gap > 0 and bits < _NEEDED[int(gap)]:
            continue
        value = logits[i] + noise(bits)
        if value > best or (value == best and tokens[i] < chosen):
            best, chosen = value, tokens[i]
    return chosen


@loop
def context_state(words: Any, tokens: Any, length: int, origin: int, width: int) -> Any:
    """Return the state of Philox after the newest ``width`` tokens of the output."""
    state = (_CONTEXT, np.uint64(width), np.uint64(0), np.uint64(0))
    for offset in range(0, width, 4):
        state = philox(
            state[0] ^ context_word(tokens, length, origin, width, offset),
            state[1] ^ context_word(tokens, length, origin, width, offset + 1),
            state[2] ^ context_word(tokens, length, origin, width, offset + 2),
            state[3] ^ context_word(tokens, length, origin, width, offset + 3),
            words[0] ^ np.uint64(offset),
            words[1],
        )
    return state


@loop
def context_word(tokens: Any, length: int, origin: int, width: int, index: int) -> Any:
    """Return a word of a context: a token, or what stands for none."""
    if index >= width:
        return _WORD - np.uint64(index % 4)
    at = length - width + index
    return np.uint64(tokens[at]) & _WORD if at >= origin else _WORD


@loop
def bits_of(words: Any, state: Any, group: int) -> Any:
    """Return the random bits, 24 each, of four tokens."""
    key = words[0] ^ state[3], words[1] ^ _TOKEN
    a, b, c, d = philox(np.uint64(group), state[0], state[1], state[2], *key)
    eight = np.uint64(8)
    return a >> eight, b >> eight, c >> eight, d >> eight


@loop
def noise(bits: Any) -> Any:
    """Return the Gumbel noise that random bits make."""
    return -np.log(-np.log(np.float32((np.float64(bits) + 1.0) / _UNITS)))


@loop
def philox(a: Any, b: Any, c: Any, d: Any, left: Any, right: Any) -> Any:
    """Return four words after ten rounds of Philox4x32."""
    for _ in range(10):
        one, two = _LEFT * a, _RIGHT * c
        a, b, c, d = (two >> _HALF) ^ b ^ left, two & _WORD, (one >> _HALF) ^ d ^ right, one & _WORD
        left, right = (left + _KEY_LEFT) & _WORD, (right + _KEY_RIGHT) & _WORD
    return a, b, c, d
