"""The Triton kernel that moves automata along the histories that an engine keeps on the device.

It keeps each request's states after the tokens that are final. Each step takes its draft tokens
from there on, because most of the earlier drafts may have been rejected. A program moves all
automata of a request, 32 at a time, because they end the request's phases together.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from ..automaton import CARRY, KEEP, NO_TIMER
from ..automaton.automaton import TARGETS
from ..automaton.steps import END, FIELDS, PHASE, STATE, TIMER
from .context import ROW_POINTERS, History, LogitsLayout
from .inputs import RequestInputs
from .pool import DevicePool

_CARRY = tl.constexpr(CARRY)
_KEEP = tl.constexpr(KEEP)
_NO_TIMER = tl.constexpr(NO_TIMER)
_TARGETS = tl.constexpr(TARGETS)
_LANES = tl.constexpr(32)
_FIELDS = tl.constexpr(FIELDS)
_PHASE, _END, _STATE, _TIMER = map(tl.constexpr, (PHASE, END, STATE, TIMER))


class AdvanceKernel:
    """A launcher of the kernel, on the current stream, which also keeps the states.

    ``tables`` have transitions.
    """

    def __init__(self, tables: DevicePool, inputs: RequestInputs, device: torch.device) -> None:
        self._tables, self._inputs = tables, inputs
        new = torch.zeros(0, dtype=torch.int32, device=device)
        self._kept = self._kept_lanes = new.new_zeros((2, 0, inputs.requests))
        self._kept_since = new.new_zeros((0, inputs.requests))
        self._states = self._timers = self._since = new

    def launch(
        self, history: History, rows: LogitsLayout, automata: int, phases: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the newest tokens, and then the drafts before the rows of a step.

        ``automata`` and ``phases`` are the most that any of the rows' requests has.

        Returns:
            ``[rows, automata]`` int32, states in the tables, one row after the other; and
            ``[rows, phases]`` int32, ``since`` as in ``steps.step``. The next call overwrites both.
        """
        self._kept = _grown(self._kept, 1)
        self._kept_lanes = _grown(self._kept_lanes, automata)
        self._kept_since = _grown(self._kept_since, phases)
        if len(rows) * automata > len(self._states):
            cells = 2 * len(rows) * automata
            self._states, self._timers = (
                self._states.new_empty(cells),
                self._states.new_empty(cells),
            )
        if len(rows) * phases > len(self._since):
            self._since = self._since.new_empty(2 * len(rows) * phases)
        launch: Any = _advance_kernel[(len(rows),)]
        with torch.cuda.device_of(history.token_ids):
            launch(
                *rows.arguments,
                len(rows),
                *history.arguments,
                *self._inputs.columns("admission", "taken", "first_since", "lanes"),
                *(self._kept, *self._kept_lanes, self._kept_since, self._inputs.requests),
                *(self._states, self._timers, self._since, automata, phases),
                *self._tables.columns("default_target", "is_failure_link", "timer", "timeout"),
                *self._tables.columns("edge_ends", "edge_tokens", "targets", "is_complete"),
                num_warps=1,
            )
        return self._states, self._since


def _grown(kept: torch.Tensor, most: int) -> torch.Tensor:
    """Return ``[..., most or more, requests]``, what is kept followed by zeros."""
    if most <= kept.shape[-2]:
        return kept
    grown = kept.new_zeros((*kept.shape[:-2], most, kept.shape[-1]))
    grown[..., : kept.shape[-2], :] = kept
    return grown


