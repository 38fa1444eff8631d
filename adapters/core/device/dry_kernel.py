"""The Triton kernels that penalize the tokens that would continue a repetition."""

import torch
import triton
import triton.language as tl

from ....spec.kinds.dry import MAX_MATCH, MAX_MATCHES
from ..logits import highest_logit
from .advance_kernel import ROW_POINTERS, History, LogitsLayout
from .edit_kernel import bounded_sum, is_among
from .ngram_kernel import tokens_at
from .pool import DevicePool

DRY_TILE = 2048
"""The tokens of a history that one program loads: candidates, and ``MAX_MATCH`` before them."""

DRY_FIELDS = 3
"""The numbers of a rule: the allowed length, or 0 if a request has no such rule; the range, in
tokens; the state in the tables whose token set are the breakers."""

_DRY_FIELDS = tl.constexpr(DRY_FIELDS)
_MAX_MATCH = tl.constexpr(MAX_MATCH)
_MAX_MATCHES = tl.constexpr(MAX_MATCHES)


class DryKernel:
    """A launcher of the kernels, on the current stream, which also keeps their notes.

    One launch counts the occurrences of the newest tokens in each tile of the histories. The next
    one writes down the last ``MAX_MATCHES`` of a row. The third one compares the tokens before
    them: ``MAX_MATCH`` comparisons of as many tokens, whatever the history is.
    """

    def __init__(self, tables: DevicePool, device: torch.device) -> None:
        self._tables = tables
        self._counts, self._found = torch.empty((2, 0), dtype=torch.int32, device=device)

    def launch(
        self,
        logits: torch.Tensor,
        history: History,
        rows: LogitsLayout,
        rules: torch.Tensor,
        penalties: torch.Tensor,
        vocab_size: int,
        longest: int,
    ) -> None:
        """Penalize the tokens that would continue a repetition.

        The columns of the logits are contiguous. ``rules`` are ``[DRY_FIELDS, requests]`` int32;
        ``penalties`` are ``[1 + MAX_MATCH, requests]`` float32, added after a match of each length.
        Tokens beyond ``vocab_size`` are not penalized. ``longest`` is the greatest length of a
        history, draft tokens included.
        """
        tiles = triton.cdiv(longest, DRY_TILE - MAX_MATCH)
        if len(rows) * tiles > len(self._counts):
            self._counts = self._counts.new_empty(2 * len(rows) * tiles)
        if len(rows) * MAX_MATCHES > len(self._found):
            self._found = self._found.new_empty(2 * len(rows) * MAX_MATCHES)
        shared = (
            self._found,
            self._counts,
            tiles,
            rows.requests,
            rows.drafts,
            rows.token_ids,
            history.token_ids,
            history.token_ids.stride(0),
            history.lengths,
            rules,
            rules.shape[1],
            *self._tables.columns("operand", "set_ends", "set_tokens"),
            vocab_size,
        )
        with torch.cuda.device_of(logits):
            for places in (False, True):
                _find_kernel[(len(rows), tiles)](
                    *shared,
                    places=places,  # pyright: ignore[reportCallIssue]
                    tile_size=DRY_TILE,
                    num_warps=4,  # pyright: ignore[reportCallIssue]
                )
            _penalize_kernel[(len(rows),)](
                logits,
                logits.stride(0),
                highest_logit(logits.dtype),
                penalties,
                *shared,
                num_warps=4,  # pyright: ignore[reportCallIssue]
            )


@triton.jit
def _is_breaker(rule_ptr, requests, operand_ptr, set_ends_ptr, set_tokens_ptr, tokens):
    """Return whether tokens are breakers of a rule."""
    breakers = tl.load(operand_ptr + tl.load(rule_ptr + 2 * requests))
    start = tl.load(set_ends_ptr + breakers)
    end = tl.load(set_ends_ptr + breakers + 1)
    return is_among(set_tokens_ptr, start, end, tokens)


