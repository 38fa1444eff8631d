"""The draw of a marked token: the highest logit with noise that a key and a context make.

numpy finds which logits the request's sampling leaves. Of these, only what can still win gets
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

_MOST = np.float32(16.65)
"""Noise is between -2.82 and 16.64."""
_ALMOST = np.float32(0.99)
"""Of a gap to the best token: sums of large logits are rounded, so that a little less may do."""
_DEPTHS, _FINENESS = 512, 16
"""Logits are counted by their depth below the highest, in steps of 1/16; the last has all below."""

_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_LEFT, _RIGHT = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_LEFT, _KEY_RIGHT = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_CONTEXT, _TOKEN = np.uint64(0x574D4358), np.uint64(0x574D544B)
_UNITS = np.float64(2**24 + 1)
_NEEDED = np.array([math.exp(-math.exp(-gap)) * _UNITS - 4 for gap in range(18)], np.uint64)
"""The least random bits that make noise so high, and a few less, because noise is rounded."""

Drawing = tuple[Any, Any, Any]
"""What ``draw`` reads of a mark: its key's words, its counts, and its numbers."""


def drawing_of(mark: Mark) -> Drawing:
    """Return what ``draw`` reads of a mark.

    Raises:
        SpecError: if it has no key.
    """
    words = np.array(mark.words(), np.uint64)
    counts = np.array([mark.width, mark.searched, mark.reads_prompt, mark.top_k], np.int64)
    return words, counts, np.array(mark.numbers(), np.float32)


def draw(row: Floats, tokens: Any, length: int, origin: int, drawing: Drawing, room: Floats) -> int:
    """Return the token that a mark draws, or -1 where the engine draws by itself.

    Args:
        row: ``[columns]``, logits.
        tokens: ``[length or more]``, the history.
        length: its length.
        origin: the length of the prompt.
        drawing: see ``drawing_of``.
        room: ``[2, vocabulary]``, which gets the logits by temperature.
    """
    words, counts, (temperature, top_p, ratio) = drawing
    width, searched, reads_prompt, top_k = counts.tolist()
    if is_repeated(tokens, length, origin, width, searched, reads_prompt > 0):
        return -1
    columns = min(len(row), room.shape[1])
    logits, masses = room[:, :columns]
    with np.errstate(over="ignore"):  # of the lowest number, with which some engines mask
        np.divide(row[:columns], temperature, out=logits)
    top = logits.max()
    if np.isnan(top):
        np.copyto(logits, -np.inf, where=np.isnan(logits))
        top = logits.max()
    if not -np.inf < top < np.inf:
        return -1
    lowest = find_lowest(logits, masses, top, top_k, top_p, ratio)
    return choose(logits, int(logits.argmax()), lowest, words, (tokens, length, origin, width))


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


def find_lowest(
    logits: Floats, masses: Floats, top: Any, top_k: int, top_p: Any, ratio: Any
) -> Any:
    """Return the lowest logit that min_p, top_k and top_p leave, in this order."""
    lowest, columns = top + ratio, len(logits)
    if 0 < top_k < columns:
        lowest = max(lowest, np.partition(logits, columns - top_k)[columns - top_k])
    if top_p < 1:
        masses = np.exp(np.subtract(logits, top, out=masses), out=masses)
        lowest = find_share(logits, masses, top, lowest, float(top_p))
    return np.float32(lowest)


@loop
def find_share(logits: Any, masses: Any, top: Any, lowest: Any, share: float) -> Any:
    """Return the lowest logit of the likeliest tokens that have a share of all mass.

    Only what is as deep as the last of them is put in order.
    """
    by_depth = np.zeros(_DEPTHS)
    for token in range(len(logits)):
        if logits[token] >= lowest:
            by_depth[depth_of(logits[token], top)] += masses[token]
    wanted, before, depth = share * by_depth.sum(), 0.0, 0
    while depth < _DEPTHS - 1 and before + by_depth[depth] < wanted:
        before += by_depth[depth]
        depth += 1
    count = 0
    for token in range(len(logits)):
        if logits[token] >= lowest and depth_of(logits[token], top) == depth:
            masses[count] = logits[token]
            count += 1
    ordered = np.sort(masses[:count])
    last = count - 1
    while last > 0 and before + math.exp(ordered[last] - top) < wanted:
        before += math.exp(ordered[last] - top)
        last -= 1
    return ordered[last] if count > 0 else lowest


@loop
def depth_of(logit: Any, top: Any) -> int:
    """Return how far a logit is below the highest, in steps."""
    steps = (top - logit) * np.float32(_FINENESS)
    return int(steps) if steps < _DEPTHS else _DEPTHS - 1


@loop
def choose(logits: Any, likeliest: int, lowest: Any, words: Any, context: Any) -> int:
    """Return the token that is the highest with noise, of those not below ``lowest``."""
    columns, state = len(logits), context_state(words, *context)
    bits = bits_of(words, state, likeliest >> 2)[likeliest & 3]
    best, chosen = logits[likeliest] + noise(bits), likeliest
    for first in range(0, columns, 4):  # a group has its random bits in common
        end, bound, can_win = min(first + 4, columns), max(lowest, best - _MOST), False
        for token in range(first, end):
            can_win |= logits[token] >= bound
        if not can_win:
            continue
        of_group = bits_of(words, state, first >> 2)
        for token in range(first, end):
            gap, bits = (best - logits[token]) * _ALMOST, of_group[token & 3]
            if logits[token] < lowest or gap > _MOST or (gap > 0 and bits < _NEEDED[int(gap)]):
                continue
            value = logits[token] + noise(bits)
            if value > best or (value == best and token < chosen):
                best, chosen = value, token
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
