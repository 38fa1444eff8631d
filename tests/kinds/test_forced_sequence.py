from logitport.spec import ForcedTokenSequenceSpec, limits

from .test_every_kind import SOME, TOO_LARGE, F, RealizedKindTests

TEXT = ForcedTokenSequenceSpec((1, 2, 1), eos_token_id=0)
BIG = limits.MAX_TOKEN_ID + 1


class TestRows(RealizedKindTests):
    golden = ForcedTokenSequenceSpec((0, 19556, 905, 17), eos_token_id=2)
    refused = (  # more of them in tests/spec/test_spec.py
        ({"token_ids": []}, SOME, "token_ids"),
        ({"token_ids": [1, BIG]}, TOO_LARGE, "token_ids[1]"),
    )
    largest = (ForcedTokenSequenceSpec((limits.MAX_TOKEN_ID,) * limits.MAX_TOKEN_IDS),)
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
    handed_over = (
        (ForcedTokenSequenceSpec((1, 2, 3), 0), [], 1, [2, 3, 0, 0]),  # it fits: the text goes on
        # It does not: the whole text comes after it.
        (ForcedTokenSequenceSpec((1, 2, 3), 0), [], 9, [1, 2, 3, 0]),
        (ForcedTokenSequenceSpec((1, 2, 3), 0), [], 2, [1, 2, 3, 0]),
    )
    outputs = ((TEXT, [1], [1, 2, 1, 0], True), (TEXT, [1], [1, 2, 1, 1], False))
