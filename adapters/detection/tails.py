"""Logarithms of upper tails, which are no zeros where a probability would underflow."""

import math

import numpy as np


def log_gamma_tail(value: float, shape: float) -> float:
    """Return ``ln P(X >= value)`` of a Gamma variable with a scale of 1.

    ::

        >>> round(log_gamma_tail(3.0, 1.0), 12)
        -3.0

    Source: the series and the continued fraction of the incomplete gamma function, Press et al.,
    "Numerical Recipes", 6.2; Abramowitz and Stegun, 6.5.29 and 6.5.31.
    """
    if value <= 0:
        return 0.0
    scale = shape * math.log(value) - value - math.lgamma(shape)
    if value < shape + 1:  # the lower tail, as a series
        term = total = 1 / shape
        index = shape
        while term > total * 1e-17:
            index += 1
            term *= value / index
            total += term
        return math.log1p(-min(math.exp(scale + math.log(total)), 1 - 1e-16))
    b = value + 1 - shape  # the upper tail, as a continued fraction: Lentz's algorithm
    c, d = 1e300, 1 / b
    fraction = d
    for i in range(1, 1_000_000):
        factor = -i * (i - shape)
        b += 2
        d = 1 / (factor * d + b or 1e-300)
        c = b + factor / c or 1e-300
        fraction *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return min(0.0, scale + math.log(fraction))


def log_binomial_tail(hits: int, trials: int, share: float) -> float:
    """Return ``ln P(X >= hits)`` of ``trials`` coins that each hit with the chance ``share``.

    ::

        >>> math.exp(log_binomial_tail(2, 2, 0.25))
        0.0625
    """
    if hits <= 0:
        return 0.0
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, trials + 1)))])
    k = np.arange(hits, trials + 1)
    terms = logs[trials] - logs[k] - logs[trials - k]
    terms += k * math.log(share) + (trials - k) * math.log1p(-share)
    peak = terms.max()
    return min(0.0, float(peak + np.log(np.exp(terms - peak).sum())))


def log_normal_tail(z: float) -> float:
    """Return ``ln P(Z >= z)`` of a standard normal variable.

    ::

        >>> round(math.exp(log_normal_tail(1.959964)), 6)
        0.025
    """
    if z < 30:
        return math.log(math.erfc(z / math.sqrt(2)) / 2)
    return -z * z / 2 - math.log(z * math.sqrt(2 * math.pi))  # relative error below 1 / z^2
