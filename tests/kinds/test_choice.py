import pytest
from logitport.spec import ChoiceSpec, SpecError, limits

from tests.support.kinds import AT_LEAST_0, SOME, TOO_MANY, F, RealizedKindTests, allow
from tests.support.small_tokenizer import CAT, FIVE, GREEDY, NoEos, S

CHOICE = ChoiceSpec(((1,), (1, 2, 3), (4, 5)), eos_token_id=0)
OPEN = ChoiceSpec(((1, 2, 3), (1, 4), (5,)))


class TestRows(RealizedKindTests):
    golden = ChoiceSpec(((10576,), (2437,), (2437, 805)), 2)
    refused = (
        ({"choices": [], "eos_token_id": 2}, SOME, "choices"),
        ({"choices": [[1], []], "eos_token_id": 2}, SOME, "choices[1]"),
        (
            {"choices": [[1], [1, 2], [3], [1, 2]], "eos_token_id": 2},
            "The same as `$.choices[1]`",
            "choices[3]",
        ),
        ({"choices": [[1], [0] * (1 << 13)], "eos_token_id": 2}, TOO_MANY, "choices"),
        ({"choices": [[1]], "eos_token_id": -1}, AT_LEAST_0, "eos_token_id"),
        (
            {"choices": [[3], [1, 2, 4], [1, 2]]},
            "Expected an eos_token_id, or no choice that `$.choices[1]` begins with",
            "choices[2]",
        ),
    )
    largest = (ChoiceSpec(tuple((i,) * 4 for i in range(limits.MAX_TOKEN_IDS // 8)), 2),)
    beyond = (
        (ChoiceSpec(((1,), (1, 9)), 2), "choices[1][1]"),
        (ChoiceSpec(((1,),), 9), "eos_token_id"),
    )
    histories = (
        (CHOICE, [4], [allow(1, 4), 1, allow(0, 2), 2, F(3), 3, F(0), 0, F(0), 1, F(0)]),
        (CHOICE, [], [allow(1, 4), 9, allow(1, 4), 4, F(5), 9, F(0), 4, F(0)]),
        (CHOICE, [], [allow(1, 4), 1, allow(0, 2), 0, F(0)]),
        (ChoiceSpec(((1,), (1, 0, 2)), 0), [], [F(1), 1, F(0), 0, F(2), 2, F(0)]),
        (OPEN, [1], [allow(1, 5), 1, allow(2, 4), 2, F(3), 3, None, 1, None]),
        (OPEN, [], [allow(1, 5), 9, allow(1, 5), 5, None, 1, None]),
        (OPEN, [], [allow(1, 5), 1, allow(2, 4), 5, None, 1, None]),
    )


def test_text():
    spec = ChoiceSpec.from_text(["cat", "cats", "5"], GREEDY)
    assert spec == ChoiceSpec(((CAT,), (CAT, S), (FIVE,)), 0)
    assert ChoiceSpec.from_text(["5"], NoEos(), eos_token_id=7).eos_token_id == 7
    assert ChoiceSpec.from_text(["5"], NoEos(), eos_token_id=None) == ChoiceSpec(((FIVE,),))
    with pytest.raises(SpecError) as error:
        ChoiceSpec.from_text(["cat", "5", "cat"], GREEDY)
    assert error.value.path == "$.choices[2]"
    with pytest.raises(SpecError, match="got the text 'cat'"):
        ChoiceSpec.from_text("cat", GREEDY)
    with pytest.raises(SpecError, match="has no EOS token"):
        ChoiceSpec.from_text(["5"], NoEos())
