"""The Triton kernels of the history rules: they ban n-grams, and penalize repetitions.

A request's rules lie one below another: the first is its ``dry``, the others are n-gram rules.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from ....spec.kinds.dry import MAX_MATCH, MAX_MATCHES
from ..automaton import BAN_BIAS
from ..tensors import highest_logit
from . import search
from .context import ROW_POINTERS, History, LogitsLayout
from .inputs import RequestInputs
from .pool import DevicePool
from .search import bounded_sum, contains, locate, scan, sum_as, tokens_at

FIELDS = 5
"""The numbers of a rule: n - 1 or the allowed length, -1 without such a rule; how many newest
tokens count; the first position that counts; the set of tokens that may be repeated, or end a
match; and the phase."""

_FIELDS = tl.constexpr(FIELDS)
_BAN_BIAS = tl.constexpr(BAN_BIAS)
_MARGIN = tl.constexpr(search.MARGIN)
_MAX_MATCH = tl.constexpr(MAX_MATCH)
_MAX_MATCHES = tl.constexpr(MAX_MATCHES)


class HistoryKernels:
    """A launcher of the kernels, on the current stream, which also keeps their notes.

    One launch scans each tile of a row's history once, however many rules there are. It bans
    n-grams, and notes the last ``MAX_MATCHES`` positions that ``dry`` looks for. The other launch
    compares the tokens before the last ``MAX_MATCHES`` of a row: ``MAX_MATCH`` comparisons of as
    many tokens, whatever the history is.
    """

    def __init__(self, tables: DevicePool, inputs: RequestInputs, device: torch.device) -> None:
        self._tables, self._inputs = tables, inputs
        self._counts, self._found = torch.empty((2, 0), dtype=torch.int32, device=device)

    def launch(
        self,
        logits: torch.Tensor,
        history: History,
        rows: LogitsLayout,
        since: torch.Tensor | None,
        phases: int,
        rules: int,
        vocab_size: int,
        longest: int,
        *,
        penalizes: bool,
    ) -> None:
        """Edit the logits, whose columns are contiguous, in place.

        ``since`` is what ``AdvanceKernel`` returns, if it was launched. Of the rows' requests,
        ``phases`` and ``rules`` are the most that any has, with one rule for a ``dry``, and
        ``penalizes`` whether any has that. Tokens from ``vocab_size`` on, such as images'
        placeholders, are not edited. ``longest`` is that of the histories, drafts included.
        """
        tiles = search.count_tiles(longest)
        if len(rows) * tiles > len(self._counts):
            notes, new_empty = 2 * len(rows) * tiles, self._counts.new_empty
            self._counts, self._found = new_empty(notes), new_empty(notes * MAX_MATCHES)
        shared = (
            *(logits, logits.stride(0), highest_logit(logits.dtype)),
            *rows.arguments,
            *history.arguments,
            *(of_rules := self._inputs.columns("rules")),
            *(of_rules[0] if since is None else since, phases),
            self._inputs.requests,
            *self._tables.columns("set_ends", "set_tokens"),
            *(vocab_size, self._counts, self._found, tiles),
        )
        penalties = self._inputs.columns("penalties")
        scan_tiles: Any = _scan_kernel[(len(rows), tiles)]
        penalize: Any = _penalize_kernel[(len(rows),)]
        with torch.cuda.device_of(logits):
            scan_tiles(*shared, rules, tile_size=search.TILE, num_warps=4)
            if penalizes:
                penalize(*shared, *penalties, num_warps=4)


@triton.jit(
    do_not_specialize=["phases", "requests", "tiles", "rules"],
    do_not_specialize_on_alignment=ROW_POINTERS,
)
def _scan_kernel(
    logits_ptr,  # [rows, columns]; changed
    logits_stride,
    highest,  # no logit is higher
    requests_ptr,  # [rows] int32 or int64
    drafts_ptr,  # [rows] int32
    row_tokens_ptr,  # [rows] int32
    token_ids_ptr,  # [requests, longest] int32
    token_ids_stride,
    lengths_ptr,  # [requests] int32
    rules_ptr,  # [rules * FIELDS, requests] int32, see `FIELDS`
    since_ptr,  # [rows, phases] int32, see `steps.step`; not read for rules outside of phases
    phases,
    requests,
    set_ends_ptr,  # [sets + 1] int32, after a leading 0
    set_tokens_ptr,  # [set cells] int32, ascending within a set
    vocab_size,
    counts_ptr,  # [rows, tiles] int32; written: the number of the positions for `dry`
    found_ptr,  # [rows, tiles, _MAX_MATCHES] int32; written: the last of them, from the last on
    tiles,
    rules,
    tile_size: tl.constexpr,
):
    """Scan one tile of one row's history for all of the request's rules.

    If several programs find the same token, all of them write the same value, because a banned
    token is not banned again.
    """
    row = tl.program_id(0)
    tile = tl.program_id(1)
    note = row.to(tl.int64) * tiles + tile
    tl.store(counts_ptr + note, 0)
    request, tokens_ptr, drafted_ptr, kept, length = locate(
        requests_ptr, drafts_ptr, row_tokens_ptr, token_ids_ptr, token_ids_stride, lengths_ptr, row
    )
    reach = length  # the first candidate of any rule
    longest = 0
    for i in range(rules):
        rule_ptr = rules_ptr + i * _FIELDS * requests + request
        back, oldest = load_rule(rule_ptr, requests, since_ptr + row * phases, length)
        reach = tl.where(back >= 0, tl.minimum(reach, oldest + back), reach)
        longest = tl.maximum(longest, back)
    start = tile * (tile_size - _MARGIN)
    if (start + tile_size - _MARGIN <= reach) | (tl.maximum(start, reach) >= length):
        return

    at, tokens, matched, matters = scan(
        tokens_ptr, drafted_ptr, kept, length, reach, longest, tile, tile_size
    )
    matters = matters & (tokens < vocab_size)
    forbidding = tl.zeros_like(tokens)
    for i in range(rules):
        rule_ptr = rules_ptr + i * _FIELDS * requests + request
        back, oldest = load_rule(rule_ptr, requests, since_ptr + row * phases, length)
        follows = matters & (back >= 0) & (matched >= back) & (at >= oldest + back)
        if tl.max(follows.to(tl.int32), axis=0) != 0:
            exempt = tl.load(rule_ptr + 3 * requests)
            is_exempt = contains(set_ends_ptr, set_tokens_ptr, exempt, tokens)
            following = tl.where(is_exempt, 0, follows.to(tl.int32))
            if i > 0:
                forbidding = tl.maximum(forbidding, following)
            else:
                count = tl.sum(following, axis=0)
                later = count - tl.cumsum(following, axis=0)  # pyright: ignore[reportOperatorIssue]
                at_ptr = found_ptr + note * _MAX_MATCHES + later
                tl.store(at_ptr, at, mask=(following != 0) & (later < _MAX_MATCHES))
                tl.store(counts_ptr + note, count)
    banned = (forbidding != 0) & (tokens >= 0)
    row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    logits = tl.load(row_ptr + tokens, mask=banned, other=-float("inf"))
    banned = banned & (logits.to(tl.float32) > -highest / 2)
    ban = tl.maximum(tl.zeros_like(tokens).to(tl.float32) + _BAN_BIAS, -highest)
    tl.store(row_ptr + tokens, sum_as(logits, ban, logits_ptr.dtype.element_ty), mask=banned)


@triton.jit(
    do_not_specialize=["phases", "requests", "tiles"], do_not_specialize_on_alignment=ROW_POINTERS
)
def _penalize_kernel(
    logits_ptr,  # [rows, columns]; changed
    logits_stride,
    highest,  # no logit is higher
    requests_ptr,  # [rows] int32 or int64
    drafts_ptr,  # [rows] int32
    row_tokens_ptr,  # [rows] int32
    token_ids_ptr,  # [requests, longest] int32
    token_ids_stride,
    lengths_ptr,  # [requests] int32
    rules_ptr,  # [rules * FIELDS, requests] int32
    since_ptr,  # [rows, phases] int32
    phases,
    requests,
    set_ends_ptr,  # [sets + 1] int32
    set_tokens_ptr,  # [set cells] int32
    vocab_size,
    counts_ptr,  # [rows, tiles] int32, from `_scan_kernel`
    found_ptr,  # [rows, tiles, _MAX_MATCHES] int32, from `_scan_kernel`
    tiles,
    penalties_ptr,  # [1 + _MAX_MATCH, requests] float32, added after a match of each length
):
    """Penalize what followed the positions of one row, by the longest match of each token."""
    row = tl.program_id(0)
    index = tl.arange(0, _MAX_MATCHES)
    at = tl.zeros_like(index)
    found = 0
    tile = tiles - 1
    while (tile >= 0) & (found < _MAX_MATCHES):
        note = row.to(tl.int64) * tiles + tile
        count = tl.load(counts_ptr + note)
        mine = (index >= found) & (index < found + count)
        at_ptr = found_ptr + note * _MAX_MATCHES + index - found
        at = tl.where(mine, tl.load(at_ptr, mask=mine, other=0), at)
        found += count
        tile -= 1
    if found == 0:
        return
    request, tokens_ptr, drafted_ptr, kept, length = locate(
        requests_ptr, drafts_ptr, row_tokens_ptr, token_ids_ptr, token_ids_stride, lengths_ptr, row
    )
    rule_ptr = rules_ptr + request
    _, start = load_rule(rule_ptr, requests, since_ptr + row * phases, length)

    # A match ends after the last breaker.
    backs = tl.arange(0, _MAX_MATCH)
    newest_at = length - 1 - backs
    newest = tokens_at(tokens_ptr, drafted_ptr, newest_at, kept, newest_at >= 0)
    breakers = tl.load(rule_ptr + 3 * requests)
    is_break = (newest_at >= 0) & contains(set_ends_ptr, set_tokens_ptr, breakers, newest)
    longest = tl.min(tl.where(is_break, backs, _MAX_MATCH), axis=0)

    agrees = index < found
    tokens = tl.where(agrees, tokens_at(tokens_ptr, drafted_ptr, at, kept, agrees), -1)
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
    dtype: tl.constexpr = logits_ptr.dtype.element_ty
    tl.store(cell_ptr, bounded_sum(logits, value, highest, dtype), mask=written)


@triton.jit
def load_rule(rule_ptr, requests, since_ptr, length):
    """Return how many tokens a rule compares, -1 if it does not act; and the first that counts."""
    phase = tl.load(rule_ptr + 4 * requests)
    since = tl.load(since_ptr + phase, mask=phase > 0, other=0)
    origin = tl.maximum(tl.load(rule_ptr + 2 * requests), since)
    back = tl.where(since < 0, -1, tl.load(rule_ptr))
    return back, tl.maximum(length - tl.load(rule_ptr + requests), origin)
