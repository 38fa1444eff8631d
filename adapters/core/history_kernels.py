"""Triton kernels of the rules that look at the tokens of a history themselves: no repeated n-gram,
and the bias towards a prompt's tokens.
"""

import torch
import triton
import triton.language as tl

from ...spec.limits import MAX_NGRAM
from .advance_kernel import ROW_POINTERS, History, Rows
from .automaton import BAN_BIAS
from .device_tables import DeviceTables
from .edit_kernel import first_from, sum_as
from .torch_editor import highest_logit

BLOCK_SIZE = 1024
"""Tokens of a history, or columns of a row, that one program looks at."""

NGRAM_TILE = 2048
"""Tokens of a history that one program has at hand: candidates, and ``MAX_NGRAM`` before them."""

NGRAM_FIELDS = 3
"""Numbers of an n-gram rule: n, or 0 where a request has none; the window, in tokens; the state
in the tables whose token set may be repeated."""

WORD = 32
"""Bits of a word of a mask."""

_BAN_BIAS = tl.constexpr(BAN_BIAS)
_NGRAM_FIELDS = tl.constexpr(NGRAM_FIELDS)
_MAX_NGRAM = tl.constexpr(MAX_NGRAM)
_WORD = tl.constexpr(WORD)


def ban_ngrams(
    logits: torch.Tensor,
    history: History,
    rows: Rows,
    rules: torch.Tensor,
    tables: DeviceTables,
    vocab_size: int,
    longest: int,
) -> None:
    """Ban what would complete an n-gram which is there already.

    For each row, the part of its history that the rules' windows reach is read once, however many
    rules there are and whatever their n. A token is compared with the newest n - 1 ones only as far
    as some token of its block still agrees with them, which is at most ``MAX_NGRAM`` - 1
    comparisons without a further read.

    Args:
        logits: ``[rows, columns]``, columns next to each other.
        history: the engine's.
        rows: of this step.
        rules: ``[rules, NGRAM_FIELDS, requests]`` int32; a request's come first.
        tables: with the token sets that may be repeated.
        vocab_size: a prompt may have other tokens, such as images' placeholders: none is banned.
        longest: no history is longer, draft tokens included.
    """
    blocks = triton.cdiv(longest, NGRAM_TILE - MAX_NGRAM)
    with torch.cuda.device_of(logits):
        _ngram_kernel[(len(rows), blocks)](
            logits,
            logits.stride(0),
            highest_logit(logits.dtype),
            rows.requests,
            rows.drafts,
            rows.token_ids,
            history.token_ids,
            history.token_ids.stride(0),
            history.lengths,
            rules,
            len(rules),
            rules.shape[2],
            tables["argument"],
            tables["set_ends"],
            tables["set_tokens"],
            vocab_size,
            tile_size=NGRAM_TILE,
            num_warps=4,  # pyright: ignore[reportCallIssue]
        )


@triton.jit(do_not_specialize=["rules", "requests"], do_not_specialize_on_alignment=ROW_POINTERS)
def _ngram_kernel(
    logits_ptr,  # [rows, columns]; changed
    logits_stride,
    highest,  # no logit is higher
    requests_ptr,  # [rows] int32 or int64
    drafts_ptr,  # [rows] int32
    row_tokens_ptr,  # [rows] int32
    token_ids_ptr,  # [requests, longest] int32
    token_ids_stride,
    lengths_ptr,  # [requests] int32
    rules_ptr,  # [rules, _NGRAM_FIELDS, requests] int32
    rules,
    requests,
    argument_ptr,  # [table states] int32
    set_ends_ptr,  # [sets + 1] int32
    set_tokens_ptr,  # [set cells] int32
    vocab_size,
    tile_size: tl.constexpr,
):
    """Look at one tile of one row's history for all of the request's rules.

    The first tokens of a tile are those before its first candidate. Where several programs find the
    same token, all of them write the same: a ban upon a ban is left out.
    """
    row = tl.program_id(0)
    request = tl.load(requests_ptr + row).to(tl.int64)
    rule_ptr = rules_ptr + request
    drafts = tl.load(drafts_ptr + row)
    kept = tl.load(lengths_ptr + request)
    length = kept + drafts

    # How far the rules look: the first candidate of any, and the most tokens before one.
    reach = length
    longest = 0
    for i in range(rules):
        n = tl.load(rule_ptr + i * _NGRAM_FIELDS * requests)
        window = tl.load(rule_ptr + (i * _NGRAM_FIELDS + 1) * requests)
        first = tl.maximum(length - window, 0) + n - 1
        reach = tl.where(n > 0, tl.minimum(reach, first), reach)
        longest = tl.maximum(longest, n)
    start = tl.program_id(1) * (tile_size - _MAX_NGRAM)
    end = start + tile_size - _MAX_NGRAM
    if (end <= reach) | (start >= length):
        return

    tokens_ptr = token_ids_ptr + request * token_ids_stride
    drafts_ptr = row_tokens_ptr + row - drafts + 1 - kept  # so that positions go on
    lanes = tl.arange(0, tile_size)
    at = start - _MAX_NGRAM + lanes
    tokens = _tokens_at(tokens_ptr, drafts_ptr, at, kept, (at >= 0) & (at < length))
    matched = tl.zeros_like(lanes)  # how many tokens before one are the newest ones
    agrees = (at >= tl.maximum(start, reach)) & (at < length)
    alive = 1
    back = 1
    while (alive != 0) & (back < longest):
        newest_at = length - back
        newest = _tokens_at(tokens_ptr, drafts_ptr, newest_at, kept, newest_at >= 0)
        earlier = tl.gather(tokens, tl.maximum(lanes - back, 0), 0)
        agrees = agrees & (earlier == newest) & (at >= back)
        matched += agrees.to(tl.int32)
        alive = tl.max(agrees.to(tl.int32), axis=0)
        back += 1

    row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    candidate = (at >= start) & (at < length) & (tokens >= 0) & (tokens < vocab_size)
    forbidding = tl.zeros_like(lanes)
    for i in range(rules):
        n = tl.load(rule_ptr + i * _NGRAM_FIELDS * requests)
        window = tl.load(rule_ptr + (i * _NGRAM_FIELDS + 1) * requests)
        first = tl.maximum(length - window, 0) + n - 1
        of_rule = candidate & (n > 0) & (matched >= n - 1) & (at >= first)
        if tl.max(of_rule.to(tl.int32), axis=0) != 0:
            state = tl.load(rule_ptr + (i * _NGRAM_FIELDS + 2) * requests)
            token_set = tl.load(argument_ptr + state)
            lo = tl.load(set_ends_ptr + token_set)
            hi = tl.load(set_ends_ptr + token_set + 1)
            place = first_from(set_tokens_ptr, lo, hi, tokens)
            found = tl.load(set_tokens_ptr + place, mask=place < hi, other=-1)
            forbidding = tl.where(of_rule & (found != tokens), 1, forbidding)
    banned = forbidding != 0
    logits = tl.load(row_ptr + tokens, mask=banned, other=-float("inf"))
    banned = banned & (logits.to(tl.float32) > -highest / 2)
    ban = tl.maximum(tl.zeros_like(tokens).to(tl.float32) + _BAN_BIAS, -highest)
    tl.store(row_ptr + tokens, sum_as(logits, ban, logits_ptr.dtype.element_ty), mask=banned)


