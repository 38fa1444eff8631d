"""The Triton kernel that applies a step's edits to the logits, for all rows at once.

Token sets stay ascending lists: a program finds its part of a list by binary search. Bitmasks
would take a fixed, large amount of memory for each ALLOW, however short its list, and a client's
``choice`` may have thousands of ALLOWs.
"""

import torch
import triton
import triton.language as tl

from ..automaton import BAN_BIAS, Edit
from ..automaton.builder import MOST_MOVED
from ..tensors import highest_logit
from .pool import DevicePool
from .search import bounded_sum, contains, find

BLOCK_SIZE = 2048
"""The number of columns that one program masks in a row with an ALLOW."""
CHUNK_SIZE = 1024
"""The number of tokens of a list that are edited at once."""
WARPS = 8
"""Warps of a program. With these sizes, no register spills to memory (ptxas, compute 9.0)."""

_FORCE = tl.constexpr(int(Edit.FORCE))
_ALLOW = tl.constexpr(int(Edit.ALLOW))
_ADD = tl.constexpr(int(Edit.ADD))
_BAN_OTHERS = tl.constexpr(int(Edit.BAN_OTHERS))
_MOVE = tl.constexpr(int(Edit.MOVE))
_MOST_MOVED = tl.constexpr(MOST_MOVED)
_BAN_BIAS = tl.constexpr(BAN_BIAS)
# A row's progress is two numbers in one: how many of its programs have finished their block, and
# how many of these programs have found an allowed logit that is not -inf.
_POSSIBLE = tl.constexpr(1 << 20)


class EditKernel:
    """A launcher of the kernel, on the current stream of the logits' device."""

    def __init__(self, tables: DevicePool, device: torch.device) -> None:
        self._tables = tables
        self._progress = torch.zeros(0, dtype=torch.int64, device=device)

    def launch(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        starts: torch.Tensor,
        states: torch.Tensor,
        row_count: int,
        *,
        allows: bool,
    ) -> None:
        """Edit the logits, whose columns are contiguous, in place; see ``_edit_kernel``.

        ``row_count`` rows have automata; ``allows`` is whether any of their states may be an ALLOW
        or a BAN_OTHERS.
        """
        if row_count > len(self._progress):
            self._progress = self._progress.new_zeros(2 * row_count)
        # Without these, one program per row is enough.
        blocks = triton.cdiv(logits.shape[1], BLOCK_SIZE) if allows else 1
        with torch.cuda.device_of(logits):
            _edit_kernel[(row_count, blocks)](
                logits,
                logits.stride(0),
                logits.shape[1],
                highest_logit(logits.dtype),
                rows,
                starts,
                states,
                *self._tables.columns("edit", "operand", "set_ends", "set_tokens", "set_values"),
                self._progress,  # pyright: ignore[reportCallIssue]
                block_size=BLOCK_SIZE,
                chunk_size=CHUNK_SIZE,
                num_warps=WARPS,  # pyright: ignore[reportCallIssue]
            )


