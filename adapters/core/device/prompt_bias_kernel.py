"""The Triton kernels of the prompt bias: they mark a prompt's tokens, and add biases to them."""

import torch
import triton
import triton.language as tl

from ..logits import highest_logit
from .advance_kernel import History, LogitsLayout
from .edit_kernel import is_among, sum_as
from .pool import DevicePool

BLOCK_SIZE = 1024
"""The number of a prompt's tokens, or of a row's columns, that one program reads at once."""

WORD = 32
"""The number of bits in a word of a mask."""

_WORD = tl.constexpr(WORD)


def mark_prompt(
    masks: torch.Tensor,
    bias: int,
    request: int,
    history: History,
    tables: DevicePool,
    excluded_state: int,
) -> None:
    """Mark the tokens of a request's prompt, but those in the token set of ``excluded_state``.

    ``masks`` are ``[biases, requests, words]`` int32, one bit for each token of the vocabulary;
    ``[bias, request]`` is overwritten.
    """
    with torch.cuda.device_of(masks):
        _mark_kernel[(1,)](
            masks,
            bias * masks.shape[1] + request,
            masks.shape[2],
            history.token_ids,
            history.token_ids.stride(0),
            history.prompt_lengths,
            request,
            excluded_state,
            *tables.columns("operand", "set_ends", "set_tokens"),
            block_size=BLOCK_SIZE,
            num_warps=4,  # pyright: ignore[reportCallIssue]
        )


@triton.jit(do_not_specialize=["index", "request", "excluded_state"])
def _mark_kernel(
    masks_ptr,  # [masks, words] int32; one is written
    index,  # its index
    words,
    token_ids_ptr,  # [requests, longest] int32
    token_ids_stride,
    prompt_lengths_ptr,  # [requests] int32
    request,
    excluded_state,
    operand_ptr,  # [table states] int32
    set_ends_ptr,  # [sets + 1] int32
    set_tokens_ptr,  # [set cells] int32
    block_size: tl.constexpr,
):
    """Clear the mask, then set the prompt's bits."""
    mask_ptr = masks_ptr + index.to(tl.int64) * words
    tokens_ptr = token_ids_ptr + request.to(tl.int64) * token_ids_stride
    offsets = tl.arange(0, block_size)
    for start in range(0, words, block_size):
        tl.store(mask_ptr + start + offsets, 0, mask=start + offsets < words)
    tl.debug_barrier()
    excluded = tl.load(operand_ptr + excluded_state)
    lo = tl.load(set_ends_ptr + excluded)
    hi = tl.load(set_ends_ptr + excluded + 1)
    length = tl.load(prompt_lengths_ptr + request)
    for start in range(0, length, block_size):
        at = start + offsets
        tokens = tl.load(tokens_ptr + at, mask=at < length, other=-1)
        left_out = is_among(set_tokens_ptr, lo, hi, tokens)
        # A prompt may have tokens beyond the vocabulary, such as images' placeholders.
        marked = (tokens >= 0) & (tokens < words * _WORD) & ~left_out
        bit = tl.full((block_size,), 1, tl.int32) << (tokens % _WORD)
        tl.atomic_or(mask_ptr + tokens // _WORD, bit, mask=marked, sem="relaxed")


def add_prompt_biases(
    logits: torch.Tensor,
    rows: LogitsLayout,
    biases: torch.Tensor,
    masks: torch.Tensor,
    vocab_size: int,
) -> None:
    """Add the biases to the logits of the prompts' tokens.

    The columns of the logits are contiguous, and ``vocab_size`` of them are tokens. ``biases`` are
    ``[biases, requests]`` float32, 0 for none; ``masks`` are from ``mark_prompt``.
    """
    blocks = triton.cdiv(vocab_size, BLOCK_SIZE)
    with torch.cuda.device_of(logits):
        _prompt_bias_kernel[(len(rows), blocks)](
            logits,
            logits.stride(0),
            highest_logit(logits.dtype),
            rows.requests,
            biases,
            len(biases),
            masks,
            masks.shape[2],
            masks.shape[1],
            vocab_size,
            block_size=BLOCK_SIZE,
            num_warps=4,  # pyright: ignore[reportCallIssue]
        )


@triton.jit(
    do_not_specialize=["biases", "requests"], do_not_specialize_on_alignment=["requests_ptr"]
)
def _prompt_bias_kernel(
    logits_ptr,  # [rows, columns]; changed
    logits_stride,
    highest,
    requests_ptr,  # [rows] int32 or int64
    biases_ptr,  # [biases, requests] float32
    biases,
    masks_ptr,  # [biases, requests, words] int32
    words,
    requests,
    vocab_size,
    block_size: tl.constexpr,
):
    row = tl.program_id(0)
    request = tl.load(requests_ptr + row).to(tl.int64)
    tokens = tl.program_id(1) * block_size + tl.arange(0, block_size)
    row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    for i in range(biases):
        bias = tl.load(biases_ptr + i * requests + request)
        if bias != 0:
            mask_ptr = masks_ptr + (i * requests + request) * words
            in_vocabulary = tokens < vocab_size
            mask = tl.load(mask_ptr + tokens // _WORD, mask=in_vocabulary, other=0)
            marked = in_vocabulary & (((mask >> (tokens % _WORD)) & 1) != 0)
            logits = tl.load(row_ptr + tokens, mask=marked, other=0.0)
            value = tl.clamp(tl.zeros_like(tokens).to(tl.float32) + bias, -highest, highest)
            tl.store(
                row_ptr + tokens, sum_as(logits, value, logits_ptr.dtype.element_ty), mask=marked
            )
