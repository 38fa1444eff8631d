import pytest
from logitport.spec import MinTokensSpec, SpecError, limits

from tests.support.kinds import AT_LEAST_1, SOME, TOO_LARGE, RealizedKindTests, ban
from tests.support.small_tokenizer import GREEDY, NoEos

SPEC = MinTokensSpec(2, (0, 4))


class TestRows(RealizedKindTests):
    golden = MinTokensSpec(16, (0, 2))
    refused = (
        ({"n": 0, "stop_token_ids": [1]}, AT_LEAST_1, "n"),
        ({"n": 2**31, "stop_token_ids": [1]}, TOO_LARGE, "n"),
        ({"n": 1.5, "stop_token_ids": [1]}, "Expected `int`, got `float`", "n"),
        ({"n": 1, "stop_token_ids": []}, SOME, "stop_token_ids"),
    )
    largest = (MinTokensSpec(limits.MAX_INT, (limits.MAX_INT,)),)
    beyond = ((MinTokensSpec(1, (1, 9)), "stop_token_ids[1]"),)
    histories = ((SPEC, [8, 8], [ban(0, 4), 1, ban(0, 4), 1, None, 1, None]),)


def test_tokenizer():
    assert MinTokensSpec.from_tokenizer(3, GREEDY) == MinTokensSpec(3, (0,))
    with pytest.raises(SpecError, match="has no EOS token"):
        MinTokensSpec.from_tokenizer(3, NoEos())
