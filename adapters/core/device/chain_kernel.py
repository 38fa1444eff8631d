"""The Triton kernel of chains: the steps of ``host.shape``, one program for a row.

A row stays as it came until all steps are taken. Until then, what is left of it are the logits in
an interval, and the highest: truncations narrow the interval. Temperature and smoothing bend
logits, but keep their order. So a bound of bent logits is one of the logits themselves, and a step
passes over the row as often as it has sums. Where the bound has to be searched for, its bits are
bisected, in 32 passes. Nothing is put in order but the tokens that `min_k` looks at.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from ....spec import ChainStep
from ....spec.kinds.chain import MIN_K_TOKENS, TOP_H_TOKENS
from ..logits import FORCED_SHARE
from ..parts import Chain
from ..tensors import highest_logit
from .context import ROW_POINTERS, LogitsLayout
from .inputs import RequestInputs
from .rows import (
    COLUMNS,
    COUNT,
    DEEP,
    ENTROPY,
    MASS,
    NEAR,
    SQUARES,
    add_up,
    bend,
    bisect,
    find_lowest,
    find_top,
    float_of,
    load,
    measure,
    order_of,
    within,
)

_NAMES = ChainStep.__struct_fields__
_FORCED_SHARE = tl.constexpr(FORCED_SHARE)
_TOP_H_TOKENS, _MIN_K_TOKENS = tl.constexpr(TOP_H_TOKENS), tl.constexpr(MIN_K_TOKENS)
# fmt: off
(
    _TEMPERATURE, _TOP_K, _TOP_P, _MIN_P, _TOP_N_SIGMA, _TOP_A, _TYPICAL, _EPSILON, _ETA, _TOP_H,
    _P_LESS, _MIN_K, _SMOOTHING, _XTC,
) = map(tl.constexpr, range(len(_NAMES)))
# fmt: on


def numbers_of(steps: Sequence[ChainStep]) -> tuple[list[int], list[float]]:
    """List which steps there are, by the rank of their names, and the two numbers of each."""
    numbers = list[float]()
    for step in steps:
        value: Any = getattr(step, step.name)
        if step.xtc:
            numbers += step.xtc.threshold, step.xtc.probability
        elif step.smoothing:
            numbers += step.smoothing.factor, step.smoothing.curve
        elif step.min_p:
            numbers += math.log(step.min_p), 0.0
        else:
            numbers += float(value), 0.0
    return [_NAMES.index(step.name) for step in steps], numbers


def fields_of(chain: Chain) -> tuple[list[int], list[float]]:
    """List what the kernel reads of a request's chain."""
    names, numbers = numbers_of(chain.steps)
    return [len(names), *names], [chain.temperature, *numbers]


class ChainKernel:
    """A launcher of the kernel, on the current stream."""

    def __init__(self, inputs: RequestInputs) -> None:
        self._inputs = inputs
        self._room: torch.Tensor | None = None

    def launch(self, logits: torch.Tensor, rows: LogitsLayout, vocab_size: int) -> None:
        """Take the steps of rows with a chain, whose columns are contiguous."""
        if self._room is None or len(self._room) < len(rows):
            self._room = logits.new_empty((len(rows), MIN_K_TOKENS + 1), dtype=torch.float32)
        launch: Any = _chain_kernel[(len(rows),)]
        with torch.cuda.device_of(logits):
            launch(
                *(logits, logits.stride(0), logits.shape[1], highest_logit(logits.dtype)),
                rows.requests,
                *self._inputs.columns("chain", "chain_numbers"),
                *(self._inputs.requests, vocab_size, self._room),
                num_warps=8,
            )


