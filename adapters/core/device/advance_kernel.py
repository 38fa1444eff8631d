"""The Triton kernel that moves automata along the histories that an engine keeps on the device.

It does the work of ``Automaton.fold`` and ``AutomatonBatch.advance``. It keeps each request's state
after the tokens that are final. Each step takes its draft tokens from that state on, because most
of the earlier drafts may have been rejected.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..automaton import CARRY, KEEP
from .edit_kernel import first_from
from .pool import DevicePool

BLOCK_SIZE = 1024
"""The number of tokens that are searched at once for the next token that leaves a state."""

NOT_PLACED = -1
"""Instead of an automaton, if a request has none at this index."""

AFTER_PROMPT = -1
"""Instead of a number of tokens that have been read: all of the prompt."""

INPUTS = 4
"""The number of inputs of a place; see ``AdvanceKernel.launch``."""

_CARRY = tl.constexpr(CARRY)
_KEEP = tl.constexpr(KEEP)
_NOT_PLACED = tl.constexpr(NOT_PLACED)
_AFTER_PROMPT = tl.constexpr(AFTER_PROMPT)
_INPUTS = tl.constexpr(INPUTS)


@dataclass(frozen=True, slots=True)
class History:
    """The tokens of all requests, as the engine keeps them for the device.

    They may be in host memory that the device reads (as in vLLM's V2 runner, except if it looks
    drafts up by n-grams).

    Attributes:
        token_ids: ``[requests, longest]`` int32, prompt and output.
        prompt_lengths: ``[requests]`` int32.
        lengths: ``[requests]`` int32, of prompt and output.
    """

    token_ids: torch.Tensor
    prompt_lengths: torch.Tensor
    lengths: torch.Tensor


@dataclass(frozen=True, slots=True)
class LogitsLayout:
    """The layout of one step's logits. The rows of a request are adjacent.

    Attributes:
        requests: ``[rows]`` int32 or int64, the request of each row.
        drafts: ``[rows]`` int32, the number of draft tokens before the row's token.
        token_ids: ``[rows]`` int32, the token before the row's token: a draft if ``drafts`` is
            above 0, else not read.
    """

    requests: torch.Tensor
    drafts: torch.Tensor
    token_ids: torch.Tensor

    def __len__(self) -> int:
        return len(self.requests)


class AdvanceKernel:
    """A launcher of the kernel, on the current stream, which also keeps the states.

    Each request has *places*, one for each of its automata. One array holds the initial values of
    a request, so admission is one upload and overwrites all state of the slot's previous occupant.
    ``tables`` have transitions; ``requests`` is the maximum number of requests at a time.
    """

    def __init__(self, tables: DevicePool, requests: int, device: torch.device) -> None:
        self._tables = tables
        self._kept = torch.zeros((4, 0, requests), dtype=torch.int32, device=device)
        self._states = torch.zeros(0, dtype=torch.int32, device=device)

    def launch(
        self, history: History, rows: LogitsLayout, placed: torch.Tensor, free_state: int
    ) -> torch.Tensor:
        """Bring the states up to date, before the rows of a step.

        ``placed`` is ``[1 + INPUTS * places, requests]`` int32: a number that changes with each
        admission to the slot, and for each place the automaton's start in the tables; how many
        tokens it has read, or ``AFTER_PROMPT``; and its state then, relative to the start, and its
        timer. Without an automaton, the start is ``NOT_PLACED``. Such a place has ``free_state``,
        which edits nothing.

        Returns:
            ``[rows, places]`` int32, states in the tables, one row after the other. Overwritten
            by the next call.
        """
        places, requests = placed.shape[0] // INPUTS, placed.shape[1]
        if places > self._kept.shape[1]:
            # No copy is needed: no admission is 0, so all requests fold their histories again.
            self._kept = self._kept.new_zeros((4, places, requests))
        if len(rows) * places > len(self._states):
            self._states = self._states.new_empty(2 * len(rows) * places)
        kept = self._kept
        with torch.cuda.device_of(history.token_ids):
            _advance_kernel[(len(rows), places)](
                rows.requests,
                rows.drafts,
                rows.token_ids,
                len(rows),
                history.token_ids,
                history.token_ids.stride(0),
                history.prompt_lengths,
                history.lengths,
                placed,
                kept,
                kept.stride(0),
                requests,
                free_state,
                self._states,
                *self._tables.columns("default_target", "is_failure_link", "timer", "timeout"),
                *self._tables.columns("edge_ends", "edge_tokens", "targets"),
                block_size=BLOCK_SIZE,
                num_warps=4,  # pyright: ignore[reportCallIssue]
            )
        return self._states


ROW_POINTERS = ["requests_ptr", "drafts_ptr", "row_tokens_ptr"]
"""Arguments that may be slices of the engine's tensors, and so start at any address."""


