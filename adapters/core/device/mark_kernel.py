"""The Triton kernel of marks: it draws a token for a row, and forces it; see ``host.draw``."""

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.random import philox_impl

from ..parts import Mark
from ..tensors import highest_logit
from .chain_kernel import narrow, numbers_of
from .context import ROW_POINTERS, History, LogitsLayout
from .inputs import RequestInputs
from .rows import COLUMNS, bend, find_top, load
from .search import locate, tokens_at

TOKENS = 1024
"""The tokens of a history that are read at once."""

_TOKENS = tl.constexpr(TOKENS)
_WINDOW = tl.constexpr(-19.6)  # no logit further below the highest is drawn
_CONTEXT_DOMAIN, _TOKEN_DOMAIN = tl.constexpr(0x574D4358), tl.constexpr(0x574D544B)
_NO_TOKEN = tl.constexpr(0xFFFFFFFF)


def fields_of(mark: Mark, prompt_length: int) -> tuple[list[int], list[float]]:
    """List what the kernel reads of a request's mark: its counts and key, and its numbers.

    Raises:
        SpecError: if it has no key.
    """
    words = [_signed(word) for word in mark.words()]
    steps, numbers = numbers_of(mark.steps())
    counts = [mark.width, mark.searched, mark.reads_prompt, prompt_length, *words, len(steps)]
    return [*counts, *steps], numbers


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


class MarkKernel:
    """A launcher of the kernel, on the current stream."""

    def __init__(self, inputs: RequestInputs) -> None:
        self._inputs = inputs

    def launch(
        self, logits: torch.Tensor, history: History, rows: LogitsLayout, vocab_size: int
    ) -> None:
        """Force the drawn tokens of rows with a mark, whose columns are contiguous."""
        launch: Any = _mark_kernel[(len(rows),)]
        with torch.cuda.device_of(logits):
            launch(
                *(logits, logits.stride(0), highest_logit(logits.dtype)),
                *rows.arguments,
                *history.arguments,
                *self._inputs.columns("mark", "draw"),
                *(self._inputs.requests, vocab_size),
                num_warps=8,
            )


