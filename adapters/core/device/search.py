"""What the kernels share: they search token sets and histories, and add to logits."""

import triton
import triton.language as tl

from ....spec.kinds.dry import MAX_MATCH
from ....spec.limits import MAX_PATTERN
from ..logits import FORCED_SHARE, HIGHEST_SHARE

MARGIN = max(MAX_MATCH, MAX_PATTERN)
"""The number of tokens that may be compared before a position."""
TILE = 2048
"""The tokens of a history that one program scans: candidates, and ``MARGIN`` before the first."""

_MARGIN = tl.constexpr(MARGIN)
_FORCED_SHARE = tl.constexpr(FORCED_SHARE)
_HIGHEST_SHARE = tl.constexpr(HIGHEST_SHARE)


def count_tiles(length: int) -> int:
    """Count the programs that scan a history of so many tokens."""
    return triton.cdiv(length, TILE - MARGIN)


@triton.jit
def find(set_tokens_ptr, first, end, wanted):
    """Find the index in ``[first, end)`` of the first token >= ``wanted``, or ``end``."""
    at = tl.zeros_like(wanted) + first
    left = end - first
    while left > 0:
        half = (left + 1) // 2
        at += tl.where(tl.load(set_tokens_ptr + at + half - 1) < wanted, half, 0)
        left -= half
    return at


@triton.jit
def contains(set_ends_ptr, set_tokens_ptr, token_set, wanted):
    """Return which tokens a token set contains."""
    end = tl.load(set_ends_ptr + token_set + 1)
    at = find(set_tokens_ptr, tl.load(set_ends_ptr + token_set), end, wanted)
    return tl.load(set_tokens_ptr + at, mask=at < end, other=-1) == wanted


@triton.jit
def tokens_at(tokens_ptr, drafts_ptr, at, kept, mask):
    """Load tokens of a history and the drafts that follow its ``kept`` tokens."""
    committed = tl.load(tokens_ptr + at, mask=mask & (at < kept), other=-1)
    drafted = tl.load(drafts_ptr + at, mask=mask & (at >= kept), other=-1)
    return tl.where(at < kept, committed, drafted)


@triton.jit
def locate(
    requests_ptr, drafts_ptr, row_tokens_ptr, token_ids_ptr, token_ids_stride, lengths_ptr, row
):
    """Find a row's history.

    Returns:
        The request, its tokens, the drafts with the same index, the number of tokens without
        drafts, and with those before the row.
    """
    request = tl.load(requests_ptr + row).to(tl.int64)
    drafts = tl.load(drafts_ptr + row)
    kept = tl.load(lengths_ptr + request)
    first_draft_ptr = row_tokens_ptr + row - drafts + 1
    tokens_ptr = token_ids_ptr + request * token_ids_stride
    return request, tokens_ptr, first_draft_ptr - kept, kept, kept + drafts


@triton.jit
def scan(tokens_ptr, drafts_ptr, kept, length, first, back, tile, tile_size: tl.constexpr):
    """Count how many of the newest tokens, at most ``back``, stand before each position of a tile.

    Comparing stops when no position agrees any longer. It does not read the tile again.

    The first ``kept`` tokens of the history are in ``tokens_ptr``, the others, with the same index,
    in ``drafts_ptr``. ``first`` is the first position that matters.

    Returns:
        The positions, their tokens, the counts, and whether a position matters.
    """
    start = tile * (tile_size - _MARGIN)
    lanes = tl.arange(0, tile_size)
    at = start - _MARGIN + lanes
    tokens = tokens_at(tokens_ptr, drafts_ptr, at, kept, (at >= 0) & (at < length))
    matters = (at >= tl.maximum(start, first)) & (at < length)
    agrees = matters
    matched = tl.zeros_like(lanes)
    alive = 1
    behind = 1
    while (alive != 0) & (behind <= back):
        newest = tokens_at(tokens_ptr, drafts_ptr, length - behind, kept, behind <= length)
        earlier = tl.gather(tokens, tl.maximum(lanes - behind, 0), 0)
        agrees = agrees & (earlier == newest) & (at >= behind)
        matched += agrees.to(tl.int32)
        alive = tl.max(agrees.to(tl.int32), axis=0)
        behind += 1
    return at, tokens, matched, matters


@triton.jit
def bounded_sum(logits, values, highest, dtype: tl.constexpr):
    """Add, with sums that a narrow type can hold between the limits of bans and forced logits."""
    if dtype == tl.float16:
        sums = logits.to(tl.float32) + values
        is_forced = (logits > _FORCED_SHARE * highest) & (sums > 0) & (sums < float("inf"))
        sums = tl.clamp(sums, -highest, _HIGHEST_SHARE * highest)
        sums = tl.where(is_forced, highest, sums)
        return tl.where(logits == -float("inf"), logits, sums.to(dtype))
    return sum_as(logits, tl.clamp(values, -highest, highest), dtype)


@triton.jit
def sum_as(logits, values, dtype: tl.constexpr):
    """Round the values to the logits' type and add in float32, as torch does."""
    return (logits.to(tl.float32) + values.to(dtype).to(tl.float32)).to(dtype)
