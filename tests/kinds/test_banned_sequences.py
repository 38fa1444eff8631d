from logitport.spec import BannedSequencesSpec, limits

from tests.support.kinds import (
    SOME,
    SOUGHT,
    TOO_LONG_TO_FIND,
    TOO_MANY_TO_FIND,
    RealizedKindTests,
    ban,
)
from tests.support.small_tokenizer import CAT, FIVE, GREEDY, OG, SPACE_CAT, SPACE_DOG, D, S

WORDS = BannedSequencesSpec(((5,), (1, 2), (1, 1, 3), (4, 1, 2, 6)))
MOST = limits.MAX_TOKEN_IDS // 3


class TestRows(RealizedKindTests):
    golden = BannedSequencesSpec(((9,), (18, 73, 18)))
    refused = (
        ({"sequences": []}, SOME, "sequences"),
        ({"sequences": [[1], []]}, SOME, "sequences[1]"),
        ({"sequences": [[1], [2, -1]]}, "Expected `int` >= 0", "sequences[1][1]"),
        ({"sequences": [1]}, "Expected `array`, got `int`", "sequences[0]"),
        ({"sequences": [[1]] * (MOST + 1)}, TOO_MANY_TO_FIND, "sequences"),
        ({"sequences": [[1], [0] * SOUGHT]}, TOO_MANY_TO_FIND, "sequences"),
        ({"sequences": [[1] * 64, [1] * 65]}, TOO_LONG_TO_FIND, "sequences[1]"),
    )
    largest = (
        BannedSequencesSpec(
            ((1,) * limits.MAX_PATTERN,) * (limits.MAX_TOKEN_IDS // 3 // limits.MAX_PATTERN)
        ),
        BannedSequencesSpec(((1,),) * MOST),
    )
    beyond = ((BannedSequencesSpec(((1,), (2, 9))), "sequences[1][1]"),)
    histories = (
        (WORDS, [1], [ban(5), 1, ban(5, 2), 1, ban(5, 2, 3), 1, ban(5, 2, 3), 4, ban(5)]),
        (WORDS, [], [ban(5), 4, ban(5), 1, ban(5, 2), 2, ban(5, 6), 6, ban(5)]),
    )


def test_words():
    spec = BannedSequencesSpec.from_words(["dog", "cats", " dog"], GREEDY)
    assert spec.sequences == ((SPACE_DOG,), (D, OG), (SPACE_CAT, S), (CAT, S))
    # A space of its own need not be banned.
    assert BannedSequencesSpec.from_words(["5"], GREEDY).sequences == ((FIVE,),)