@triton.jit(do_not_specialize=["requests"], do_not_specialize_on_alignment=ROW_POINTERS[:1])
def _chain_kernel(
    logits_ptr,  # [rows, columns]; changed
    logits_stride,
    columns,
    highest,  # no logit is higher
    requests_ptr,  # [rows] int32 or int64
    steps_ptr,  # [1 + steps, requests] int32, see `fields_of`; 0 without a chain
    numbers_ptr,  # [1 + 2 * steps, requests] float32
    requests,
    vocab_size,
    room_ptr,  # [rows, MIN_K_TOKENS + 1] float32
):
    row = tl.program_id(0)
    request = tl.load(requests_ptr + row)
    count = tl.load(steps_ptr + request)
    if count == 0:
        return
    row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    top = find_top(row_ptr, vocab_size)
    if (top >= _FORCED_SHARE * highest) | (top <= -highest / 2):
        return
    temperature = tl.load(numbers_ptr + request)
    steps_ptr += requests + request
    numbers_ptr += requests + request
    room_ptr += row * (_MIN_K_TOKENS + 1)
    lowest = tl.zeros_like(top) - highest / 2
    low, high, before, squares, cubes, after, likely, likeliest, probability = narrow(
        row_ptr, vocab_size, top, lowest, count, steps_ptr, numbers_ptr, requests, room_ptr
    )
    curve = before, squares, cubes, after, top
    lowering = tl.zeros_like(top)
    if likely <= top:
        lowering = lower(row_ptr, vocab_size, low, high, likely, likeliest, probability, *curve)
    for start in range(0, columns, COLUMNS):
        at = start + tl.arange(0, COLUMNS)
        logits = load(row_ptr, at, vocab_size)
        bent = bend(logits, *curve)
        bent = tl.where((logits >= likely) & (at != likeliest), bent + lowering, bent)
        is_left = within(logits, low, high, top)
        bent = tl.where(is_left, tl.minimum(bent * temperature, highest), -float("inf"))
        tl.store(row_ptr + at, bent.to(logits_ptr.dtype.element_ty), mask=at < columns)


@triton.jit
def narrow(row_ptr, vocab_size, top, lowest, count, steps_ptr, numbers_ptr, requests, room_ptr):
    """Take steps.

    Returns:
        The lowest and the highest logit that is left besides ``top``, how logits are bent, see
        ``bend``, the lowest logit that XTC excludes, the column that it spares among these, and how
        often it excludes.
    """
    low = lowest
    high = top
    one = tl.zeros_like(top) + 1.0
    before = one
    after = one
    squares = one * 0.0
    cubes = one * 0.0
    likely = one * float("inf")
    likeliest = tl.zeros_like(count) - 1
    probability = one
    for i in range(count):
        name = tl.load(steps_ptr + i * requests)
        number = tl.load(numbers_ptr + 2 * i * requests)
        other = tl.load(numbers_ptr + (2 * i + 1) * requests)
        curve = before, squares, cubes, after, top
        row = row_ptr, vocab_size, low, high
        highest = bend(top, *curve)
        bound = one * -float("inf")  # of bent logits
        if name == _TEMPERATURE:
            is_bent = squares > 0
            before = tl.where(is_bent, before, number)
            after = tl.where(is_bent, number, after)
        elif name == _SMOOTHING:
            squares = number * (3.0 - other) / 2.0
            cubes = number * (other - 1.0) / 2.0
        elif name == _MIN_P:
            bound = highest + number
        elif name == _TOP_K:
            if number < measure(*row, *curve, low, COUNT, 0.0):
                low = bisect(*row, *curve, low, top, number, COUNT, 0.0)
        elif name == _TOP_P:
            mass = measure(*row, *curve, low, MASS, 0.0)
            low = bisect(*row, *curve, low, top, number * mass, MASS, 0.0)
        elif name == _MIN_K:
            low = tl.minimum(top, find_fall(*row, *curve, number, room_ptr))
        else:
            kept, mass, depths, masses, sums, _ = add_up(*row, *curve)
            if name == _TOP_N_SIGMA:
                spread = measure(*row, *curve, low, SQUARES, sums / kept) / kept
                bound = highest - number * tl.sqrt_rn(spread)
            elif name == _TOP_A:
                bound = highest + tl.log(number / mass)
            elif name == _EPSILON:
                bound = highest + tl.log(number * mass)
            elif name == _ETA:
                entropy = tl.log(mass) - depths / mass
                share = tl.minimum(number, tl.sqrt_rn(number) * tl.exp(-entropy))
                bound = highest + tl.log(share * mass)
            elif name == _P_LESS:
                bound = highest + tl.log(masses / mass)
            elif name == _TYPICAL:
                expected = highest + depths / mass
                farthest = one * -3e38
                reach = -bisect(*row, *curve, farthest, one * 0.0, number * mass, NEAR, expected)
                bound = expected - reach
                high = find_lowest(expected + reach, *curve, 1)
            elif name == _TOP_H:
                low = find_first_terms(*row, *curve, number, kept)
            elif name == _XTC:
                least = find_lowest(highest + tl.log(number * mass), *curve, 0)
                likely, likeliest = find_likely(*row, top, least)
                probability = other
        low = tl.minimum(tl.maximum(low, find_lowest(bound, *curve, 0)), top)
    return low, high, before, squares, cubes, after, likely, likeliest, probability