@triton.jit
def _edit_kernel(
    logits_ptr,  # [logits rows, columns] float32, float16 or bfloat16; changed
    logits_stride,  # elements from row to row
    columns,
    highest,  # the value of a forced logit; additions are clipped to it
    rows_ptr,  # [programs 0] int32, rows of the logits that have automata
    starts_ptr,  # [programs 0 + 1] int32, where each row's automata start
    states_ptr,  # [automata] int32, row by row, by rank
    edit_ptr,  # [table states] int8
    operand_ptr,  # [table states] int32
    set_ends_ptr,  # [sets + 1] int32, after a leading 0
    set_tokens_ptr,  # [set cells] int32, ascending within a set
    set_values_ptr,  # [set cells] float32
    progress_ptr,  # [programs 0] int64, 0 before and after
    block_size: tl.constexpr,
    chunk_size: tl.constexpr,
):
    """Edit one row, or one block of its columns if the row has an ALLOW or a BAN_OTHERS.

    No two programs edit one cell at the same time. In a row with several programs, the last one to
    finish its block makes the edits that need the whole row. A barrier is needed wherever a thread
    accesses cells that other threads of its program have written, or are going to write.
    """
    index = tl.program_id(0)
    block = tl.program_id(1)
    start = tl.load(starts_ptr + index)
    end = tl.load(starts_ptr + index + 1)
    row_ptr = logits_ptr + tl.load(rows_ptr + index).to(tl.int64) * logits_stride
    dtype: tl.constexpr = logits_ptr.dtype.element_ty

    forces, forced, strict, bans, moved = find_edits(states_ptr, edit_ptr, operand_ptr, start, end)
    if (strict < 0) & (bans == 0) & (block > 0):
        return
    first_column = block * block_size
    end_column = tl.minimum(first_column + block_size, columns)

    is_apart = (strict >= 0) | (bans > 0)  # each program has a block of its own
    add(
        row_ptr,
        states_ptr,
        edit_ptr,
        operand_ptr,
        set_ends_ptr,
        set_tokens_ptr,
        set_values_ptr,
        start,
        end,
        tl.where(is_apart, first_column, 0),
        tl.where(is_apart, end_column, columns),
        highest,
        chunk_size,
    )
    done = 1
    if strict >= 0:
        set_start = tl.load(set_ends_ptr + strict)
        set_end = tl.load(set_ends_ptr + strict + 1)
        lo = find(set_tokens_ptr, set_start, set_end, first_column)
        hi = find(set_tokens_ptr, lo, set_end, end_column)
        cells = lo + tl.arange(0, block_size)  # a block holds no more tokens than this
        tokens = tl.load(set_tokens_ptr + cells, mask=cells < hi, other=0)
        kept = tl.load(row_ptr + tokens, mask=cells < hi, other=-float("inf"))
        for i in range(start, end):  # a further ALLOW bans what it does not contain
            state = tl.load(states_ptr + i)
            token_set = tl.load(operand_ptr + state)
            edit = tl.load(edit_ptr + state).to(tl.int32)
            if ((edit == _ALLOW) & (token_set != strict)) | (edit == _BAN_OTHERS):
                kept = ban_others(
                    kept, tokens, set_ends_ptr, set_tokens_ptr, token_set, highest, dtype
                )
        best: tl.tensor = tl.max(kept.to(tl.float32), axis=0)  # pyright: ignore[reportAssignmentType]
        tl.debug_barrier()
        masked = first_column + tl.arange(0, block_size)
        tl.store(row_ptr + masked, -float("inf"), mask=masked < columns)
        tl.debug_barrier()
        tl.store(row_ptr + tokens, kept, mask=cells < hi)
        tl.debug_barrier()
        done = 1 + tl.where(best > -float("inf"), _POSSIBLE, 0)
    elif bans > 0:
        tokens = first_column + tl.arange(0, block_size)
        logits = tl.load(row_ptr + tokens, mask=tokens < columns, other=0.0)
        for i in range(start, end):
            state = tl.load(states_ptr + i)
            if tl.load(edit_ptr + state).to(tl.int32) == _BAN_OTHERS:
                token_set = tl.load(operand_ptr + state)
                logits = ban_others(
                    logits, tokens, set_ends_ptr, set_tokens_ptr, token_set, highest, dtype
                )
        tl.store(row_ptr + tokens, logits, mask=tokens < columns)
        tl.debug_barrier()
    finishes = 1
    if is_apart:
        progress = done + tl.atomic_add(progress_ptr + index, done, sem="acq_rel")
        finishes = (progress % _POSSIBLE == tl.num_programs(1)).to(tl.int32)
        if finishes != 0:
            tl.store(progress_ptr + index, 0)
            if (strict >= 0) & (progress < _POSSIBLE):  # all allowed tokens are masked: ban them
                revive(row_ptr, set_ends_ptr, set_tokens_ptr, strict, columns, highest, chunk_size)

    if (finishes != 0) & (forces > 0) & (forced < columns):
        tl.store(row_ptr + forced, highest)
    if (finishes != 0) & (moved >= 0):
        tl.debug_barrier()
        move(row_ptr, set_ends_ptr, set_tokens_ptr, set_values_ptr, moved, columns, highest)


@triton.jit
def find_edits(states_ptr, edit_ptr, operand_ptr, start, end):
    """Look through a row's states.

    Returns:
        The number of FORCEs, the first one's token, the token set of the first ALLOW, the number
        of BAN_OTHERS, and the token set of a MOVE.
    """
    forces = 0
    forced = -1
    strict = -1
    bans = 0
    moved = -1
    for i in range(start, end):
        state = tl.load(states_ptr + i)
        edit = tl.load(edit_ptr + state).to(tl.int32)
        operand = tl.load(operand_ptr + state)
        forced = tl.where((edit == _FORCE) & (forces == 0), operand, forced)
        forces += (edit == _FORCE).to(tl.int32)
        strict = tl.where((edit == _ALLOW) & (strict < 0), operand, strict)
        bans += (edit == _BAN_OTHERS).to(tl.int32)
        moved = tl.where(edit == _MOVE, operand, moved)
    return forces, forced, strict, bans, moved


