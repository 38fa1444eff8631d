import pytest
from logitport.adapters.core import compile_specs
from logitport.spec import PromptBiasSpec, SpecError, limits

from tests.support.kinds import LONG, TOO_HIGH, TOO_LONG, Add, RealizedKindTests

WANTED = PromptBiasSpec(1000, (7,))


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
    handed_over = ((PromptBiasSpec(9.0), [3], 9, [3, 3]),)
    outputs = ((WANTED, [1, 7], [1, 1], True), (WANTED, [1, 7], [1, 7], False))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bias_is_finite(value: float):
    with pytest.raises(SpecError, match="Expected `float`") as error:
        PromptBiasSpec(value)
    assert error.value.path == "$.bias"


def test_biases_that_are_too_many():
    most = [PromptBiasSpec(1.0, (i,)) for i in range(limits.MAX_PROMPT_RULES)]
    assert len(compile_specs(most).prompt_biases) == len(most)
    with pytest.raises(SpecError, match="at most 4 rules that read the prompt, got 5") as error:
        compile_specs([*most, PromptBiasSpec(2.0)])
    assert error.value.path == "$.specs"