@triton.jit(
    do_not_specialize=["rows", "kept_stride", "requests", "free_state"],
    do_not_specialize_on_alignment=ROW_POINTERS,
)
def _advance_kernel(
    requests_ptr,  # [rows] int32 or int64
    drafts_ptr,  # [rows] int32
    row_tokens_ptr,  # [rows] int32
    rows,
    token_ids_ptr,  # [requests, longest] int32
    token_ids_stride,
    prompt_lengths_ptr,  # [requests] int32
    lengths_ptr,  # [requests] int32
    placed_ptr,  # [1 + INPUTS * places, requests] int32
    kept_ptr,  # [4, places, requests] int32; changed
    kept_stride,
    requests,
    free_state,
    states_ptr,  # [rows, programs 1] int32; written
    default_ptr,  # [table states] int32
    is_link_ptr,  # [table states] int8
    timer_ptr,  # [table states] int32
    timeout_ptr,  # [table states] int32
    ends_ptr,  # [table states + 1] int32, after a leading 0
    edges_ptr,  # [edges] int32, ascending within a state
    targets_ptr,  # [edges] int32
    block_size: tl.constexpr,
):
    """Advance one automaton of one request, and write its state for each of the request's rows."""
    row = tl.program_id(0)
    place = tl.program_id(1)
    places = tl.num_programs(1)
    if tl.load(drafts_ptr + row) != 0:
        return  # the program of the request's first row does it
    request = tl.load(requests_ptr + row).to(tl.int64)
    inputs_ptr = placed_ptr + (1 + _INPUTS * place) * requests + request
    base = tl.load(inputs_ptr)
    state = tl.zeros_like(base) + free_state
    timer = tl.zeros_like(base)
    if base != _NOT_PLACED:
        length = tl.load(lengths_ptr + request)
        prompt_length = tl.load(prompt_lengths_ptr + request)
        admission = tl.load(placed_ptr + request)
        # Kept for each automaton: its state (relative to its start, because tables move), its
        # timer, the number of tokens folded into both, and the admission that they belong to.
        own_ptr = kept_ptr + place * requests + request
        state = base + tl.load(own_ptr)
        timer = tl.load(own_ptr + kept_stride)
        done = tl.load(own_ptr + 2 * kept_stride)
        if (tl.load(own_ptr + 3 * kept_stride) != admission) | (done > length):
            read = tl.load(inputs_ptr + requests)
            done = tl.where(read == _AFTER_PROMPT, prompt_length, read)
            state = base + tl.load(inputs_ptr + 2 * requests)
            timer = tl.load(inputs_ptr + 3 * requests)
        tokens_ptr = token_ids_ptr + request * token_ids_stride
        while done < length:
            is_chosen = done >= prompt_length
            end = tl.where(is_chosen, length, prompt_length)
            if is_chosen:
                state, timer = _settled(state, timer, timer_ptr, timeout_ptr)
            on_entry = tl.load(timer_ptr + state)
            stays = tl.load(default_ptr + state) == state
            stays = stays & (tl.load(is_link_ptr + state) == 0)
            steps = 0
            if stays & (end - done > 1):
                # Skip all tokens that leave the state unchanged, but not beyond its time-out.
                steps = tl.minimum(end - done, block_size)
                runs_down = is_chosen & (on_entry == _CARRY) & (timer > 0)
                steps = tl.where(runs_down, tl.minimum(steps, timer), steps)
                at = tl.arange(0, block_size)
                tokens = tl.load(tokens_ptr + done + at, mask=at < steps, other=-1)
                lo = tl.load(ends_ptr + state)
                hi = tl.load(ends_ptr + state + 1)
                edge = first_from(edges_ptr, lo, hi, tokens)
                found = tl.load(edges_ptr + edge, mask=edge < hi, other=-1) == tokens
                first = tl.min(tl.where(found & (at < steps), at, steps), axis=0)
                steps = tl.cast(first, tl.int32)
                timer = tl.where(steps > 0, _entered(on_entry, timer, steps), timer)
                done += steps
            if steps == 0:
                token = tl.load(tokens_ptr + done)
                state = _following(
                    state, token, default_ptr, is_link_ptr, ends_ptr, edges_ptr, targets_ptr
                )
                timer = _entered(tl.load(timer_ptr + state), timer, 1)
                done += 1
        tl.store(own_ptr, state - base)
        tl.store(own_ptr + kept_stride, timer)
        tl.store(own_ptr + 2 * kept_stride, done)
        tl.store(own_ptr + 3 * kept_stride, admission)

    first_row = row
    while row < rows:
        if base != _NOT_PLACED:
            if row > first_row:
                token = tl.load(row_tokens_ptr + row)
                state = _following(
                    state, token, default_ptr, is_link_ptr, ends_ptr, edges_ptr, targets_ptr
                )
                timer = _entered(tl.load(timer_ptr + state), timer, 1)
            state, timer = _settled(state, timer, timer_ptr, timeout_ptr)
        tl.store(states_ptr + row * places + place, state)
        row += 1
        drafts = tl.load(drafts_ptr + row, mask=row < rows, other=0)
        row = tl.where(drafts == 0, rows, row)


@triton.jit
def _following(state, token, default_ptr, is_link_ptr, ends_ptr, edges_ptr, targets_ptr):
    """Return the state after a token; -1 stands for a token without any edge."""
    following = -1
    while following < 0:
        lo = tl.load(ends_ptr + state)
        hi = tl.load(ends_ptr + state + 1)
        edge = first_from(edges_ptr, lo, hi, token)
        has_edge = tl.load(edges_ptr + edge, mask=edge < hi, other=-1) == token
        has_edge = has_edge & (edge < hi)
        is_link = tl.load(is_link_ptr + state) != 0
        target = tl.load(targets_ptr + edge, mask=has_edge, other=-1)
        state = tl.load(default_ptr + state)
        following = tl.where(has_edge, target, tl.where(is_link, -1, state))
    return following


@triton.jit
def _entered(on_entry, timer, tokens):
    """Compute the timer after some tokens, the last of which entered a state."""
    kept = tl.where(on_entry == _KEEP, timer, on_entry)
    return tl.where(on_entry == _CARRY, tl.maximum(timer - tokens, 0), kept)


@triton.jit
def _settled(state, timer, timer_ptr, timeout_ptr):
    """Take the time-outs that are due."""
    timeout = tl.load(timeout_ptr + state)
    while (timer == 0) & (timeout >= 0):
        state = timeout
        timer = _entered(tl.load(timer_ptr + state), timer, 1)
        timeout = tl.load(timeout_ptr + state)
    return state, timer
