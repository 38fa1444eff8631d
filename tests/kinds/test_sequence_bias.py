import pytest
from logitport.spec import SequenceBiasSpec, SpecError, limits

from tests.support.kinds import (
    AT_LEAST_0,
    SOME,
    SOUGHT,
    TOO_HIGH,
    TOO_LONG_TO_FIND,
    TOO_MANY_TO_FIND,
    Add,
    RealizedKindTests,
)
from tests.support.small_tokenizer import CAT, GREEDY, OG, SPACE_CAT, SPACE_DOG, D

SPEC = SequenceBiasSpec(((5,), (1, 2), (1, 1, 3), (2,)), (1.5, 2.0, -3.0, -0.5))
MANY = tuple((first, second, 5) for first in range(32) for second in range(56))


class TestRows(RealizedKindTests):
    golden = SequenceBiasSpec(((9,), (18, 73, 18)), (-100, 2.5))
    refused = (
        ({"sequences": [], "biases": [1]}, SOME, "sequences"),
        ({"sequences": [[1], []], "biases": [1, 1]}, SOME, "sequences[1]"),
        ({"sequences": [[1, -1]], "biases": [1]}, AT_LEAST_0, "sequences[0][1]"),
        ({"sequences": [[1]], "biases": []}, SOME, "biases"),
        ({"sequences": [[1]], "biases": [10_001]}, TOO_HIGH, "biases[0]"),
        (
            {"sequences": [[1], [2]], "biases": [1]},
            "Expected a bias for each of 2 sequences, got 1",
            "biases",
        ),
        (
            {"sequences": [[1], [2, 3], [1]], "biases": [1, 1, 1]},
            "The same as `$.sequences[0]`",
            "sequences[2]",
        ),
        ({"sequences": [[1], [0] * SOUGHT], "biases": [1, 1]}, TOO_MANY_TO_FIND, "sequences"),
        ({"sequences": [[1] * 65], "biases": [1]}, TOO_LONG_TO_FIND, "sequences[0]"),
    )
    largest = (SequenceBiasSpec(MANY, (-limits.MAX_BIAS,) * len(MANY)),)
    beyond = ((SequenceBiasSpec(((1,), (2, 9)), (1, 1)), "sequences[1][1]"),)
    histories = (
        (
            SPEC,
            [1],
            [
                *(Add({5: 1.5, 2: -0.5}), 1),
                *(Add({5: 1.5, 2: 1.5}), 1),
                *(Add({5: 1.5, 2: 1.5, 3: -3.0}), 4),
                Add({5: 1.5, 2: -0.5}),
            ],
        ),
        (SequenceBiasSpec(((7, 8),), (1,)), [7], [None, 7, Add({8: 1.0}), 8, None]),
    )


def test_words():
    spec = SequenceBiasSpec.from_words({"dog": 2, " cat": -1, "cat": -1}, GREEDY)
    sequences = ((SPACE_DOG,), (D, OG), (SPACE_CAT,), (CAT,))
    assert spec == SequenceBiasSpec(sequences, (2, 2, -1, -1))
    with pytest.raises(SpecError, match=r"Tokens \[1\] of ' cat' have another bias already"):
        SequenceBiasSpec.from_words({"cat": 2, " cat": 1}, GREEDY)
