"""What kernels find in a row of logits: sums over what is left of it, and bounds for these.

What is left are the logits from ``low`` to ``high``, and ``top``. Temperature and smoothing bend
them, see ``bend``, but keep their order.
"""

import triton
import triton.language as tl

COLUMNS = tl.constexpr(4096)
"""The columns of a row that are read at once."""
DEEP = tl.constexpr(-1e4)
"""A depth below which no mass is."""
COUNT, MASS, ENTROPY, NEAR, SQUARES = map(tl.constexpr, range(5))
"""What ``measure`` adds up."""

_SIGN = tl.constexpr(2**31 - 1)


@triton.jit
def load(row_ptr, at, vocab_size):
    """Load logits; NaN is -inf."""
    logits = tl.load(row_ptr + at, mask=at < vocab_size, other=-float("inf")).to(tl.float32)
    return tl.where(logits == logits, logits, -float("inf"))


@triton.jit
def find_top(row_ptr, vocab_size):
    """Return the highest logit."""
    top = -float("inf")
    for start in range(0, vocab_size, COLUMNS):
        top = tl.maximum(top, tl.max(load(row_ptr, start + tl.arange(0, COLUMNS), vocab_size)))
    return top


@triton.jit
def within(logits, low, high, top):
    """Return which logits are left."""
    return ((logits >= low) & (logits <= high)) | (logits == top)


@triton.jit
def bend(logits, before, squares, cubes, after, top):
    """Bend logits: divide, smooth, divide. Their order stays."""
    highest = tl.div_rn(top, before)
    divided = tl.div_rn(logits, before)
    depths = tl.maximum(divided - highest, -1e9)
    smooth = highest - (squares - cubes * depths) * depths * depths
    return tl.div_rn(tl.where(squares + cubes > 0, smooth, divided), after)


@triton.jit
def find_lowest(bound, before, squares, cubes, after, top, above):
    """Return the lowest logit that is not below a bound when bent, or the last not above it.

    Beyond the highest, it is the float after that.
    """
    low = order_of(top * 0 - 3e38)
    high = order_of(top) + 1
    while low < high:
        middle = low + (high - low) // 2
        bent = bend(float_of(middle), before, squares, cubes, after, top)
        is_there = tl.where(above != 0, bent > bound, bent >= bound)
        if is_there:
            high = middle
        else:
            low = middle + 1
    return float_of(low - above)


@triton.jit
def add_up(row_ptr, vocab_size, low, high, before, squares, cubes, after, top):
    """Add up what is left.

    Returns:
        The number of the tokens, their masses, the depths below the highest by mass, the squares of
        the masses, the depths, and the lowest depth.
    """
    curve = before, squares, cubes, after, top
    highest = bend(top, *curve)
    kept = highest * 0
    mass = highest * 0
    by_mass = highest * 0
    masses = highest * 0
    sums = highest * 0
    least = highest * 0
    for start in range(0, vocab_size, COLUMNS):
        logits = load(row_ptr, start + tl.arange(0, COLUMNS), vocab_size)
        is_left = within(logits, low, high, top)
        depths = tl.where(is_left, bend(logits, *curve) - highest, 0.0)
        each = tl.where(is_left, tl.exp(depths), 0.0)
        kept += tl.sum(is_left.to(tl.float32))
        mass += tl.sum(each)
        by_mass += tl.sum(each * tl.maximum(depths, DEEP))
        masses += tl.sum(each * each)
        sums += tl.sum(depths)
        least = tl.minimum(least, tl.min(depths))
    return kept, mass, by_mass, masses, sums, least


@triton.jit
def measure(
    row_ptr, vocab_size, low, high, before, squares, cubes, after, top, bound, what, center
):
    """Add up what is left and not below a bound; ``what`` says what, and below which bound."""
    curve = before, squares, cubes, after, top
    highest = bend(top, *curve)
    total = highest * 0
    for start in range(0, vocab_size, COLUMNS):
        logits = load(row_ptr, start + tl.arange(0, COLUMNS), vocab_size)
        is_left = within(logits, low, high, top)
        bent = bend(logits, *curve)
        depths = bent - highest
        is_left = is_left & (tl.where(what == NEAR, -tl.abs(bent - center), logits) >= bound)
        each = tl.exp(depths)
        each = tl.where(what == ENTROPY, each * (center - tl.maximum(depths, DEEP)), each)
        each = tl.where(what == COUNT, 1.0, each)
        each = tl.where(what == SQUARES, (depths - center) * (depths - center), each)
        total += tl.sum(tl.where(is_left, each, 0.0))
    return total


@triton.jit
def bisect(
    row_ptr,
    vocab_size,
    low,
    high,
    before,
    squares,
    cubes,
    after,
    top,
    least,
    most,
    wanted,
    what,
    center,
):
    """Find the highest bound, from ``least`` to ``most``, that leaves as much as is wanted.

    Floats are compared as the integers that have the same order. If no bound leaves as much, it is
    ``least``.
    """
    row = row_ptr, vocab_size, low, high, before, squares, cubes, after, top
    first = order_of(least)
    last = order_of(most)
    while first < last:
        middle = last - (last - first) // 2
        if measure(*row, float_of(middle), what, center) >= wanted:
            first = middle
        else:
            last = middle - 1
    return float_of(first)


@triton.jit
def order_of(number):
    """Return an integer for a float; integers have the order of their floats."""
    bits = number.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ _SIGN, bits).to(tl.int64)


@triton.jit
def float_of(order):
    """Return the float of an integer; see ``order_of``."""
    bits = order.to(tl.int32)
    return tl.where(bits < 0, bits ^ _SIGN, bits).to(tl.float32, bitcast=True)