@triton.jit
def add(
    row_ptr,
    states_ptr,
    edit_ptr,
    operand_ptr,
    set_ends_ptr,
    set_tokens_ptr,
    set_values_ptr,
    start,
    end,
    first_column,
    end_column,
    highest,
    chunk_size: tl.constexpr,
):
    """Apply the additions to some columns of a row, one automaton after the other.

    In a narrow type, raise logits first and lower them last, so that a ban holds whatever else is
    added.
    """
    dtype: tl.constexpr = row_ptr.dtype.element_ty
    narrow: tl.constexpr = dtype == tl.float16
    for lowers in tl.static_range(2 if narrow else 1):  # pyright: ignore[reportGeneralTypeIssues]
        for i in range(start, end):
            state = tl.load(states_ptr + i)
            if tl.load(edit_ptr + state).to(tl.int32) == _ADD:
                token_set = tl.load(operand_ptr + state)
                lo = tl.load(set_ends_ptr + token_set)
                hi = tl.load(set_ends_ptr + token_set + 1)
                lo = find(set_tokens_ptr, lo, hi, first_column)
                hi = find(set_tokens_ptr, lo, hi, end_column)
                for chunk in range(lo, hi, chunk_size):
                    cells = chunk + tl.arange(0, chunk_size)
                    mask = cells < hi
                    tokens = tl.load(set_tokens_ptr + cells, mask=mask, other=0)
                    values = tl.load(set_values_ptr + cells, mask=mask, other=0.0)
                    if narrow:
                        mask = mask & ((values < 0) == (lowers == 1))
                    logits = tl.load(row_ptr + tokens, mask=mask, other=0.0)
                    logits = bounded_sum(logits, values, highest, dtype)
                    tl.store(row_ptr + tokens, logits, mask=mask)
                tl.debug_barrier()


@triton.jit
def revive(
    row_ptr, set_ends_ptr, set_tokens_ptr, token_set, columns, highest, chunk_size: tl.constexpr
):
    """Ban the tokens of a set, which are masked."""
    end = tl.load(set_ends_ptr + token_set + 1)
    for chunk in range(tl.load(set_ends_ptr + token_set), end, chunk_size):
        cells = chunk + tl.arange(0, chunk_size)
        tokens = tl.load(set_tokens_ptr + cells, mask=cells < end, other=columns)
        tl.store(row_ptr + tokens, -highest, mask=tokens < columns)
    tl.debug_barrier()


@triton.jit
def move(row_ptr, set_ends_ptr, set_tokens_ptr, set_values_ptr, token_set, columns, highest):
    """Move the mass of tokens with the value 0 to the other, whose value is the temperature.

    See ``host.edit.move``.
    """
    dtype: tl.constexpr = row_ptr.dtype.element_ty
    cells = tl.load(set_ends_ptr + token_set) + tl.arange(0, _MOST_MOVED)
    is_cell = cells < tl.load(set_ends_ptr + token_set + 1)
    tokens = tl.load(set_tokens_ptr + cells, mask=is_cell, other=columns)
    values = tl.load(set_values_ptr + cells, mask=is_cell, other=0.0)
    before = tl.load(row_ptr + tokens, mask=tokens < columns, other=-float("inf"))
    is_end = values == 0.0
    logits = tl.where(is_end, before.to(tl.float32), -float("inf"))
    best: tl.tensor = tl.max(logits, axis=0)  # pyright: ignore[reportAssignmentType]
    temperature: tl.tensor = tl.max(values, axis=0)  # pyright: ignore[reportAssignmentType]
    gaps = tl.where(logits > -float("inf"), (logits - best) / temperature, -float("inf"))
    total = tl.maximum(tl.sum(tl.exp(gaps), axis=0), 1.0)  # the best logit is its unit
    mass = best + temperature * tl.log(total)
    ban = tl.zeros_like(values) + _BAN_BIAS
    banned = bounded_sum(before, ban, highest, dtype)
    after = tl.where(mass > -float("inf"), mass.to(dtype), banned)
    firsts = tl.where(is_end, -1, tokens)
    first: tl.tensor = tl.max(firsts, axis=0)  # pyright: ignore[reportAssignmentType]
    tl.debug_barrier()
    if (first >= 0) & (first < columns):
        after = tl.where(is_end, -float("inf"), after)
        tl.store(row_ptr + tokens, after, mask=tokens < columns)


@triton.jit
def ban_others(
    logits, tokens, set_ends_ptr, set_tokens_ptr, token_set, highest, dtype: tl.constexpr
):
    """Ban the tokens that a token set does not contain, given their logits."""
    ban = tl.zeros_like(tokens).to(tl.float32) + _BAN_BIAS
    is_kept = contains(set_ends_ptr, set_tokens_ptr, token_set, tokens)
    return tl.where(is_kept, logits, bounded_sum(logits, ban, highest, dtype))
