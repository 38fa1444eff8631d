"""The steps of a chain on one row: which tokens they leave, and with which logits.

Sums are float64. Only what a step needs is computed, and only for the tokens that are left: after
the first truncation, these are few. ``spec.ChainStep`` has the definitions and their sources.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....spec import ChainStep
from ....spec.kinds.chain import MIN_K_TOKENS, TOP_H_TOKENS
from ..logits import Floats, Mask
from ..loops import loop

_DEEP = -1e4
"""A depth where no mass is."""
_LEAST = 5e-324
"""A share above 0, where a product is too small for float64."""
_RANGES, _FINENESS, _FEW = 512, 16.0, 64
"""Values are counted in so many ranges, at first of 1/16 each; the last has all below. So few are
put in order."""


class Left(NamedTuple):
    """The tokens that steps leave, ascending, and their logits."""

    tokens: npt.NDArray[np.int64]
    logits: Floats


def shape(row: Floats, steps: Sequence[ChainStep], banned: float) -> Left | None:
    """Take the steps.

    Args:
        row: ``[columns]``, logits, which stay as they are.
        steps: the steps.
        banned: a logit that no token has which is not banned.

    Returns:
        The tokens and logits; ``None`` if all tokens are banned, or one has an infinite logit.
    """
    row = np.ascontiguousarray(row)  # loops are compiled for these alone
    every, logits = row.min() > banned, row  # false if any is NaN
    tokens = np.arange(len(row)) if every else np.flatnonzero(row > banned)
    if not every:
        logits = row[tokens]
    if not len(logits) or logits.max() == np.inf:
        return None
    excluded, probability = None, 0.0
    for step in steps:
        name, value = step.name, getattr(step, step.name)
        if name == "temperature":
            with np.errstate(over="ignore"):  # of the lowest number, with which some engines mask
                logits = np.divide(logits, np.float32(value))
        elif name == "smoothing":
            logits = _smooth(logits, value.factor, value.curve)
        elif name == "xtc":
            excluded, probability = _exclude(logits, value.threshold), value.probability
        else:
            is_kept = _KEEP[name](logits, value)
            tokens, logits = tokens[is_kept], logits[is_kept]
    if excluded is not None and excluded.any():
        lowered = logits[excluded] + _lowering(logits, excluded, probability)
        logits = logits.copy()
        logits[excluded] = lowered
    return Left(tokens, logits)


def _masses(logits: Floats) -> Floats:
    """Return the probabilities, times a factor that makes the highest 1."""
    return np.exp(logits - logits.max())


def _sum(values: Any) -> float:
    return float(values.sum(dtype=np.float64))


def _border(logits: Floats, share: float) -> np.float32:
    """Return the logit that has this share of the highest probability."""
    return logits.max() + np.float32(math.log(share or _LEAST))


def _from(logits: Floats, share: float) -> Mask:
    """Keep what has this share of the highest probability, or more."""
    return logits >= min(_border(logits, share), logits.max())


def _top_k(logits: Floats, count: int) -> Mask:
    first = max(len(logits) - count, 0)
    return logits >= np.partition(logits, first)[first]


def _top_p(logits: Floats, share: float) -> Mask:
    return logits >= find_share(logits, _masses(logits), share)


def _typical(logits: Floats, share: float) -> Mask:
    masses, top = _masses(logits), logits.max()
    depths = np.maximum(logits - top, np.float32(_DEEP))
    expected = top + np.float32(_sum(masses * depths) / _sum(masses))  # where -ln p is H
    nearness = -np.abs(logits - expected)
    is_near = nearness >= find_share(nearness, masses, share)
    return is_near | (logits == top)


def _top_n_sigma(logits: Floats, count: float) -> Mask:
    return logits >= logits.max() - np.float32(count * float(logits.std(dtype=np.float64)))


def _eta(logits: Floats, epsilon: float) -> Mask:
    masses = _masses(logits)
    total, depths = _sum(masses), np.maximum(logits - logits.max(), np.float32(_DEEP))
    entropy = math.log(total) - _sum(masses * depths) / total
    return _from(logits, min(epsilon, math.sqrt(epsilon) * math.exp(-entropy)) * total)


def _p_less(logits: Floats, _: Any) -> Mask:
    masses = _masses(logits)
    return _from(logits, _sum(masses * masses) / _sum(masses))


def _top_h(logits: Floats, share: float) -> Mask:
    top = _highest(logits, TOP_H_TOKENS)
    chances = np.exp(top - top[0])
    chances /= chances.sum()
    terms = -chances * np.log(np.maximum(chances, 1e-300))
    wanted = share * terms.sum() * (1 + 1e-6)  # for what sums are rounded by
    count = int((terms.cumsum() <= wanted).sum())
    return logits >= np.float32(top[max(count, 1) - 1])


def _min_k(logits: Floats, tau: float) -> Mask:
    top, least = _highest(logits, MIN_K_TOKENS), float(logits.min())
    if top[0] == least:
        return logits >= least
    falls = (top[:-1] - top[1:]) / np.arange(1, len(top))
    enough = min(int(tau / (top[0] - least)), len(logits))
    last = np.float32(top[int(falls.argmax())])
    return (logits >= last) | (_top_k(logits, enough) if enough > 0 else False)


def _highest(logits: Floats, count: int) -> npt.NDArray[np.float64]:
    """Return the highest logits, descending."""
    first = max(len(logits) - count, 0)
    return np.sort(np.partition(logits, first)[first:])[::-1].astype(np.float64)


_KEEP: dict[str, Callable[[Floats, Any], Mask]] = {
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _from,
    "top_n_sigma": _top_n_sigma,
    "top_a": lambda logits, share: _from(logits, share / _sum(_masses(logits))),
    "typical": _typical,
    "epsilon": lambda logits, share: _from(logits, share * _sum(_masses(logits))),
    "eta": _eta,
    "top_h": _top_h,
    "p_less": _p_less,
    "min_k": _min_k,
}
"""Which of some logits a step keeps. The highest is always among them."""


def _smooth(logits: Floats, factor: float, curve: float) -> Floats:
    """Bend the logits."""
    top = logits.max()
    depth = np.maximum(logits - top, np.float32(-1e9))  # its cube is a float
    squares, cubes = np.float32((3 - curve) / 2 * factor), np.float32((curve - 1) / 2 * factor)
    return top - (squares - cubes * depth) * depth * depth


def _exclude(logits: Floats, threshold: float) -> Mask:
    """Return which tokens XTC excludes: those that are likely enough, but for the least likely."""
    is_likely = logits >= _border(logits, threshold * _sum(_masses(logits)))
    if is_likely.any():
        is_likely[np.flatnonzero(is_likely & (logits == logits[is_likely].min()))[-1]] = False
    return is_likely


def _lowering(logits: Floats, excluded: Mask, probability: float) -> np.float32:
    """Return what excluded tokens' logits get, for XTC's distribution without its randomness."""
    if probability == 1:
        return np.float32(-np.inf)
    top, of_others = logits[excluded].max(), logits[~excluded].max()
    gap = float(top - of_others) + math.log(_sum(_masses(logits[excluded])))
    gap -= math.log(_sum(_masses(logits[~excluded])))  # ln(m / (1 - m))
    return np.float32(math.log(1 - probability) - np.logaddexp(0, math.log(probability) + gap))


@loop
def find_share(values: Any, masses: Any, share: float) -> Any:
    """Return the lowest of the highest values that together have a share of all masses.

    Values are counted by ranges. Only those in the range of the last one are looked at again, in
    narrower ranges, so that nothing large is put in order. All of it is more than sums can add up
    to: a value without a mass would not be kept, which a temperature later may bring back.
    """
    if share >= 1:
        return -np.inf
    wanted, before, high, per_range = 0.0, 0.0, values.max(), _FINENESS
    for each in masses:
        wanted += each
    wanted *= share
    while True:
        sums, counts, chosen = np.zeros(_RANGES), np.zeros(_RANGES, np.int64), -1
        for i in range(len(values)):
            at = range_of(values[i], high, per_range)
            sums[at] += masses[i]
            counts[at] += 1
        for at in range(_RANGES):
            if counts[at] > 0:
                before += sums[chosen] if chosen >= 0 else 0.0
                chosen = at
                if before + sums[at] >= wanted:
                    break
        count, left, left_masses = 0, np.empty_like(values), np.empty_like(masses)
        for i in range(len(values)):
            if values[i] > -np.inf and range_of(values[i], high, per_range) == chosen:
                left[count], left_masses[count] = values[i], masses[i]
                count += 1
        if count == 0:
            return -np.inf
        values, masses = left[:count], left_masses[:count]
        high, low = values.max(), values.min()
        if high == low:
            return high
        if count < _FEW:
            break
        per_range = (_RANGES - 1) / (np.float64(high) - np.float64(low))
    ordered = np.argsort(values)
    last = len(values) - 1
    while last > 0 and before + masses[ordered[last]] < wanted:
        before += masses[ordered[last]]
        last -= 1
    return values[ordered[last]]


@loop
def range_of(value: Any, high: Any, per_range: float) -> int:
    """Return in which range a value is, counted from the highest value."""
    at = (np.float64(high) - np.float64(value)) * per_range
    return int(at) if at < _RANGES else _RANGES - 1
