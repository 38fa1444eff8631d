"""The Triton kernel that applies a step's edits to the logits, for all rows at once.

Token sets stay the ascending lists that they are: a program finds its part of one by binary
search. Bitmasks would take a fixed, large amount of memory for each ALLOW, however short its
list, and a ``choice`` of a client may have thousands of them.
"""

import torch
import triton
import triton.language as tl

from .automaton import BAN_BIAS, Edit
from .device_tables import DeviceTables
from .torch_editor import HIGHEST_SHARE, highest_logit

BLOCK_SIZE = 2048
"""Columns of a row that one program masks where there is an ALLOW."""
CHUNK_SIZE = 1024
"""Tokens of a list that are edited at once."""
WARPS = 8
"""Of a program. With these sizes, no register spills to memory (ptxas, for compute 9.0)."""

_FORCE = tl.constexpr(int(Edit.FORCE))
_ALLOW = tl.constexpr(int(Edit.ALLOW))
_ADD = tl.constexpr(int(Edit.ADD))
_BAN_BIAS = tl.constexpr(BAN_BIAS)
_HIGHEST_SHARE = tl.constexpr(HIGHEST_SHARE)
# A row's progress is three numbers in one: how many of its programs are done with their block, and
# how many of those have seen an allowed logit that is not -inf, and one that is not banned either.
_POSSIBLE = tl.constexpr(1 << 20)
_GOOD = tl.constexpr(1 << 40)


class EditKernel:
    """Launches the kernel, on the current stream.

    Args:
        tables: the device's copy of the automata.
        device: of the logits.
    """

    def __init__(self, tables: DeviceTables, device: torch.device) -> None:
        self._tables = tables
        self._progress = torch.zeros(0, dtype=torch.int64, device=device)
        self._overruled = torch.zeros(0, dtype=torch.int64, device=device)

    def overruled(self) -> int:
        """How many edits lost to others that contradicted them, counted anew at each launch.

        Waits for the device.
        """
        return int(self._overruled.sum())

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
        """Edit the logits in place.

        Args:
            logits: ``[rows, columns]`` float32, float16 or bfloat16, columns next to each other.
            rows: ``[row_count]`` int32, the rows that have automata.
            starts: ``[row_count + 1]`` int32, where the automata of each of them start.
            states: ``[automata]`` int32, in the tables; row by row, by rank.
            row_count: how many rows have automata.
            allows: whether any of the states may be an ALLOW.
        """
        if row_count > len(self._progress):
            self._progress = self._progress.new_zeros(2 * row_count)
        if not len(self._overruled):
            self._overruled = self._overruled.new_zeros(1)
        # Without an ALLOW, one program per row does all there is to do.
        blocks = triton.cdiv(logits.shape[1], BLOCK_SIZE) if allows else 1
        tables = self._tables
        with torch.cuda.device_of(logits):
            _edit_kernel[(row_count, blocks)](
                logits,
                logits.stride(0),
                logits.shape[1],
                highest_logit(logits.dtype),
                rows,
                starts,
                states,
                tables["edit"],
                tables["argument"],
                tables["set_ends"],
                tables["set_tokens"],
                tables["set_values"],
                self._progress,
                self._overruled,
                block_size=BLOCK_SIZE,
                chunk_size=CHUNK_SIZE,
                num_warps=WARPS,  # pyright: ignore[reportCallIssue]
            )