@triton.jit(do_not_specialize=["requests"], do_not_specialize_on_alignment=ROW_POINTERS)
def _mark_kernel(
    logits_ptr,  # [rows, columns]; changed
    logits_stride,
    highest,  # no logit is higher
    requests_ptr,  # [rows] int32 or int64
    drafts_ptr,  # [rows] int32
    row_tokens_ptr,  # [rows] int32
    token_ids_ptr,  # [requests, longest] int32
    token_ids_stride,
    lengths_ptr,  # [requests] int32
    counts_ptr,  # [7 + steps, requests] int32, see `fields_of`; 0 without a mark
    numbers_ptr,  # [2 * steps, requests] float32
    requests,
    vocab_size,
):
    row = tl.program_id(0)
    request, tokens_ptr, drafted_ptr, kept, length = locate(
        requests_ptr, drafts_ptr, row_tokens_ptr, token_ids_ptr, token_ids_stride, lengths_ptr, row
    )
    counts_ptr += request
    width = tl.load(counts_ptr)
    if width == 0:
        return
    searched = tl.load(counts_ptr + requests)
    reads_prompt = tl.load(counts_ptr + 2 * requests)
    origin = tl.load(counts_ptr + 3 * requests)
    key = tl.load(counts_ptr + 4 * requests).to(tl.uint32, bitcast=True)
    other_key = tl.load(counts_ptr + 5 * requests).to(tl.uint32, bitcast=True)
    count = tl.load(counts_ptr + 6 * requests)
    is_full = length - origin >= width
    first = tl.where(reads_prompt != 0, 0, origin)
    searched = tl.where(is_full, searched, 0)
    found = is_repeated(tokens_ptr, drafted_ptr, kept, length, width, first, searched)
    if tl.where(is_full, found, reads_prompt) != 0:
        return
    row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    top = find_top(row_ptr, vocab_size)
    if (top == -float("inf")) | (top == float("inf")):
        return
    steps = count, counts_ptr + 7 * requests, numbers_ptr + request, requests, numbers_ptr
    lowest = tl.zeros_like(top) - 3e38
    low, _, temperature, squares, cubes, after, _, _, _ = narrow(
        row_ptr, vocab_size, top, lowest, *steps
    )
    curve = temperature, squares, cubes, after, top
    lowest = bend(top, *curve) + _WINDOW

    state_0 = tl.full((), _CONTEXT_DOMAIN, tl.uint32)
    state_1 = width.to(tl.uint32)
    state_2 = tl.full((), 0, tl.uint32)
    state_3 = tl.full((), 0, tl.uint32)
    for offset in range(0, width, 4):
        place = tokens_ptr, drafted_ptr, kept, length, origin, width
        index = width * 0 + offset  # a tensor, when interpreted too
        state_0, state_1, state_2, state_3 = philox_impl(
            state_0 ^ context_word(*place, index),
            state_1 ^ context_word(*place, index + 1),
            state_2 ^ context_word(*place, index + 2),
            state_3 ^ context_word(*place, index + 3),
            key ^ index.to(tl.uint32),
            other_key,
        )
    best = -float("inf")
    drawn = -1
    for start in range(0, vocab_size, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        logits = load(row_ptr, columns, vocab_size)
        bent = bend(logits, *curve)
        zero = columns.to(tl.uint32) * 0
        word_0, word_1, word_2, word_3 = philox_impl(
            (columns >> 2).to(tl.uint32),
            zero + state_0,
            zero + state_1,
            zero + state_2,
            zero + (key ^ state_3),
            zero + (other_key ^ _TOKEN_DOMAIN),
        )
        lane = columns & 3
        words = tl.where(lane == 0, word_0, tl.where(lane == 1, word_1, word_2))
        words = tl.where(lane == 3, word_3, words)
        scaled = ((words >> 8) + 1).to(tl.float32) * 2**-24
        uniform = (scaled.to(tl.uint32, bitcast=True) - 1).to(tl.float32, bitcast=True)
        is_left = (logits >= low) & (bent >= lowest)
        values = tl.where(is_left, bent - tl.log(-tl.log(uniform)), -float("inf"))
        value = tl.max(values, axis=0)
        if value > best:  # pyright: ignore[reportOperatorIssue]
            drawn = tl.min(tl.where(values == value, columns, vocab_size), axis=0)
            best = value
    if drawn >= 0:  # pyright: ignore[reportOperatorIssue]
        forced = tl.zeros_like(top) + highest
        tl.store(row_ptr + drawn, forced.to(logits_ptr.dtype.element_ty))


@triton.jit
def context_word(tokens_ptr, drafts_ptr, kept, length, origin, width, index):
    """Return a word of a context: a token, or what stands for none."""
    at = length - width + index
    token = tokens_at(tokens_ptr, drafts_ptr, at, kept, (index < width) & (at >= origin))
    none = tl.full((), _NO_TOKEN, tl.uint32)
    missing = tl.where(index < width, none, none - (index % 4).to(tl.uint32))
    return tl.where((index < width) & (at >= origin), token.to(tl.uint32), missing)


@triton.jit
def is_repeated(tokens_ptr, drafts_ptr, kept, length, width, start, searched):
    """Return 1 if the newest tokens were the context of an earlier position, or 0."""
    oldest = tl.maximum(start + width - 1, length - 1 - searched)
    first = oldest
    is_found = 0
    while (first < length - 1) & (is_found == 0):
        at = first + tl.arange(0, _TOKENS)
        agrees = at < length - 1
        for back in range(width):
            newest = tokens_at(tokens_ptr, drafts_ptr, length - 1 - back, kept, True)
            earlier = tokens_at(tokens_ptr, drafts_ptr, at - back, kept, agrees)
            agrees = agrees & (earlier == newest)
        is_found = tl.max(agrees.to(tl.int32), axis=0)
        first += _TOKENS
    return is_found
