import copy
from typing import Any

import pytest
from logitport.spec import LogitBiasSpec, SpecError, decode, limits

from tests.support.kinds import AT_LEAST_0, TOO_HIGH, TOO_LARGE, VALIDATOR, Add, RealizedKindTests
from tests.support.small_tokenizer import CAT, FIVE, GREEDY, SPACE_CAT

BIG, MOST = limits.MAX_INT + 1, limits.MAX_TOKEN_IDS // 2
SPEC = LogitBiasSpec({2: 1.5})
NO_KEY = "Expected `int`, got `str` as a key"


class TestRows(RealizedKindTests):
    golden = LogitBiasSpec({50256: -100, 7: 2.5})
    refused = (
        ({"bias": {}}, "Expected `object` of length >= 1", "bias"),
        (
            {"bias": dict.fromkeys(range(MOST + 1), 1.0)},
            f"Expected at most {MOST} entries",
            "bias",
        ),
        ({"bias": [[1, 2.0]]}, "Expected `object`, got `array`", "bias"),
        ({"bias": {-1: 1.0}}, f"{AT_LEAST_0} as a key", "bias[-1]"),
        ({"bias": {BIG: 1.0}}, f"{TOO_LARGE} as a key", f"bias[{BIG}]"),
        ({"bias": {"x": 1.0}}, NO_KEY, "bias[x]"),
        ({"bias": {"01": 1.0}}, NO_KEY, "bias[01]"),
        ({"bias": {9: 1, 1: 10_001}}, TOO_HIGH, "bias[1]"),
        ({"bias": {1: -1e300}}, "Expected `float` >= -10000.0", "bias[1]"),
        ({"bias": {1: None, 9: 1}}, "Expected `float`, got `null`", "bias[1]"),
    )
    largest = (LogitBiasSpec(dict.fromkeys(range(MOST), -limits.MAX_BIAS)),)
    beyond = ((LogitBiasSpec({1: 1.0, 9: 1.0}), "bias[...]"),)
    histories = ((SPEC, [], [Add({2: 1.5}), 0, Add({2: 1.5})]),)


@pytest.mark.parametrize("key", ["x", "01", "-1", "1.0", ""])
def test_schema_knows_the_keys(key: str):
    specs = [{"kind": "logit_bias", "bias": {key: 1.0}}]
    assert not VALIDATOR.is_valid({"version": 1, "specs": specs})


def test_no_bias_is_nan():
    with pytest.raises(SpecError, match="Expected `float`") as error:
        LogitBiasSpec({9: 1.0, 1: float("nan")})
    assert error.value.path == "$.bias[1]"


def test_bias_is_copied():
    bias = {1: 2.0}
    spec = LogitBiasSpec(bias)
    bias[1] = 3.0
    assert spec.bias == {1: 2.0}
    assert spec == LogitBiasSpec({1: 2})


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.__setitem__(1, 0.0),
        lambda d: d.__delitem__(1),
        lambda d: d.__ior__({}),
        lambda d: d.update({}),
        lambda d: d.setdefault(3, 1.0),
        lambda d: d.pop(1),
        lambda d: d.popitem(),
        lambda d: d.clear(),
    ],
)
def test_unchangeable(change: Any):
    for spec in (LogitBiasSpec({1: 2.0}), copy.deepcopy(LogitBiasSpec({1: 2.0}))):
        with pytest.raises(TypeError, match="cannot change"):
            change(spec.bias)
        assert spec.bias == {1: 2.0}


def test_order_means_nothing():
    specs = LogitBiasSpec({1: 2.0, 3: 4.0}), LogitBiasSpec({3: 4.0, 1: 2.0})
    assert specs[0] == specs[1]
    assert hash(specs[0]) == hash(specs[1])


def test_token_ids_as_integers_in_process():
    content: Any = {"version": 1, "specs": [{"kind": "logit_bias", "bias": {5: 1}}]}
    assert decode(content).specs == (LogitBiasSpec({5: 1.0}),)


def test_words():
    spec = LogitBiasSpec.from_words({"cat": 2, " cat": 2}, GREEDY)
    assert spec.bias == {SPACE_CAT: 2.0, CAT: 2.0}
    assert LogitBiasSpec.from_words({"5": 1}, GREEDY).bias == {FIVE: 1.0}
    with pytest.raises(SpecError, match="2 tokens of 'dog'"):
        LogitBiasSpec.from_words({"dog": 2}, GREEDY)
    with pytest.raises(SpecError, match="Token 1 of ' cat' has another bias already"):
        LogitBiasSpec.from_words({"cat": 2, " cat": 1}, GREEDY)