@triton.jit
def _edit_kernel(
    logits_ptr,  # [logits rows, columns] float32, float16 or bfloat16; changed
    logits_stride,  # elements from row to row
    columns,
    highest,  # what a forced logit is raised to; what is added is clipped to it
    rows_ptr,  # [programs 0] int32, rows of the logits that have automata
    starts_ptr,  # [programs 0 + 1] int32, where each row's automata start
    states_ptr,  # [automata] int32, row by row, by rank
    edit_ptr,  # [table states] int8
    argument_ptr,  # [table states] int32
    set_ends_ptr,  # [sets + 1] int32, after a leading 0
    set_tokens_ptr,  # [set cells] int32, ascending within a set
    set_values_ptr,  # [set cells] float32
    progress_ptr,  # [programs 0] int64, 0 before and after
    overruled_ptr,  # [1] int64, added to
    block_size: tl.constexpr,
    chunk_size: tl.constexpr,
):
    """Edit one row, or one block of its columns if it has an ALLOW.

    No two programs edit one cell at the same time. Of the programs of a row that has an ALLOW, the
    last one to be done with its block does what needs the whole row. Barriers stand where a
    program's threads meet at cells that other ones of them have written, or will.
    """
    index = tl.program_id(0)
    block = tl.program_id(1)
    start = tl.load(starts_ptr + index)
    end = tl.load(starts_ptr + index + 1)
    row_ptr = logits_ptr + tl.load(rows_ptr + index).to(tl.int64) * logits_stride
    dtype: tl.constexpr = logits_ptr.dtype.element_ty

    forces = 0
    forced = -1  # the first one's token
    strict = -1  # the first ALLOW's token set
    contests = 0
    for i in range(start, end):
        state = tl.load(states_ptr + i)
        edit = tl.load(edit_ptr + state).to(tl.int32)
        argument = tl.load(argument_ptr + state)
        forced = tl.where((edit == _FORCE) & (forces == 0), argument, forced)
        forces += (edit == _FORCE).to(tl.int32)
        strict = tl.where((edit == _ALLOW) & (strict < 0), argument, strict)
        contests += (edit >= _ALLOW).to(tl.int32)
    if (strict < 0) & (block > 0):
        return
    first_column = block * block_size
    end_column = tl.minimum(first_column + block_size, columns)

    # What is added, each automaton's after the other's. In a narrow type, what raises logits comes
    # before what lowers them, so that a ban is one whatever else is added.
    narrow: tl.constexpr = dtype == tl.float16
    for lowers in tl.static_range(2 if narrow else 1):  # pyright: ignore[reportGeneralTypeIssues]
        for i in range(start, end):
            state = tl.load(states_ptr + i)
            if tl.load(edit_ptr + state).to(tl.int32) == _ADD:
                token_set = tl.load(argument_ptr + state)
                lo = tl.load(set_ends_ptr + token_set)
                hi = tl.load(set_ends_ptr + token_set + 1)
                if strict >= 0:
                    lo = first_from(set_tokens_ptr, lo, hi, first_column)
                    hi = first_from(set_tokens_ptr, lo, hi, end_column)
                for chunk in range(lo, hi, chunk_size):
                    cells = chunk + tl.arange(0, chunk_size)
                    tokens = tl.load(set_tokens_ptr + cells, mask=cells < hi, other=columns)
                    mask = tokens < columns
                    values = tl.load(set_values_ptr + cells, mask=mask, other=0.0)
                    if narrow:
                        mask = mask & ((values < 0) == (lowers == 1))
                    logits = tl.load(row_ptr + tokens, mask=mask, other=0.0)
                    logits = bounded_sum(logits, values, highest, dtype)
                    tl.store(row_ptr + tokens, logits, mask=mask)
                tl.debug_barrier()

    finishes = 1
    overruled = tl.full((), 0, tl.int64)
    if strict >= 0:
        set_start = tl.load(set_ends_ptr + strict)
        set_end = tl.load(set_ends_ptr + strict + 1)
        lo = first_from(set_tokens_ptr, set_start, set_end, first_column)
        hi = first_from(set_tokens_ptr, lo, set_end, end_column)
        cells = lo + tl.arange(0, block_size)  # no more than that can be in the block
        tokens = tl.load(set_tokens_ptr + cells, mask=cells < hi, other=0)
        kept = tl.load(row_ptr + tokens, mask=cells < hi, other=-float("inf"))
        for i in range(start, end):  # a further ALLOW bans what it does not contain
            state = tl.load(states_ptr + i)
            token_set = tl.load(argument_ptr + state)
            is_allow = tl.load(edit_ptr + state).to(tl.int32) == _ALLOW
            if is_allow & (token_set != strict):
                other_start = tl.load(set_ends_ptr + token_set)
                other_end = tl.load(set_ends_ptr + token_set + 1)
                place = first_from(set_tokens_ptr, other_start, other_end, tokens)
                found = tl.load(set_tokens_ptr + place, mask=place < other_end, other=-1)
                ban = tl.zeros_like(tokens).to(tl.float32) + _BAN_BIAS
                kept = tl.where(found == tokens, kept, bounded_sum(kept, ban, highest, dtype))
        best: tl.tensor = tl.max(kept.to(tl.float32), axis=0)  # pyright: ignore[reportAssignmentType]
        tl.debug_barrier()
        masked = first_column + tl.arange(0, block_size)
        tl.store(row_ptr + masked, -float("inf"), mask=masked < columns)
        tl.debug_barrier()
        tl.store(row_ptr + tokens, kept, mask=cells < hi)
        tl.debug_barrier()
        done = 1 + tl.where(best > -float("inf"), _POSSIBLE, 0)
        done += tl.where(best >= -highest / 2, _GOOD, 0)
        progress = done + tl.atomic_add(progress_ptr + index, done, sem="acq_rel")
        finishes = (progress % _POSSIBLE == tl.num_programs(1)).to(tl.int32)
        if finishes != 0:
            tl.store(progress_ptr + index, 0)
            overruled += (progress < _GOOD).to(tl.int32)
            if progress < _POSSIBLE:  # all that is allowed is masked: allow it nevertheless
                for chunk in range(set_start, set_end, chunk_size):
                    at = chunk + tl.arange(0, chunk_size)
                    revived = tl.load(set_tokens_ptr + at, mask=at < set_end, other=columns)
                    tl.store(row_ptr + revived, 0.0, mask=revived < columns)
                tl.debug_barrier()

    if finishes != 0:
        if (forces > 0) & (forced < columns):
            overruled += forces - 1
            if contests > 0:
                lost = tl.load(row_ptr + forced).to(tl.float32) < -highest / 2
                overruled += lost.to(tl.int32)
                tl.debug_barrier()
            tl.store(row_ptr + forced, highest)
        tl.atomic_add(overruled_ptr, overruled, mask=overruled > 0, sem="relaxed")


@triton.jit
def first_from(set_tokens_ptr, start, end, wanted):
    """Where in ``[start, end)`` the first token is that is at least ``wanted``, or ``end``."""
    at = tl.zeros_like(wanted) + start
    left = end - start
    while left > 0:
        half = (left + 1) // 2
        at += tl.where(tl.load(set_tokens_ptr + at + half - 1) < wanted, half, 0)
        left -= half
    return at


@triton.jit
def bounded_sum(logits, values, highest, dtype: tl.constexpr):
    """Sums that a narrow type can hold, between a ban and what a forced logit beats."""
    if dtype == tl.float16:
        sums = tl.clamp(logits.to(tl.float32) + values, -highest, _HIGHEST_SHARE * highest)
        return tl.where(logits == -float("inf"), logits, sums.to(dtype))
    return sum_as(logits, tl.clamp(values, -highest, highest), dtype)


@triton.jit
def sum_as(logits, values, dtype: tl.constexpr):
    """Add in float32 what the logits' type can say of the values, as torch does."""
    return (logits.to(tl.float32) + values.to(dtype).to(tl.float32)).to(dtype)