@triton.jit
def find_first_terms(
    row_ptr, vocab_size, low, high, before, squares, cubes, after, top, share, kept
):
    """Return the lowest logit that `top_h` keeps."""
    curve = before, squares, cubes, after, top
    row = row_ptr, vocab_size, low, high
    first = low
    surplus = kept * 0  # tokens that are as likely as the last of the likeliest
    if kept > _TOP_H_TOKENS:
        wanted = kept * 0 + _TOP_H_TOKENS
        first = bisect(*row, *curve, low, top, wanted, COUNT, 0.0)
        surplus = measure(*row, *curve, first, COUNT, 0.0) - _TOP_H_TOKENS
    _, mass, by_mass, _, _, _ = add_up(row_ptr, vocab_size, first, high, *curve)
    last = tl.maximum(bend(first, *curve) - bend(top, *curve), DEEP)
    mass -= surplus * tl.exp(last)
    by_mass -= surplus * tl.exp(last) * last
    log_mass = tl.log(mass)
    wanted = share * (log_mass * mass - by_mass) * (1.0 + 1e-6)  # for what sums are rounded by
    # The highest bound that leaves more than is wanted: its tokens are the first beyond.
    more = float_of(order_of(wanted) + 1)
    bound = bisect(*row, *curve, first, top, more, ENTROPY, log_mass)
    above = float_of(order_of(bound) + 1)
    depth = tl.maximum(bend(bound, *curve) - bend(top, *curve), DEEP)
    terms = measure(*row, *curve, above, ENTROPY, log_mass)
    terms += tl.exp(depth) * (log_mass - depth)
    return tl.where((terms <= wanted) | (bound >= top), bound, above)


