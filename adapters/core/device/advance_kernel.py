"""The Triton kernel that moves automata along the histories that an engine keeps on the device.

It keeps each request's state after the tokens that are final. Each step takes its draft tokens from
that state on, because most of the earlier drafts may have been rejected.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from ..automaton import CARRY, KEEP
from .context import ROW_POINTERS, History, LogitsLayout
from .inputs import RequestInputs
from .pool import DevicePool
from .search import find

_CARRY = tl.constexpr(CARRY)
_KEEP = tl.constexpr(KEEP)


class AdvanceKernel:
    """A launcher of the kernel, on the current stream, which also keeps the states.

    ``tables`` have transitions.
    """

    def __init__(self, tables: DevicePool, inputs: RequestInputs, device: torch.device) -> None:
        self._tables, self._inputs = tables, inputs
        self._kept = torch.zeros((4, 0, inputs.requests), dtype=torch.int32, device=device)
        self._columns = [*self._kept]
        self._states = torch.zeros(0, dtype=torch.int32, device=device)

    def launch(self, history: History, rows: LogitsLayout, automata: int) -> torch.Tensor:
        """Take the newest tokens, and then the drafts before the rows of a step.

        ``automata`` is the most that any of the rows' requests has.

        Returns:
            ``[rows, automata]`` int32, states in the tables, one row after the other. Overwritten
            by the next call.
        """
        if automata > self._kept.shape[1]:
            grown = self._kept.new_zeros((4, automata, self._inputs.requests))
            grown[:, : self._kept.shape[1]] = self._kept
            self._kept, self._columns = grown, [*grown]
        if len(rows) * automata > len(self._states):
            self._states = self._states.new_empty(2 * len(rows) * automata)
        launch: Any = _advance_kernel[(len(rows), automata)]
        with torch.cuda.device_of(history.token_ids):
            launch(
                *rows.arguments,
                len(rows),
                *history.arguments,
                *self._inputs.columns("admission", "base", "read", "state", "timer"),
                *self._columns,
                self._inputs.requests,
                self._states,
                *self._tables.columns("default_target", "is_failure_link", "timer", "timeout"),
                *self._tables.columns("edge_ends", "edge_tokens", "targets"),
                num_warps=1,
            )
        return self._states


@triton.jit(
    do_not_specialize=["rows", "requests"],
    do_not_specialize_on_alignment=ROW_POINTERS,
)
def _advance_kernel(
    requests_ptr,  # [rows] int32 or int64
    drafts_ptr,  # [rows] int32
    row_tokens_ptr,  # [rows] int32
    rows,
    token_ids_ptr,  # [requests, longest] int32
    token_ids_stride,
    lengths_ptr,  # [requests] int32
    admission_ptr,  # [1, requests] int32, another number after each admission to a slot, never 0
    base_ptr,  # [automata, requests] int32, where each automaton starts in the tables
    read_ptr,  # [automata, requests] int32, how many tokens the host has read
    first_state_ptr,  # [automata, requests] int32, the state then, relative to the start
    first_timer_ptr,  # [automata, requests] int32, the timer then
    kept_admission_ptr,  # [automata, requests] int32, the admission that the state is of; changed
    length_ptr,  # [automata, requests] int32, how many tokens led to the state; changed
    state_ptr,  # [automata, requests] int32, relative to the start, because tables move; changed
    kept_timer_ptr,  # [automata, requests] int32; changed
    requests,
    states_ptr,  # [rows, programs 1] int32; written
    default_ptr,  # [table states] int32
    is_link_ptr,  # [table states] int8
    timer_ptr,  # [table states] int32
    timeout_ptr,  # [table states] int32
    ends_ptr,  # [table states + 1] int32, after a leading 0
    edges_ptr,  # [edges] int32, ascending within a state
    targets_ptr,  # [edges] int32
):
    """Advance one automaton of one request, and write its state for each of the request's rows."""
    row = tl.program_id(0)
    rank = tl.program_id(1)
    if tl.load(drafts_ptr + row) != 0:
        return  # the program of the request's first row does it
    request = tl.load(requests_ptr + row).to(tl.int64)
    own = rank * requests + request
    admission = tl.load(admission_ptr + request)
    length = tl.load(lengths_ptr + request)
    done = tl.load(length_ptr + own)
    state = tl.load(state_ptr + own)
    timer = tl.load(kept_timer_ptr + own)
    if (tl.load(kept_admission_ptr + own) != admission) | (done > length):
        done = tl.load(read_ptr + own)
        state = tl.load(first_state_ptr + own)
        timer = tl.load(first_timer_ptr + own)
    base = tl.load(base_ptr + own)
    state += base
    while done < length:
        token = tl.load(token_ids_ptr + request * token_ids_stride + done)
        state, timer = settle(timer_ptr, timeout_ptr, state, timer)
        state = take(default_ptr, is_link_ptr, ends_ptr, edges_ptr, targets_ptr, state, token)
        timer = enter(tl.load(timer_ptr + state), timer)
        done += 1
    tl.store(kept_admission_ptr + own, admission)
    tl.store(length_ptr + own, done)
    tl.store(state_ptr + own, state - base)
    tl.store(kept_timer_ptr + own, timer)

    first_row = row
    while row < rows:
        if row > first_row:
            token = tl.load(row_tokens_ptr + row)
            state = take(default_ptr, is_link_ptr, ends_ptr, edges_ptr, targets_ptr, state, token)
            timer = enter(tl.load(timer_ptr + state), timer)
        state, timer = settle(timer_ptr, timeout_ptr, state, timer)
        tl.store(states_ptr + row * tl.num_programs(1) + rank, state)
        row += 1
        drafts = tl.load(drafts_ptr + row, mask=row < rows, other=0)
        row = tl.where(drafts == 0, rows, row)


@triton.jit
def take(default_ptr, is_link_ptr, ends_ptr, edges_ptr, targets_ptr, state, token):
    """Return the state after a token: along its edge, a failure link, or the default."""
    following = -1
    while following < 0:
        end = tl.load(ends_ptr + state + 1)
        edge = find(edges_ptr, tl.load(ends_ptr + state), end, token)
        has_edge = tl.load(edges_ptr + edge, mask=edge < end, other=-1) == token
        has_edge = has_edge & (edge < end)  # -1 is a token without any edge
        is_link = tl.load(is_link_ptr + state) != 0
        target = tl.load(targets_ptr + edge, mask=has_edge, other=-1)
        state = tl.load(default_ptr + state)
        following = tl.where(has_edge, target, tl.where(is_link, -1, state))
    return following


@triton.jit
def enter(on_entry, timer):
    """Return the timer after a token has led to a state that has ``on_entry``."""
    kept = tl.where(on_entry == _KEEP, timer, on_entry)
    return tl.where(on_entry == _CARRY, tl.maximum(timer - 1, 0), kept)


@triton.jit
def settle(timer_ptr, timeout_ptr, state, timer):
    """Take the time-outs that are due."""
    timeout = tl.load(timeout_ptr + state)
    while (timer == 0) & (timeout >= 0):
        state = timeout
        timer = enter(tl.load(timer_ptr + state), timer)
        timeout = tl.load(timeout_ptr + state)
    return state, timer
