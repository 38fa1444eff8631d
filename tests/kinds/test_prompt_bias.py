from logitport.spec import PromptBiasSpec, limits

from tests.support.kinds import LONG, TOO_HIGH, TOO_LONG, Add, RealizedKindTests


class TestRows(RealizedKindTests):
    golden = PromptBiasSpec(1.5, (1, 2))
    refused = (
        ({"bias": 10_001}, TOO_HIGH, "bias"),
        ({"bias": "1"}, "Expected `float`, got `str`", "bias"),
        ({"bias": 1, "excluded_token_ids": LONG}, TOO_LONG, "excluded_token_ids"),
    )
    largest = (PromptBiasSpec(limits.MAX_BIAS),)
    beyond = ((PromptBiasSpec(1, (1, 9)), "excluded_token_ids[1]"),)
    histories = ((PromptBiasSpec(2, (7,)), [1, 7, 1], [Add({1: 2}), 3, Add({1: 2})]),)
