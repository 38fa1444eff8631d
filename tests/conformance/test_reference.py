"""What several edits make of a row together, and which outputs obey a spec."""

from typing import Any

import numpy as np
import pytest
from logitport.adapters.reference import (
    BAN,
    FORCED,
    Add,
    Edit,
    combine,
    obeys,
    permits,
)
from logitport.adapters.reference.kinds.base import Force, Move, Several
from logitport.spec import NoRepeatNgramSpec

from tests.support.kinds import F, allow, ban

ROW = np.array([1.0, 2.0, 3.0, -np.inf])
GONE = -np.inf
# edits | what they make of ROW
COMBINED: list[tuple[list[Any], list[float]]] = [
    ([None], [1, 2, 3, GONE]),
    ([Add({0: 1.5, 3: 4.0}), Add({0: -1})], [1.5, 2, 3, GONE]),
    ([ban(1)], [1, 2 + BAN, 3, GONE]),
    ([allow(0, 2)], [1, GONE, 3, GONE]),
    ([allow(0, 2), Add({0: 1, 1: 1})], [2, GONE, 3, GONE]),
    ([allow(3)], [GONE, GONE, GONE, -FORCED]),
    ([allow(1), ban(1)], [GONE, 2 + BAN, GONE, GONE]),
    ([allow(0, 1), allow(1, 2)], [1 + BAN, 2, GONE, GONE]),
    ([allow(0), allow(2)], [1 + BAN, GONE, GONE, GONE]),
    ([F(1), F(2)], [1, FORCED, 3, GONE]),
    ([ban(1), F(1), allow(0)], [1, FORCED, GONE, GONE]),
    ([F(3)], [1, 2, 3, FORCED]),
    ([Move(0, (2,), 0.7)], [3, 2, GONE, GONE]),
    ([Move(0, (1, 2), 0.0)], [3, GONE, GONE, GONE]),
    ([Move(0, (1, 2, 3), 2.0)], [2 * np.log(np.e + np.exp(1.5)), GONE, GONE, GONE]),
    ([Move(0, (3,), 1.0)], [1 + BAN, 2, 3, GONE]),
    ([Move(0, (2,), 1.0), F(2), allow(1, 2)], [FORCED, 2, GONE, GONE]),
    ([F(1), Move(0, (2,), 1.0)], [3, FORCED, GONE, GONE]),
    ([F(1), Force(2, is_last=True)], [1, 2, FORCED, GONE]),
]


@pytest.mark.parametrize(("acting", "expected"), COMBINED)
def test_what_combines_to_what(acting: list[Any], expected: list[float]) -> None:
    np.testing.assert_array_equal(combine(ROW, acting), expected)
    assert ROW.tolist() == [1, 2, 3, GONE]


@pytest.mark.parametrize(
    ("acting", "permitted"),
    [
        (None, [0, 1, 2, 3]),
        (F(1), [1]),
        (allow(0, 2), [0, 2]),
        (Add({1: -1000, 2: -999}), [0, 2, 3]),
        (Add({0: -1, 1: 1000, 2: 1000, 3: 999}), [1, 2]),
        (Several((ban(2), F(1), F(2))), [1]),
        (Several((allow(0, 1), ban(1))), [0]),
        (Move(0, (2,), 1.0), [0, 1, 3]),
        (Several((Move(0, (2,), 1.0), F(2))), [0]),
        (Several((Move(0, (2,), 1.0), F(1))), [1]),
        (Several((Move(0, (2, 3), 1.0), allow(1, 3))), [0, 1]),
        (Several((Move(0, (2,), 1.0), allow(0, 1))), [1]),
        (Several((F(1), Force(2, is_last=True))), [2]),
    ],
)
def test_what_an_edit_permits(acting: Edit, permitted: list[int]) -> None:
    assert [token for token in range(4) if permits([acting], token)] == permitted


@pytest.mark.parametrize(
    ("output", "obeyed"), [([3, 1, 2, 4], True), ([3, 1, 2, 3], False), ([3, 1, 2, 3, 4], False)]
)
def test_every_token_obeys_what_comes_before_it(output: list[int], obeyed: bool) -> None:
    assert obeys(NoRepeatNgramSpec(3), [1, 2], output) is obeyed