@triton.jit
def find_fall(row_ptr, vocab_size, low, high, before, squares, cubes, after, top, tau, room_ptr):
    """Return the lowest logit that `min_k` keeps."""
    curve = before, squares, cubes, after, top
    row = row_ptr, vocab_size, low, high
    kept, _, _, _, _, least = add_up(*row, *curve)
    first = low
    above = low
    if kept > _MIN_K_TOKENS:
        wanted = kept * 0 + _MIN_K_TOKENS
        first = bisect(*row, *curve, low, top, wanted, COUNT, 0.0)
        above = float_of(order_of(first) + 1)
    # The likeliest tokens, in any order; those that are as likely as the last come to the end.
    filled = tl.zeros_like(vocab_size) + 0
    for start in range(0, vocab_size, COLUMNS):
        logits = load(row_ptr, start + tl.arange(0, COLUMNS), vocab_size)
        is_left = within(logits, low, high, top)
        is_above = is_left & (logits >= above)
        rank = filled + tl.cumsum(is_above.to(tl.int32)) - 1
        tl.store(room_ptr + rank, logits, mask=is_above)
        filled += tl.sum(is_above.to(tl.int32))
    tl.debug_barrier()
    ranks = tl.arange(0, _MIN_K_TOKENS)
    count = tl.minimum(kept, _MIN_K_TOKENS).to(tl.int32)
    values = tl.load(room_ptr + ranks, mask=ranks < filled, other=0.0)
    values = tl.where(ranks < filled, values, tl.where(ranks < count, first, -float("inf")))
    values = tl.sort(values, descending=True)  # pyright: ignore[reportArgumentType]
    tl.debug_barrier()
    tl.store(room_ptr + ranks, values)
    tl.debug_barrier()
    following = tl.load(room_ptr + ranks + 1, mask=ranks + 1 < count, other=0.0)
    falls = (bend(values, *curve) - bend(following, *curve)) / (ranks + 1).to(tl.float32)
    falls = tl.where(ranks + 1 < count, falls, -1.0)
    rank = tl.min(tl.where(falls == tl.max(falls), ranks, _MIN_K_TOKENS))
    bound = tl.sum(tl.where(ranks == rank, values, 0.0))
    enough = tl.minimum(tl.floor(tau / tl.maximum(-least, 1e-30)), kept)
    if enough > 0:
        bound = tl.minimum(bound, bisect(*row, *curve, low, top, enough, COUNT, 0.0))
    return tl.where(least == 0, low, bound)


@triton.jit
def find_likely(row_ptr, vocab_size, low, high, top, least):
    """Return the lowest logit that XTC excludes, inf if none, and the column that it spares."""
    found = top * 0 + float("inf")
    spared = tl.zeros_like(vocab_size) - 1
    for start in range(0, vocab_size, COLUMNS):
        at = start + tl.arange(0, COLUMNS)
        logits = load(row_ptr, at, vocab_size)
        is_likely = within(logits, low, high, top) & (logits >= least)
        lowest = tl.min(tl.where(is_likely, logits, float("inf")))
        last = tl.max(tl.where(is_likely & (logits == lowest), at, -1))
        spared = tl.where(lowest <= found, tl.maximum(last, spared), spared)
        found = tl.minimum(found, lowest)
    return found, spared


@triton.jit
def lower(
    row_ptr,
    vocab_size,
    low,
    high,
    likely,
    likeliest,
    probability,
    before,
    squares,
    cubes,
    after,
    top,
):
    """Return what excluded logits get, for XTC's distribution without its randomness."""
    curve = before, squares, cubes, after, top
    highest = top * 0 - float("inf")  # of the others
    for start in range(0, vocab_size, COLUMNS):
        at = start + tl.arange(0, COLUMNS)
        logits = load(row_ptr, at, vocab_size)
        is_left = within(logits, low, high, top)
        is_other = is_left & ((logits < likely) | (at == likeliest))
        highest = tl.maximum(
            highest, tl.max(tl.where(is_other, bend(logits, *curve), -float("inf")))
        )
    excluded = top * 0
    others = top * 0
    for start in range(0, vocab_size, COLUMNS):
        at = start + tl.arange(0, COLUMNS)
        logits = load(row_ptr, at, vocab_size)
        is_left = within(logits, low, high, top)
        is_other = is_left & ((logits < likely) | (at == likeliest))
        bent = bend(logits, *curve)
        above = tl.exp(bent - bend(top, *curve))
        excluded += tl.sum(tl.where(is_left & ~is_other, above, 0.0))
        others += tl.sum(tl.where(is_other, tl.exp(bent - highest), 0.0))
    gap = bend(top, *curve) - highest + tl.log(excluded) - tl.log(others)
    gap += tl.log(probability)
    loss = tl.maximum(gap, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(gap)))
    return tl.where(excluded > 0, tl.log(1.0 - probability) - loss, 0.0)
