import pytest
from logitport.adapters.reference import edit
from logitport.spec import DrySpec, limits
from logitport.spec.kinds.dry import MAX_MATCH, MAX_MATCHES

from tests.support.kinds import AT_LEAST_1, LONG, TOO_HIGH, TOO_LONG, Add, RealizedKindTests

A, B, C, Y = 1, 2, 3, 4
EXAMPLE = [A, B, C, C, B, C, Y, A, B, C]
"""The example in llama.cpp's sampler: 3 tokens match before C, 1 before B, 2 before Y."""

MOST = limits.MAX_BIAS


class TestRows(RealizedKindTests):
    golden = DrySpec(0.8, 1.75, 2, 4096, (13, 198))
    refused = (
        ({"multiplier": 0}, "Expected `float` > 0.0", "multiplier"),
        ({"multiplier": MOST + 1}, TOO_HIGH, "multiplier"),
        ({"multiplier": 1, "base": 0.9}, "Expected `float` >= 1.0", "base"),
        ({"multiplier": 1, "base": MOST + 1}, TOO_HIGH, "base"),
        ({"multiplier": 1, "allowed_length": 0}, AT_LEAST_1, "allowed_length"),
        (
            {"multiplier": 1, "allowed_length": MAX_MATCH + 1},
            f"Expected `int` <= {MAX_MATCH}",
            "allowed_length",
        ),
        ({"multiplier": 1, "range": 0}, AT_LEAST_1, "range"),
        ({"multiplier": 1, "breaker_token_ids": LONG}, TOO_LONG, "breaker_token_ids"),
    )
    largest = (DrySpec(MOST, MOST, MAX_MATCH, limits.MAX_INT),)
    beyond = ((DrySpec(1, breaker_token_ids=(1, 9)), "breaker_token_ids[1]"),)
    histories = (
        (DrySpec(1, 2, 1), EXAMPLE, [Add({C: -4, B: -1, Y: -2})]),
        (DrySpec(0.5, 3, 2), EXAMPLE, [Add({C: -1.5, Y: -0.5}), C, Add({B: -4.5})]),
        (DrySpec(1, 2, 3), EXAMPLE, [Add({C: -1})]),
        (DrySpec(1, 2, 4), EXAMPLE, [None]),
        # The match ends after a breaker, and no breaker is penalized.
        (DrySpec(1, 2, 1, None, (B,)), EXAMPLE, [Add({C: -1, Y: -1})]),
        (DrySpec(1, 2, 1, None, (C,)), EXAMPLE, [None]),
        (DrySpec(1, 2, 1, None, (Y,)), EXAMPLE, [Add({C: -4, B: -1})]),
        # Neither do matches begin before the range.
        (DrySpec(1, 2, 1, 4), EXAMPLE, [None]),
        (DrySpec(1, 2, 1, 5), EXAMPLE, [Add({Y: -1})]),
        (DrySpec(1, 2, 1, 6), EXAMPLE, [Add({Y: -2})]),
        # Occurrences may overlap.
        (
            DrySpec(1, 2, 1),
            [5] * 4,
            [Add({5: -4}), 5, Add({5: -8}), 6, None, 5, Add({5: -1, 6: -1})],
        ),
        (DrySpec(1, 2), [], [None, 5, None, 5, None, 5, Add({5: -1}), 5, Add({5: -2})]),
    )


@pytest.mark.parametrize(
    ("spec", "history", "expected"),
    [
        pytest.param(DrySpec(MOST, MOST, 1), [5] * 70, {5: -MOST}, id="largest penalty"),
        pytest.param(DrySpec(1e-15, 2, 1), [5] * 100, {5: -1e-15 * 2.0**63}, id="longest match"),
        pytest.param(
            DrySpec(1, 2, 1),
            [7, 1, 3, *[1, 4] * (MAX_MATCHES - 1), 7, 1],
            {3: -2, 4: -1},
            id="most matches",
        ),
        pytest.param(
            DrySpec(1, 2, 1), [7, 1, 3, *[1, 4] * MAX_MATCHES, 7, 1], {4: -1}, id="too many"
        ),
        pytest.param(
            DrySpec(1, 2, 1, None, (3,)),
            [7, 1, 4, *[1, 3] * MAX_MATCHES, 7, 1],
            {4: -2},
            id="breakers",
        ),
    ],
)
def test_bounds(spec: DrySpec, history: list[int], expected: dict[int, float]):
    assert edit(spec, history, []) == Add(expected)
    assert edit(spec, [], history) == Add(expected)
