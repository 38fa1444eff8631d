"""The Triton kernel of ``no_loop``: it bans what would complete a loop, or has a text forced."""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from ....spec.kinds.no_loop import MAX_PERIOD
from ....spec.limits import MAX_PATTERN
from ..automaton import BAN_BIAS, Lane
from ..automaton.steps import FIELDS
from ..kinds.no_loop import closes
from ..parts import Acting, LoopRule
from ..tensors import highest_logit
from .context import ROW_POINTERS, History, LogitsLayout
from .inputs import RequestInputs
from .pool import DevicePool
from .search import locate, sum_as, tokens_at

_BAN_BIAS = tl.constexpr(BAN_BIAS)
_FIELDS = tl.constexpr(11)
_OF_LANE = tl.constexpr(FIELDS)
_UNROLLED = tl.constexpr(8)  # tokens that are compared between two looks at what is left
PERIODS = triton.next_power_of_2(MAX_PERIOD)
"""The periods that are compared at once."""

_PATTERN = tl.constexpr(triton.next_power_of_2(MAX_PATTERN))


def fields_of(rules: Sequence[Acting], lanes: Sequence[Lane], prompt_length: int) -> list[int]:
    """List what the kernel reads of each rule about loops, in the order in which it does."""
    fields: list[int] = []
    for rule, phase, *_ in rules:
        if not isinstance(rule, LoopRule):
            continue
        spec = rule.spec
        fields += spec.times, spec.min_period, spec.max_period, spec.min_tokens
        fields += prompt_length if spec.output_only else 0, len(spec.then_token_ids), closes(spec)
        fields += *rule.ranks(lanes), rule.inside, phase
    return fields


class LoopKernel:
    """A launcher of the kernel, on the current stream."""

    def __init__(self, tables: DevicePool, inputs: RequestInputs) -> None:
        self._tables, self._inputs = tables, inputs

    def launch(
        self,
        logits: torch.Tensor,
        history: History,
        rows: LogitsLayout,
        states: torch.Tensor | None,
        since: torch.Tensor | None,
        automata: int,
        phases: int,
        rules: int,
        vocab_size: int,
    ) -> None:
        """Edit the logits, whose columns are contiguous, and the states, in place.

        ``states`` and ``since`` are those that ``AdvanceKernel`` returns, if it was launched.
        ``automata``, ``phases`` and ``rules`` are the most that any of the rows' requests has.
        """
        fields, lanes = self._inputs.columns("loop", "lanes")
        launch: Any = _loop_kernel[(len(rows),)]
        with torch.cuda.device_of(logits):
            launch(
                *(logits, logits.stride(0), highest_logit(logits.dtype)),
                *rows.arguments,
                *history.arguments,
                *(fields, lanes, self._inputs.requests),
                *self._tables.columns("operand"),
                lanes if states is None else states,
                lanes if since is None else since,
                *(automata, phases, rules, vocab_size),
                periods=PERIODS,
                num_warps=4,
            )