@triton.jit(do_not_specialize=["tiles", "requests"], do_not_specialize_on_alignment=ROW_POINTERS)
def _find_kernel(
    found_ptr,  # [rows, _MAX_MATCHES] int32; written if `places`: positions, the last one first
    counts_ptr,  # [rows, tiles] int32; written if not `places`
    tiles,
    requests_ptr,  # [rows] int32 or int64
    drafts_ptr,  # [rows] int32
    row_tokens_ptr,  # [rows] int32
    token_ids_ptr,  # [requests, longest] int32
    token_ids_stride,
    lengths_ptr,  # [requests] int32
    rules_ptr,  # [_DRY_FIELDS, requests] int32
    requests,
    operand_ptr,  # [table states] int32
    set_ends_ptr,  # [sets + 1] int32
    set_tokens_ptr,  # [set cells] int32
    vocab_size,
    places: tl.constexpr,
    tile_size: tl.constexpr,
):
    """Find the positions after the newest tokens in one tile of one row's history."""
    row = tl.program_id(0)
    tile = tl.program_id(1)
    count_ptr = counts_ptr + row.to(tl.int64) * tiles
    later = 0
    if places:
        if tl.load(count_ptr + tile) == 0:
            return
        for i in range(tile + 1, tiles):
            later += tl.load(count_ptr + i)
        if later >= _MAX_MATCHES:
            return
    request = tl.load(requests_ptr + row).to(tl.int64)
    allowed = tl.load(rules_ptr + request)
    window = tl.load(rules_ptr + requests + request)
    drafts = tl.load(drafts_ptr + row)
    kept = tl.load(lengths_ptr + request)
    length = kept + drafts
    first = tl.maximum(length - window, 0) + allowed
    start = tile * (tile_size - _MAX_MATCH)
    end = start + tile_size - _MAX_MATCH
    if (allowed == 0) | (end <= first) | (start >= length):
        tl.store(count_ptr + tile, 0)
        return

    tokens_ptr = token_ids_ptr + request * token_ids_stride
    drafted_ptr = row_tokens_ptr + row - drafts + 1 - kept  # so that drafts continue the positions
    lanes = tl.arange(0, tile_size)
    at = start - _MAX_MATCH + lanes
    tokens = tokens_at(tokens_ptr, drafted_ptr, at, kept, (at >= 0) & (at < length))
    agrees = (at >= tl.maximum(start, first)) & (at < length) & (tokens < vocab_size)
    alive = 1
    back = 1
    while (alive != 0) & (back <= allowed):
        newest = tokens_at(tokens_ptr, drafted_ptr, length - back, kept, True)
        agrees = agrees & (tl.gather(tokens, tl.maximum(lanes - back, 0), 0) == newest)
        alive = tl.max(agrees.to(tl.int32), axis=0)
        back += 1
    if alive != 0:
        agrees = agrees & ~_is_breaker(
            rules_ptr + request, requests, operand_ptr, set_ends_ptr, set_tokens_ptr, tokens
        )
    agreeing = agrees.to(tl.int32)
    count = tl.sum(agreeing, axis=0)
    if places:
        slot = later + count - tl.cumsum(agreeing, axis=0)  # pyright: ignore[reportOperatorIssue]
        place_ptr = found_ptr + row.to(tl.int64) * _MAX_MATCHES + slot
        tl.store(place_ptr, at, mask=agrees & (slot < _MAX_MATCHES))
    else:
        tl.store(count_ptr + tile, count)


@triton.jit(do_not_specialize=["tiles", "requests"], do_not_specialize_on_alignment=ROW_POINTERS)
def _penalize_kernel(
    logits_ptr,  # [rows, columns]; changed
    logits_stride,
    highest,  # no logit is higher
    penalties_ptr,  # [1 + _MAX_MATCH, requests] float32
    found_ptr,  # [rows, _MAX_MATCHES] int32
    counts_ptr,  # [rows, tiles] int32
    tiles,
    requests_ptr,  # [rows] int32 or int64
    drafts_ptr,  # [rows] int32
    row_tokens_ptr,  # [rows] int32
    token_ids_ptr,  # [requests, longest] int32
    token_ids_stride,
    lengths_ptr,  # [requests] int32
    rules_ptr,  # [_DRY_FIELDS, requests] int32
    requests,
    operand_ptr,  # [table states] int32
    set_ends_ptr,  # [sets + 1] int32
    set_tokens_ptr,  # [set cells] int32
    vocab_size,
):
    """Penalize what followed the positions of one row, by the longest match of each token."""
    row = tl.program_id(0)
    count = 0
    for i in range(tiles):
        count += tl.load(counts_ptr + row.to(tl.int64) * tiles + i)
    if count == 0:
        return
    request = tl.load(requests_ptr + row).to(tl.int64)
    window = tl.load(rules_ptr + requests + request)
    drafts = tl.load(drafts_ptr + row)
    kept = tl.load(lengths_ptr + request)
    length = kept + drafts
    start = tl.maximum(length - window, 0)
    tokens_ptr = token_ids_ptr + request * token_ids_stride
    drafted_ptr = row_tokens_ptr + row - drafts + 1 - kept

    # A match ends after the last breaker.
    backs = tl.arange(0, _MAX_MATCH)
    at = length - 1 - backs
    newest = tokens_at(tokens_ptr, drafted_ptr, at, kept, at >= 0)
    is_break = (at >= 0) & _is_breaker(
        rules_ptr + request, requests, operand_ptr, set_ends_ptr, set_tokens_ptr, newest
    )
    longest = tl.min(tl.where(is_break, backs, _MAX_MATCH), axis=0)

    index = tl.arange(0, _MAX_MATCHES)
    agrees = index < count
    at = tl.load(found_ptr + row.to(tl.int64) * _MAX_MATCHES + index, mask=agrees, other=0)
    tokens = tokens_at(tokens_ptr, drafted_ptr, at, kept, agrees)
    tokens = tl.where(agrees, tokens, -1)
    matched = tl.zeros_like(index)
    alive = 1
    back = 1
    while (alive != 0) & (back <= longest):  # pyright: ignore[reportOperatorIssue]
        agrees = agrees & (at - back >= start)
        earlier = tokens_at(tokens_ptr, drafted_ptr, at - back, kept, agrees)
        newest_one = tokens_at(tokens_ptr, drafted_ptr, length - back, kept, True)
        agrees = agrees & (earlier == newest_one)
        matched += agrees.to(tl.int32)
        alive = tl.max(agrees.to(tl.int32), axis=0)
        back += 1

    # Of equal tokens, the first one in the list gets the longest match.
    same = tokens[:, None] == tokens[None, :]
    matched = tl.max(tl.where(same, matched[None, :], 0), axis=1)
    is_first = tl.min(tl.where(same, index[None, :], _MAX_MATCHES), axis=1) == index
    value = tl.load(penalties_ptr + matched * requests + request)
    written = is_first & (tokens >= 0) & (value != 0)
    cell_ptr = logits_ptr + row.to(tl.int64) * logits_stride + tokens
    logits = tl.load(cell_ptr, mask=written, other=0.0)
    tl.store(
        cell_ptr, bounded_sum(logits, value, highest, logits_ptr.dtype.element_ty), mask=written
    )
