"""The Triton kernel that bans the tokens that would repeat an n-gram."""

import torch
import triton
import triton.language as tl

from ....spec.limits import MAX_NGRAM
from ..automaton import BAN_BIAS
from ..logits import highest_logit
from .advance_kernel import ROW_POINTERS, History, LogitsLayout
from .edit_kernel import is_among, sum_as
from .pool import DevicePool

NGRAM_TILE = 2048
"""The tokens of a history that one program loads: candidates, and ``MAX_NGRAM`` before them."""

NGRAM_FIELDS = 4
"""The numbers of an n-gram rule: n, or 0 if a request has no such rule; the window, in tokens; the
state in the tables whose token set may be repeated; 1 if only the output counts, else 0."""

_BAN_BIAS = tl.constexpr(BAN_BIAS)
_NGRAM_FIELDS = tl.constexpr(NGRAM_FIELDS)
_MAX_NGRAM = tl.constexpr(MAX_NGRAM)


def ban_ngrams(
    logits: torch.Tensor,
    history: History,
    rows: LogitsLayout,
    rules: torch.Tensor,
    tables: DevicePool,
    vocab_size: int,
    longest: int,
) -> None:
    """Ban the tokens that would repeat an n-gram.

    Each row reads the part of its history within the rules' windows once, however many rules there
    are and whatever their n. The comparison with the newest n - 1 tokens stops when no candidate of
    a tile agrees any longer. It takes at most ``MAX_NGRAM`` - 1 comparisons, without further reads
    of the tile.

    The columns of the logits are contiguous. ``rules`` are ``[rules, NGRAM_FIELDS, requests]``
    int32; unused rules come last. Tokens beyond ``vocab_size``, such as images' placeholders, are
    not banned. ``longest`` is the greatest length of a history, draft tokens included.
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
            history.prompt_lengths,
            history.lengths,
            rules,
            len(rules),
            rules.shape[2],
            *tables.columns("operand", "set_ends", "set_tokens"),
            vocab_size,  # pyright: ignore[reportCallIssue]
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
    prompt_lengths_ptr,  # [requests] int32
    lengths_ptr,  # [requests] int32
    rules_ptr,  # [rules, _NGRAM_FIELDS, requests] int32
    rules,
    requests,
    operand_ptr,  # [table states] int32
    set_ends_ptr,  # [sets + 1] int32
    set_tokens_ptr,  # [set cells] int32
    vocab_size,
    tile_size: tl.constexpr,
):
    """Read one tile of one row's history for all of the request's rules.

    A tile begins with the tokens before its first candidate. If several programs find the same
    token, all of them write the same value, because a banned token is not banned again.
    """
    row = tl.program_id(0)
    request = tl.load(requests_ptr + row).to(tl.int64)
    rule_ptr = rules_ptr + request
    drafts = tl.load(drafts_ptr + row)
    kept = tl.load(lengths_ptr + request)
    length = kept + drafts
    prompt = tl.load(prompt_lengths_ptr + request)

    # The rules' reach: the first candidate of any rule, and the largest n.
    reach = length
    longest = 0
    for i in range(rules):
        n = tl.load(rule_ptr + i * _NGRAM_FIELDS * requests)
        window = tl.load(rule_ptr + (i * _NGRAM_FIELDS + 1) * requests)
        output_only = tl.load(rule_ptr + (i * _NGRAM_FIELDS + 3) * requests)
        first = tl.maximum(length - window, output_only * prompt) + n - 1
        reach = tl.where(n > 0, tl.minimum(reach, first), reach)
        longest = tl.maximum(longest, n)
    start = tl.program_id(1) * (tile_size - _MAX_NGRAM)
    end = start + tile_size - _MAX_NGRAM
    if (end <= reach) | (start >= length):
        return

    tokens_ptr = token_ids_ptr + request * token_ids_stride
    drafts_ptr = row_tokens_ptr + row - drafts + 1 - kept  # so that drafts continue the positions
    lanes = tl.arange(0, tile_size)
    at = start - _MAX_NGRAM + lanes
    tokens = tokens_at(tokens_ptr, drafts_ptr, at, kept, (at >= 0) & (at < length))
    matched = tl.zeros_like(lanes)  # how many tokens before each candidate match
    agrees = (at >= tl.maximum(start, reach)) & (at < length)
    alive = 1
    back = 1
    while (alive != 0) & (back < longest):
        newest_at = length - back
        newest = tokens_at(tokens_ptr, drafts_ptr, newest_at, kept, newest_at >= 0)
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
        output_only = tl.load(rule_ptr + (i * _NGRAM_FIELDS + 3) * requests)
        first = tl.maximum(length - window, output_only * prompt) + n - 1
        of_rule = candidate & (n > 0) & (matched >= n - 1) & (at >= first)
        if tl.max(of_rule.to(tl.int32), axis=0) != 0:
            state = tl.load(rule_ptr + (i * _NGRAM_FIELDS + 2) * requests)
            token_set = tl.load(operand_ptr + state)
            lo = tl.load(set_ends_ptr + token_set)
            hi = tl.load(set_ends_ptr + token_set + 1)
            may_repeat = is_among(set_tokens_ptr, lo, hi, tokens)
            forbidding = tl.where(of_rule & ~may_repeat, 1, forbidding)
    banned = forbidding != 0
    logits = tl.load(row_ptr + tokens, mask=banned, other=-float("inf"))
    banned = banned & (logits.to(tl.float32) > -highest / 2)
    ban = tl.maximum(tl.zeros_like(tokens).to(tl.float32) + _BAN_BIAS, -highest)
    tl.store(row_ptr + tokens, sum_as(logits, ban, logits_ptr.dtype.element_ty), mask=banned)


@triton.jit
def tokens_at(tokens_ptr, drafts_ptr, at, kept, mask):
    """Load tokens of a history and the drafts that follow it."""
    committed = tl.load(tokens_ptr + at, mask=mask & (at < kept), other=-1)
    drafted = tl.load(drafts_ptr + at, mask=mask & (at >= kept), other=-1)
    return tl.where(at < kept, committed, drafted)