@triton.jit
def _tokens_at(tokens_ptr, drafts_ptr, at, kept, mask):
    """Tokens of a history that goes on with drafts."""
    committed = tl.load(tokens_ptr + at, mask=mask & (at < kept), other=-1)
    drafted = tl.load(drafts_ptr + at, mask=mask & (at >= kept), other=-1)
    return tl.where(at < kept, committed, drafted)


def mark_prompt(
    masks: torch.Tensor,
    bias: int,
    request: int,
    history: History,
    tables: DeviceTables,
    excluded_state: int,
) -> None:
    """Note which tokens a request's prompt has.

    Args:
        masks: ``[biases, requests, words]`` int32, one bit for each token of the vocabulary;
            ``[bias, request]`` is overwritten.
        bias: which of the request's.
        request: which of the history's.
        history: the engine's.
        tables: with the token set to leave out.
        excluded_state: the state whose token set that is.
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
            tables["argument"],
            excluded_state,
            tables["set_ends"],
            tables["set_tokens"],
            block_size=BLOCK_SIZE,
            num_warps=4,  # pyright: ignore[reportCallIssue]
        )


@triton.jit(do_not_specialize=["index", "request", "excluded_state"])
def _mark_kernel(
    masks_ptr,  # [masks, words] int32; one is written
    index,  # which
    words,
    token_ids_ptr,  # [requests, longest] int32
    token_ids_stride,
    prompt_lengths_ptr,  # [requests] int32
    request,
    argument_ptr,  # [table states] int32
    excluded_state,
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
    excluded = tl.load(argument_ptr + excluded_state)
    lo = tl.load(set_ends_ptr + excluded)
    hi = tl.load(set_ends_ptr + excluded + 1)
    length = tl.load(prompt_lengths_ptr + request)
    for start in range(0, length, block_size):
        at = start + offsets
        tokens = tl.load(tokens_ptr + at, mask=at < length, other=-1)
        place = first_from(set_tokens_ptr, lo, hi, tokens)
        left_out = tl.load(set_tokens_ptr + place, mask=place < hi, other=-1) == tokens
        # A prompt may have tokens beyond the vocabulary, such as images' placeholders.
        marked = (tokens >= 0) & (tokens < words * _WORD) & ~left_out
        bit = tl.full((block_size,), 1, tl.int32) << (tokens % _WORD)
        tl.atomic_or(mask_ptr + tokens // _WORD, bit, mask=marked, sem="relaxed")


def add_prompt_biases(
    logits: torch.Tensor, rows: Rows, biases: torch.Tensor, masks: torch.Tensor, vocab_size: int
) -> None:
    """Add to the tokens that the prompts have.

    Args:
        logits: ``[rows, columns]``, columns next to each other.
        rows: of this step.
        biases: ``[biases, requests]`` float32, 0 for none.
        masks: ``[biases, requests, words]`` int32, of ``mark_prompt``.
        vocab_size: columns that are tokens.
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