@triton.jit(
    do_not_specialize=["rows", "requests", "automata", "phases"],
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
    taken_ptr,  # [1, requests] int32, how many tokens the host has read
    first_since_ptr,  # [phases, requests] int32, `since` then
    lanes_ptr,  # [automata * FIELDS, requests] int32, see `BASE`
    kept_ptr,  # [2, requests] int32, the states' admission, and how many tokens led here; changed
    kept_state_ptr,  # [automata, requests] int32, from the start, because tables move; changed
    kept_timer_ptr,  # [automata, requests] int32; changed
    kept_since_ptr,  # [phases, requests] int32; changed
    requests,
    states_ptr,  # [rows, automata] int32; written
    timers_ptr,  # [rows, automata] int32; written
    since_ptr,  # [rows, phases] int32; written
    automata,
    phases,
    default_ptr,  # [table states] int32
    is_link_ptr,  # [table states] int8
    on_entry_ptr,  # [table states] int32
    timeout_ptr,  # [table states] int32
    ends_ptr,  # [table states + 1] int32, after a leading 0
    edges_ptr,  # [edges] int32, ascending within a state
    targets_ptr,  # [edges] int32
    is_complete_ptr,  # [table states] int8
):
    """Advance the automata of one request, and write their states for each of its rows."""
    row = tl.program_id(0)
    if tl.load(drafts_ptr + row) != 0:
        return  # the program of the request's first row does it
    request = tl.load(requests_ptr + row).to(tl.int64)
    length = tl.load(lengths_ptr + request)
    admission = tl.load(admission_ptr + request)
    done = tl.load(kept_ptr + requests + request)
    is_kept = (tl.load(kept_ptr + request) == admission) & (done <= length)
    done = tl.where(is_kept, done, tl.load(taken_ptr + request))
    begin(
        lanes_ptr + request,
        kept_state_ptr + request,
        kept_timer_ptr + request,
        states_ptr + row * automata,
        timers_ptr + row * automata,
        requests,
        automata,
        tl.where(is_kept, automata, 0),
    )
    for phase in range(phases):
        since = tl.load(first_since_ptr + phase * requests + request)
        kept_since = tl.load(kept_since_ptr + phase * requests + request)
        tl.store(since_ptr + row * phases + phase, tl.where(is_kept, kept_since, since))
    tl.debug_barrier()

    lanes = tl.arange(0, _LANES)
    source, goes_on = row, 1
    while goes_on != 0:
        final_ptr = token_ids_ptr + request * token_ids_stride + done
        goes_on, target, token = find_next(
            final_ptr, drafts_ptr, row_tokens_ptr, done < length, row, source, rows
        )
        if goes_on != 0:
            done += 1
            for first in range(0, automata, _LANES):
                there = first + lanes < automata
                before = source * automata + first + lanes
                after = target * automata + first + lanes
                state = tl.load(states_ptr + before, mask=there, other=0)
                timer = tl.load(timers_ptr + before, mask=there, other=_NO_TIMER)
                state = take(
                    default_ptr, is_link_ptr, ends_ptr, edges_ptr, targets_ptr, state, token
                )
                timer = enter(tl.load(on_entry_ptr + state), timer)
                state, timer = settle(on_entry_ptr, timeout_ptr, state, timer)
                tl.store(states_ptr + after, state, mask=there)
                tl.store(timers_ptr + after, timer, mask=there)
            end_phases(
                lanes_ptr + request,
                on_entry_ptr,
                timeout_ptr,
                is_complete_ptr,
                states_ptr + target * automata,
                timers_ptr + target * automata,
                since_ptr + source * phases,
                since_ptr + target * phases,
                requests,
                automata,
                phases,
                done,
            )
            source = target

    for first in range(0, automata, _LANES):
        own = (first + lanes) * requests + request
        here = row * automata + first + lanes
        there = first + lanes < automata
        state = tl.load(states_ptr + here, mask=there, other=0)
        base = tl.load(lanes_ptr + request + (first + lanes) * _FIELDS * requests, mask=there)
        state = tl.where(state == 0, -1, state - base)
        tl.store(kept_state_ptr + own, state, mask=there)
        tl.store(kept_timer_ptr + own, tl.load(timers_ptr + here, mask=there), mask=there)
    for phase in range(phases):
        since = tl.load(since_ptr + row * phases + phase)
        tl.store(kept_since_ptr + phase * requests + request, since)
    tl.store(kept_ptr + request, admission)
    tl.store(kept_ptr + requests + request, tl.maximum(length, tl.load(taken_ptr + request)))


@triton.jit
def begin(
    lanes_ptr, kept_state_ptr, kept_timer_ptr, states_ptr, timers_ptr, requests, automata, most_kept
):
    """Start the first automata from the states that are kept, and others as the host has them."""
    lanes = tl.arange(0, _LANES)
    for first in range(0, automata, _LANES):
        at = (first + lanes) * requests
        own = lanes_ptr + at * _FIELDS
        there = first + lanes < automata
        kept = first + lanes < most_kept
        begun = there & (first + lanes >= most_kept)
        state = tl.load(kept_state_ptr + at, mask=kept, other=-1)
        state = tl.maximum(state, tl.load(own + _STATE * requests, mask=begun, other=-1))
        timer = tl.load(kept_timer_ptr + at, mask=kept, other=0)
        timer += tl.load(own + _TIMER * requests, mask=begun, other=0)
        base = tl.load(own, mask=there, other=0)
        # What is kept of a lane that the request does not have is that of an earlier request.
        is_free = (state < 0) | (base == 0)
        tl.store(states_ptr + first + lanes, tl.where(is_free, 0, base + state), mask=there)
        tl.store(timers_ptr + first + lanes, timer, mask=there)


@triton.jit
def find_next(final_ptr, drafts_ptr, row_tokens_ptr, is_final, row, source, rows):
    """Return whether a token follows, the row whose states it leads to, and the token."""
    target = tl.where(is_final, row, source + 1)
    is_draft = (is_final == 0) & (target < rows)
    is_draft = is_draft & (tl.load(drafts_ptr + target, mask=is_draft, other=0) != 0)
    token = tl.load(final_ptr, mask=is_final, other=-1)
    draft = tl.load(row_tokens_ptr + target, mask=is_draft, other=-1)
    return (is_final | is_draft).to(tl.int32), target, tl.where(is_draft, draft, token)


