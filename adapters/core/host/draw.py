"""The draw of a marked token: the highest logit with noise that a key and a context make.

Only a token whose logit is close to the highest can win: noise is between ``_LEAST`` and ``_MOST``.
So noise is computed for few tokens, and a row is passed over twice.

Source: vLLM's vllm/v1/watermarking/gumbel.py and prfs/philox.py, whose float32 numbers these are.
"""

import math
from typing import Any

import numpy as np

from ..loops import loop
from ..parts import Mark
from .search import skip

_WINDOW = -19.6
"""How far a logit may be below the highest and yet be drawn: noise is between -2.82 and 16.64."""

_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_LEFT, _RIGHT = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_LEFT, _KEY_RIGHT = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_CONTEXT, _TOKEN = np.uint64(0x574D4358), np.uint64(0x574D544B)
_UNITS = np.float64(2**24 + 1)

Drawing = tuple[Any, Any, Any]
"""What ``draw`` reads of a mark: its key's words, its counts, and its numbers."""


def drawing_of(mark: Mark) -> Drawing:
    """Return what ``draw`` reads of a mark.

    Raises:
        SpecError: if it has no key.
    """
    words = np.array(mark.words(), np.uint64)
    counts = np.array([mark.width, mark.searched, mark.reads_prompt, mark.top_k], np.int64)
    ratio = math.log(mark.min_p) if mark.min_p > 0 else -math.inf
    return words, counts, np.array([mark.temperature, mark.top_p, ratio], np.float32)


@loop
def draw(row: Any, tokens: Any, length: int, origin: int, drawing: Any, kept: Any) -> int:
    """Return the token that a mark draws, or -1 where the engine draws by itself.

    Args:
        row: ``[columns]`` float32, a row of logits.
        tokens: ``[length or more]``, the history.
        length: its length.
        origin: the length of the prompt.
        drawing: see ``drawing_of``.
        kept: room for as many float32 numbers as there are tokens.
    """
    words, counts, numbers = drawing
    width, top_k, temperature = counts[0], counts[3], numbers[0]
    columns = min(len(row), len(kept))
    if is_repeated(tokens, length, origin, width, counts[1], counts[2] > 0):
        return -1
    top = np.float32(-np.inf)
    for token in range(columns):
        if row[token] > top:
            top = row[token]
    if not top > -np.inf or top == np.inf:
        return -1
    top = top / temperature
    lowest = find_lowest(row, columns, top, top_k, numbers, kept)
    state = context_state(words, tokens, length, origin, width)
    best, chosen = np.float32(-np.inf), -1
    lowest = max(lowest, np.float32(top + _WINDOW))
    for token in range(columns):
        logit = row[token] / temperature
        if logit >= lowest:
            value = logit + noise(words, state, token)
            if value > best:
                best, chosen = value, token
    return chosen


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
def find_lowest(row: Any, columns: int, top: Any, top_k: int, numbers: Any, kept: Any) -> Any:
    """Return the lowest logit, by temperature, that min_p, top_k and top_p leave.

    Logits too far below ``top`` to be drawn count in the mass of top_p alone.
    """
    top_p, lowest, has_top_k = numbers[1], np.float32(top + numbers[2]), 0 < top_k < columns
    if not (has_top_k or top_p < 1):
        return lowest
    count = gather(row, columns, max(lowest, np.float32(top + _WINDOW)), numbers[0], kept)
    if has_top_k and count < top_k and top_p < 1:
        count = gather(row, columns, lowest, numbers[0], kept)
    if has_top_k and count > top_k:
        lowest = np.partition(kept[:count], count - top_k)[count - top_k]
    if top_p < 1:
        mass = add_up(kept, count, lowest, top, np.float32(1))
        if not has_top_k:
            mass = add_up(row, columns, lowest, top, numbers[0])
        ordered, before = np.sort(kept[:count]), 0.0
        for i in range(count - 1, -1, -1):
            if ordered[i] < lowest or (before >= top_p * mass and before > 0):
                return ordered[i + 1]
            before += math.exp(ordered[i] - top)
    return lowest


@loop
def gather(row: Any, columns: int, lowest: Any, temperature: Any, kept: Any) -> int:
    """List the logits, by temperature, that are not below ``lowest``; return their number."""
    count = 0
    for token in range(columns):
        logit = row[token] / temperature
        if logit >= lowest and logit > -np.inf:
            kept[count] = logit
            count += 1
    return count


@loop
def add_up(row: Any, columns: int, lowest: Any, top: Any, temperature: Any) -> float:
    """Add up the probabilities, as multiples of the highest, of logits not below ``lowest``."""
    mass, lowest = 0.0, max(lowest, np.float32(top - 80))  # below, nothing would change
    for token in range(columns):
        logit = row[token] / temperature
        if logit >= lowest:
            mass += math.exp(logit - top)
    return mass


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
def noise(words: Any, state: Any, token: int) -> np.float32:
    """Return the Gumbel noise of a token."""
    group = np.uint64(token >> 2)
    out = philox(group, state[0], state[1], state[2], words[0] ^ state[3], words[1] ^ _TOKEN)
    word = out[token & 3]
    uniform = np.float32((np.float64(word >> np.uint64(8)) + 1.0) / _UNITS)
    return -np.log(-np.log(uniform))


@loop
def philox(a: Any, b: Any, c: Any, d: Any, left: Any, right: Any) -> Any:
    """Return four words after ten rounds of Philox4x32."""
    for _ in range(10):
        one, two = _LEFT * a, _RIGHT * c
        a, b, c, d = (two >> _HALF) ^ b ^ left, two & _WORD, (one >> _HALF) ^ d ^ right, one & _WORD
        left, right = (left + _KEY_LEFT) & _WORD, (right + _KEY_RIGHT) & _WORD
    return a, b, c, d
