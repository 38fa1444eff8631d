"""Tails of distributions against written values, mpmath and scipy; examples in docstrings."""

import doctest
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from logitport.adapters.detection import philox, tails, torch_random
from logitport.adapters.detection.tails import (
    log_binomial_tail,
    log_gamma_tail,
    log_normal_tail,
)

SHAPES = [0.5, 1.0, 1.22, 5.0, 54.0, 64 / 0.82, 1000.0, 12_345.678, 1e5 / 0.68, 1e6, 1e6 / 0.68]
TIMES = [1e-9, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0, 1.001, 1.01, 1.1, 1.5, 3.0, 16.6]
TRIALS = [1, 2, 10, 200, 5000, 1_000_000]
HITS = [0.0, 0.01, 0.2, 0.25, 0.26, 0.3, 0.5, 0.999, 1.0]


# value, shape | the logarithm, from mpmath with 40 digits
@pytest.mark.parametrize(
    ("value", "shape", "expected"),
    [
        (0.0, 3.0, 0.0),
        (-1.0, 3.0, 0.0),
        (3.0, 1.0, -3.0),
        (10.0, 2.0, math.log(11) - 10),
        (200.0, 54, math.log(3.9576461531885089e-35)),
        (1e-300, 1e6, 0.0),
        (1e6, 1e6, math.log(0.49986701923987216)),
    ],
)
def test_gamma(value: float, shape: float, expected: float):
    assert log_gamma_tail(value, shape) == pytest.approx(expected, rel=1e-8, abs=1e-15)


@pytest.mark.parametrize("shape", SHAPES)
def test_gamma_falls(shape: float):
    """From 0 on, without an exception, for any number of tokens."""
    logs = [log_gamma_tail(shape * times, shape) for times in TIMES]
    assert logs[0] == pytest.approx(0.0, abs=1e-4)
    assert all(a >= b for a, b in pairwise(logs))
    assert all(-math.inf < log <= 0 for log in logs)


@pytest.mark.parametrize("shape", [each for each in SHAPES if each < 20_000])
def test_gamma_of_mpmath(shape: float):
    mpmath: Any = pytest.importorskip("mpmath")
    with mpmath.workdps(40):
        for times in TIMES:
            tail = mpmath.gammainc(shape, shape * times, mpmath.inf, regularized=True)
            found = log_gamma_tail(shape * times, shape)
            assert found == pytest.approx(float(mpmath.log(tail)), rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
def test_gamma_of_scipy(shape: float):
    special: Any = pytest.importorskip("scipy.special")
    for times in TIMES:
        expected = special.gammaincc(shape, shape * times)
        found = math.exp(log_gamma_tail(shape * times, shape))
        assert found == pytest.approx(expected, rel=1e-7, abs=1e-290)


@pytest.mark.parametrize("share", [0.001, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("trials", TRIALS)
def test_binomial(trials: int, share: float):
    logs = [log_binomial_tail(round(part * trials), trials, share) for part in HITS]
    assert logs[0] == 0
    assert logs[-1] == pytest.approx(trials * math.log(share), rel=1e-9)
    assert all(a >= b for a, b in pairwise(logs))
    if trials <= 200:
        for part, log in zip(HITS, logs, strict=True):
            terms = (
                math.comb(trials, k) * share**k * (1 - share) ** (trials - k)
                for k in range(round(part * trials), trials + 1)
            )
            assert math.exp(log) == pytest.approx(math.fsum(terms), rel=1e-9)


@pytest.mark.parametrize("trials", TRIALS)
def test_binomial_of_scipy(trials: int):
    stats: Any = pytest.importorskip("scipy.stats")
    for part in HITS:
        hits = round(part * trials)
        expected = stats.binom.sf(hits - 1, trials, 0.25)
        found = math.exp(log_binomial_tail(hits, trials, 0.25))
        assert found == pytest.approx(expected, rel=1e-7, abs=1e-290)


# z | the tail
@pytest.mark.parametrize(
    ("z", "tail"),
    [(0.0, 0.5), (-50.0, 1.0), (1.6448536269514722, 0.05), (6.0, 9.865876450376981e-10)],
)
def test_normal(z: float, tail: float):
    assert math.exp(log_normal_tail(z)) == pytest.approx(tail, rel=1e-9)


def test_normal_beyond_what_a_float_holds():
    mpmath: Any = pytest.importorskip("mpmath")
    for z in (5, 29.999, 30, 31, 100, 10_000):
        expected = float(mpmath.log(mpmath.erfc(z / mpmath.sqrt(2)) / 2))
        assert log_normal_tail(z) == pytest.approx(expected, rel=1e-5)
    steps = [log_normal_tail(z) for z in np.arange(-40, 60, 0.01).tolist()]
    assert all(a >= b for a, b in pairwise(steps))


@pytest.mark.parametrize("module", [philox, tails, torch_random], ids=lambda each: each.__name__)
def test_examples(module: Any):
    tests, report = doctest.DocTestFinder(exclude_empty=True).find(module), list[str]()
    assert any(test.examples for test in tests)
    for test in tests:
        flags = doctest.FAIL_FAST | doctest.ELLIPSIS
        doctest.DocTestRunner(optionflags=flags).run(test, out=report.append)
    assert report == []
