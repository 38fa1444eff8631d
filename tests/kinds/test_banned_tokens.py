import pytest
from logitport.spec import BannedTokensSpec, SpecError, limits

from tests.support.kinds import LONG, SOME, TOO_LARGE, RealizedKindTests, ban
from tests.support.small_tokenizer import CAT, FIVE, GREEDY, SPACE_CAT, SPACE_DOG

SPEC = BannedTokensSpec((3, 1))


class TestRows(RealizedKindTests):
    golden = BannedTokensSpec((1, 2))
    refused = (
        ({"token_ids": []}, SOME, "token_ids"),
        ({"token_ids": [1, limits.MAX_INT + 1]}, TOO_LARGE, "token_ids[1]"),
    )
    largest = (BannedTokensSpec(tuple(LONG[1:])),)
    beyond = ((BannedTokensSpec((1, 9)), "token_ids[1]"),)
    histories = ((SPEC, [], [ban(3, 1), 2, ban(3, 1)]),)


def test_words_of_one_token():
    assert BannedTokensSpec.from_words(["cat"], GREEDY).token_ids == (SPACE_CAT, CAT)
    dog = BannedTokensSpec.from_words(["dog"], GREEDY, leading_space="with")
    assert dog.token_ids == (SPACE_DOG,)
    # A space of its own need not be banned.
    assert BannedTokensSpec.from_words(["5"], GREEDY).token_ids == (FIVE,)


def test_a_word_of_several_tokens():
    with pytest.raises(SpecError, match=r"2 tokens of 'dog': .*BannedSequencesSpec\.from_words"):
        BannedTokensSpec.from_words(["cat", "dog"], GREEDY)
