"""What several edits make of a row together."""

from typing import Any

import numpy as np
import pytest
from logitport.adapters.conformance.reference import BAN, FORCED, Add, combine

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
]


@pytest.mark.parametrize(("acting", "expected"), COMBINED)
def test_what_combines_to_what(acting: list[Any], expected: list[float]) -> None:
    np.testing.assert_array_equal(combine(ROW, acting), expected)
    assert ROW.tolist() == [1, 2, 3, GONE]