@triton.jit
def end_phases(
    lanes_ptr,
    on_entry_ptr,
    timeout_ptr,
    is_complete_ptr,
    states_ptr,
    timers_ptr,
    before_ptr,
    since_ptr,
    requests,
    automata,
    phases,
    position,
):
    """Take over the phases' beginnings, and let those begin that follow what is over now."""
    for phase in range(phases):
        tl.store(since_ptr + phase, tl.load(before_ptr + phase))
    tl.debug_barrier()
    lanes = tl.arange(0, _LANES)
    for phase in range(1, phases):
        over = _NO_TIMER
        if tl.load(since_ptr + phase) >= 0:
            over = find_end(lanes_ptr, is_complete_ptr, states_ptr, requests, automata, phase)
        if over < _NO_TIMER:
            following = over // 2 % _TARGETS
            tl.store(since_ptr + phase, -1)
            tl.debug_barrier()
            tl.store(since_ptr + following, position)
            for first in range(0, automata, _LANES):
                own = lanes_ptr + (first + lanes) * _FIELDS * requests
                there = first + lanes < automata
                base = tl.load(own, mask=there, other=0)
                of_phase = tl.load(own + _PHASE * requests, mask=there, other=0)
                timer = tl.load(on_entry_ptr + base)
                timer = tl.where(timer >= 0, timer, _NO_TIMER)
                state, timer = settle(on_entry_ptr, timeout_ptr, base, timer)
                begins = there & (of_phase == following)
                changes = begins | (there & (of_phase == phase))
                tl.store(states_ptr + first + lanes, tl.where(begins, state, 0), mask=changes)
                timer = tl.where(begins, timer, _NO_TIMER)
                tl.store(timers_ptr + first + lanes, timer, mask=changes)
            tl.debug_barrier()


@triton.jit
def find_end(lanes_ptr, is_complete_ptr, states_ptr, requests, automata, phase):
    """Return the first end of a phase that has come, as ``Lane.end``, or the highest number."""
    lanes = tl.arange(0, _LANES)
    single = _NO_TIMER
    shared = _NO_TIMER
    is_lacking = 0
    for first in range(0, automata, _LANES):
        own = lanes_ptr + (first + lanes) * _FIELDS * requests
        there = first + lanes < automata
        end = tl.load(own + _END * requests, mask=there, other=0)
        of_phase = tl.load(own + _PHASE * requests, mask=there, other=0)
        there = there & (of_phase == phase) & (end > 0)
        state = tl.load(states_ptr + first + lanes, mask=there, other=0)
        is_complete = there & (tl.load(is_complete_ptr + state) != 0)
        is_shared = (end & 1) != 0
        found = tl.where(is_complete & (is_shared == 0), end, _NO_TIMER)
        single = tl.minimum(single, tl.min(found, axis=0))
        found = tl.where(is_complete & is_shared, end, _NO_TIMER)
        shared = tl.minimum(shared, tl.min(found, axis=0))
        lacks = there & is_shared & (is_complete == 0)
        is_lacking = tl.maximum(is_lacking, tl.max(lacks.to(tl.int32), axis=0))
    return tl.minimum(single, tl.where(is_lacking != 0, _NO_TIMER, shared))


@triton.jit
def take(default_ptr, is_link_ptr, ends_ptr, edges_ptr, targets_ptr, state, token):
    """Return each state after a token: along its edge, a failure link, or the default."""
    following = tl.zeros_like(state) - 1
    while tl.min(following, axis=0) < 0:  # pyright: ignore[reportOperatorIssue]
        at = tl.load(ends_ptr + state)
        end = tl.load(ends_ptr + state + 1)
        left = end - at
        while tl.max(left, axis=0) > 0:  # pyright: ignore[reportOperatorIssue]
            half = (left + 1) // 2
            edge = tl.load(edges_ptr + at + half - 1, mask=left > 0, other=0)
            at += tl.where((left > 0) & (edge < token), half, 0)
            left -= half
        edge = tl.load(edges_ptr + at, mask=at < end, other=-1)
        has_edge = (at < end) & (edge == token)  # -1 is a token without any edge
        is_link = tl.load(is_link_ptr + state) != 0
        target = tl.load(targets_ptr + at, mask=has_edge, other=-1)
        state = tl.load(default_ptr + state)
        target = tl.where(has_edge, target, tl.where(is_link, -1, state))
        following = tl.where(following < 0, target, following)
    return following


@triton.jit
def enter(on_entry, timer):
    """Return the timers after a token has led to states that have ``on_entry``."""
    kept = tl.where(on_entry == _KEEP, timer, on_entry)
    return tl.where(on_entry == _CARRY, tl.maximum(timer - 1, 0), kept)


@triton.jit
def settle(on_entry_ptr, timeout_ptr, state, timer):
    """Take the time-outs that are due."""
    timeout = tl.load(timeout_ptr + state)
    is_due = (timer == 0) & (timeout >= 0)
    while tl.max(is_due.to(tl.int32), axis=0) != 0:
        state = tl.where(is_due, timeout, state)
        timer = tl.where(is_due, enter(tl.load(on_entry_ptr + state), timer), timer)
        timeout = tl.load(timeout_ptr + state)
        is_due = (timer == 0) & (timeout >= 0)
    return state, timer