@triton.jit(
    do_not_specialize=["requests", "automata", "phases", "rules"],
    do_not_specialize_on_alignment=ROW_POINTERS,
)
def _loop_kernel(
    logits_ptr,  # [rows, columns]; changed
    logits_stride,
    highest,  # no logit is higher
    requests_ptr,  # [rows] int32 or int64
    drafts_ptr,  # [rows] int32
    row_tokens_ptr,  # [rows] int32
    token_ids_ptr,  # [requests, longest] int32
    token_ids_stride,
    lengths_ptr,  # [requests] int32
    fields_ptr,  # [rules * _FIELDS, requests] int32, see `fields_of`; 0 without such a rule
    lanes_ptr,  # [automata * FIELDS, requests] int32, see `steps.BASE`
    requests,
    operand_ptr,  # [table states] int32
    states_ptr,  # [rows, automata] int32; those of automata that force are changed
    since_ptr,  # [rows, phases] int32, see `steps.step`; not read for rules outside of phases
    automata,
    phases,
    rules,
    vocab_size,
    periods: tl.constexpr,
):
    """Let the rules of one row's request act."""
    row = tl.program_id(0)
    request, tokens_ptr, drafted_ptr, kept, length = locate(
        requests_ptr, drafts_ptr, row_tokens_ptr, token_ids_ptr, token_ids_stride, lengths_ptr, row
    )
    period = 1 + tl.arange(0, periods)
    index = tl.arange(0, _PATTERN)
    for i in range(rules):
        of_rule = fields_ptr + i * _FIELDS * requests + request
        times = tl.load(of_rule)
        phase = tl.load(of_rule + 10 * requests)
        since = tl.load(since_ptr + row * phases + phase, mask=phase > 0, other=0)
        if (times > 0) & (since >= 0):
            is_period = period >= tl.load(of_rule + requests)
            is_period = is_period & (period <= tl.load(of_rule + 2 * requests))
            copies = tl.maximum(times, tl.cdiv(tl.load(of_rule + 3 * requests), period))
            need = (copies - 1) * period
            origin = tl.maximum(tl.load(of_rule + 4 * requests), since)
            forced = tl.load(of_rule + 5 * requests)
            closes = tl.load(of_rule + 6 * requests)
            forcing = tl.load(of_rule + 7 * requests)
            need -= (forcing < 0).to(tl.int32)  # a ban comes before a loop is complete
            block = tl.load(of_rule + 8 * requests)
            is_open = 1
            if block >= 0:
                state = tl.load(states_ptr + row * automata + block)
                state -= tl.load(lanes_ptr + block * _OF_LANE * requests + request)
                is_open = (state >= tl.load(of_rule + 9 * requests)).to(tl.int32)
            if forcing >= 0:
                base = tl.load(lanes_ptr + forcing * _OF_LANE * requests + request)
                due = -1
                said = tl.minimum(forced, length - origin)
                while (said >= 0) & (due < 0):
                    if (said >= closes) | (is_open != 0):
                        before = length - said
                        is_said = index < said
                        text = tl.load(operand_ptr + base + 1 + index, mask=is_said, other=0)
                        last = tokens_at(tokens_ptr, drafted_ptr, before + index, kept, is_said)
                        if tl.max((is_said & (text != last)).to(tl.int32), axis=0) == 0:
                            found = find_loops(
                                tokens_ptr,
                                drafted_ptr,
                                kept,
                                before,
                                origin,
                                period,
                                need,
                                is_period,
                            )
                            is_loop = tl.max(found.to(tl.int32), axis=0) != 0
                            due = tl.where(is_loop, tl.where(said < forced, said + 1, 0), due)
                    said -= 1
                tl.store(states_ptr + row * automata + forcing, base + tl.maximum(due, 0))
            elif is_open != 0:
                found = find_loops(
                    tokens_ptr, drafted_ptr, kept, length, origin, period, need, is_period
                )
                tokens = tokens_at(tokens_ptr, drafted_ptr, length - period, kept, found)
                banned = found & (tokens >= 0) & (tokens < vocab_size)
                row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
                logits = tl.load(row_ptr + tokens, mask=banned, other=-float("inf"))
                banned = banned & (logits.to(tl.float32) > -highest / 2)
                ban = tl.maximum(tl.zeros_like(tokens).to(tl.float32) + _BAN_BIAS, -highest)
                dtype: tl.constexpr = logits_ptr.dtype.element_ty
                tl.debug_barrier()  # several periods may have the same token
                tl.store(row_ptr + tokens, sum_as(logits, ban, dtype), mask=banned)
                tl.debug_barrier()


@triton.jit
def find_loops(tokens_ptr, drafted_ptr, kept, length, origin, period, need, is_period):
    """Return the periods with as many equal tokens as they need.

    Comparing stops when no period that needs more agrees any longer.
    """
    found = is_period & (length - need - period >= origin)
    same = 0
    missing = tl.max((found & (need > 0)).to(tl.int32), axis=0)
    while missing != 0:
        for _ in tl.static_range(_UNROLLED):  # pyright: ignore[reportGeneralTypeIssues]
            at = length - 1 - same
            newest = tokens_at(tokens_ptr, drafted_ptr, at, kept, at >= 0)
            compared = found & (same < need)
            earlier = tokens_at(tokens_ptr, drafted_ptr, at - period, kept, compared)
            found = found & ((earlier == newest) | (same >= need))
            same += 1
        missing = tl.max((found & (need > same)).to(tl.int32), axis=0)
    return found
