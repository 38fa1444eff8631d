from typing import Any

import pytest
from logitport.spec import AllowedTokensSpec

from tests.support.kinds import LONG, SOME, TOO_LONG, RealizedKindTests, allow
from tests.support.small_tokenizer import CAT, FIVE, GREEDY, OG, SPACE, SPACE_CAT, SPACE_DOG, D, S

SPEC = AllowedTokensSpec((3, 1, 3))


class TestRows(RealizedKindTests):
    golden = AllowedTokensSpec((32, 33, 2))
    refused = (({"token_ids": []}, SOME, "token_ids"), ({"token_ids": LONG}, TOO_LONG, "token_ids"))
    largest = (AllowedTokensSpec(tuple(LONG[1:])),)
    beyond = ((AllowedTokensSpec((1, 9)), "token_ids[1]"),)
    histories = ((SPEC, [], [allow(1, 3), 2, allow(1, 3)]),)


@pytest.mark.parametrize(
    ("words", "leading_space", "token_ids"),
    [
        (["cat"], "both", (SPACE_CAT, CAT)),
        (["cat"], "with", (SPACE_CAT,)),
        (["cat"], "without", (CAT,)),
        ([" cat", "cat"], "both", (SPACE_CAT, CAT)),
        (["dog", "cats"], "both", (SPACE_DOG, D, OG, SPACE_CAT, S, CAT)),
        (["5"], "both", (SPACE, FIVE)),
    ],
)
def test_words(words: Any, leading_space: Any, token_ids: tuple[int, ...]):
    spec = AllowedTokensSpec.from_words(words, GREEDY, leading_space=leading_space)
    assert spec.token_ids == token_ids
