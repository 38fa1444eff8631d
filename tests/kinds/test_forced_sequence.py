from logitport.spec import ForcedTokenSequenceSpec, limits

from tests.support.kinds import AT_LEAST_0, LONG, SOME, TOO_LARGE, TOO_LONG, F, RealizedKindTests

TEXT = ForcedTokenSequenceSpec((1, 2, 1), eos_token_id=0)
BIG, OR_NULL = limits.MAX_INT + 1, "Expected `int | null`, got "


class TestRows(RealizedKindTests):
    golden = ForcedTokenSequenceSpec((0, 19556, 905, 17), eos_token_id=2)
    refused = (
        ({"token_ids": []}, SOME, "token_ids"),
        ({"token_ids": LONG}, TOO_LONG, "token_ids"),
        ({"token_ids": None}, "Expected `array`, got `null`", "token_ids"),
        ({"token_ids": 5}, "Expected `array`, got `int`", "token_ids"),
        ({"token_ids": "12"}, "Expected `array`, got `str`", "token_ids"),
        ({"token_ids": {"0": 1}}, "Expected `array`, got `object`", "token_ids"),
        ({"token_ids": [1, 2, 3, -1]}, AT_LEAST_0, "token_ids[3]"),
        ({"token_ids": [1, BIG]}, TOO_LARGE, "token_ids[1]"),
        ({"token_ids": [1, 2**63]}, TOO_LARGE, "token_ids[1]"),
        ({"token_ids": [1, 1.0]}, "Expected `int`, got `float`", "token_ids[1]"),
        ({"token_ids": [True]}, "Expected `int`, got `bool`", "token_ids[0]"),
        ({"token_ids": [1, "2"]}, "Expected `int`, got `str`", "token_ids[1]"),
        ({"token_ids": [1, None]}, "Expected `int`, got `null`", "token_ids[1]"),
        ({"token_ids": [[1]]}, "Expected `int`, got `array`", "token_ids[0]"),
        ({"token_ids": [1], "eos_token_id": -1}, AT_LEAST_0, "eos_token_id"),
        ({"token_ids": [1], "eos_token_id": BIG}, TOO_LARGE, "eos_token_id"),
        ({"token_ids": [1], "eos_token_id": 2.0}, f"{OR_NULL}`float`", "eos_token_id"),
        ({"token_ids": [1], "eos_token_id": "2"}, f"{OR_NULL}`str`", "eos_token_id"),
        ({"token_ids": [1], "eos_token_id": False}, f"{OR_NULL}`bool`", "eos_token_id"),
        ({"token_ids": [1], "eos_token_id": [2]}, f"{OR_NULL}`array`", "eos_token_id"),
    )
    largest = (ForcedTokenSequenceSpec((BIG - 1,) * limits.MAX_TOKEN_IDS, BIG - 1),)
    beyond = (
        (ForcedTokenSequenceSpec((1, 9)), "token_ids[1]"),
        (ForcedTokenSequenceSpec((1,), 9), "eos_token_id"),
    )
    histories = (
        (TEXT, [1], [F(1), 1, F(2), 2, F(1), 1, F(0), 0, F(0), 7, F(0)]),
        # A foreign token comes first.
        (TEXT, [], [F(1), 9, F(1), 2, F(1), 1, F(2), 9, F(1), 9, F(0)]),
        (ForcedTokenSequenceSpec((1,)), [], [F(1), 1, None, 1, None]),
    )
