"""Presets with parameters: what a request may choose, and what an operator may write."""

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
from logitport import spec as s
from logitport.adapters import REALIZABLE, Backend, Policy, check_policy
from logitport.adapters.cli.configuration_schema import configuration_schema
from logitport.hooks.configuration import ConfigurationError, policy

from tests.hooks.test_hello_world import Characters

BUDGET = {"min": 1, "max": 64, "default": 8}
THINKING = {"kind": "thinking_budget", "start_token_ids": [1], "end_token_ids": [3]}
BRIEF = {
    "params": {"budget": BUDGET, "word": {"max_length": 5}, "n": {"one_of": [2, 3]}},
    "specs": [
        {**THINKING, "budget": {"param": "budget"}},
        {"kind": "forced_sequence", "text": {"param": "word"}, "eos_token_id": None},
        {"kind": "no_repeat_ngram", "n": {"param": "n"}},
    ],
}


def made(presets: Any) -> Policy:
    found = policy(Characters, {"presets": presets})
    assert found is not None
    return found


def resolve(policy: Policy, params: Mapping[str, Any]) -> tuple[s.LogitsProcessorSpec, ...]:
    return policy.resolve(s.decode([{"kind": "plugin", "name": "brief", "params": params}])).specs


def test_a_request_chooses_values():
    brief = made({"brief": BRIEF})
    expected = (
        s.ThinkingBudgetSpec(64, (1,), (3,)),
        s.ForcedTokenSequenceSpec(tuple(map(ord, "abc"))),
        s.NoRepeatNgramSpec(3),
    )
    assert resolve(brief, {"budget": 64, "word": "abc", "n": 3}) == expected
    (first, *_) = resolve(brief, {"word": "a", "n": 2})
    assert first == s.ThinkingBudgetSpec(8, (1,), (3,))


@pytest.mark.parametrize(
    ("params", "message", "path"),
    [
        ({"budget": 65}, "Expected an integer from 1 to 64, got 65", "budget"),
        ({"budget": 0}, "Expected an integer from 1 to 64, got 0", "budget"),
        ({"budget": 1.5}, "Expected an integer from 1 to 64, got 1.5", "budget"),
        ({"budget": True}, "Expected an integer from 1 to 64, got True", "budget"),
        ({"budget": "9"}, "Expected an integer from 1 to 64, got '9'", "budget"),
        ({"word": ""}, "Expected a text of 1 to 5 characters, got ''", "word"),
        ({"word": "abcdef"}, "Expected a text of 1 to 5 characters, got 'abcdef'", "word"),
        ({"word": None}, "Expected a value, which has no default", "word"),
        ({"n": 4}, "Expected one of 2, 3, got 4", "n"),
        ({"n": 2.0}, "Expected one of 2, 3, got 2.0", "n"),
        ({"budgets": 4}, "There is no parameter 'budgets'; did you mean budget?", "budgets"),
    ],
)
def test_a_request_is_refused(params: dict[str, Any], message: str, path: str):
    with pytest.raises(s.SpecError) as error:
        resolve(made({"brief": BRIEF}), {"word": "a", "n": 2, **params})
    assert (error.value.message, error.value.path) == (message, f"$.specs[0].params.{path}")


def preset(params: Any, **fields: Any) -> dict[str, Any]:
    spec = {**THINKING, "budget": {"param": "budget"}, **fields}
    return {"brief": {"params": params, "specs": [spec]}}


WRONG: list[tuple[Any, str]] = [
    (preset({}), "$.presets.brief.specs: There is no parameter 'budget'"),
    (preset({"budget": BUDGET, "b": BUDGET}), "$.presets.brief.params.b: No spec has this"),
    (preset({"budget": {}}), "Expected exactly one of min and max, one_of, and max_length"),
    (preset({"budget": {"min": 1}}), "Expected min and max, of which min is not above max"),
    (preset({"budget": {"min": 2, "max": 1}}), "Expected min and max"),
    (preset({"budget": {**BUDGET, "default": 65}}), "params.budget.default"),
    (preset({"budget": {"min": -1, "max": 5}}), "with {'budget': -1}"),
    (preset({"budget": {"max_length": 5}}), "Expected `int`, got `str`"),
    (preset({"budget": BUDGET}, more=1), "`more`"),
    ({"brief": {"params": {}, "specs": []}}, "Expected `array` of length >= 1"),
    ({"brief": {"specs": [THINKING]}}, "missing required field `params`"),
    ({"brief": {"params": {"budget": 1}, "specs": [THINKING]}}, "Expected `object`, got `int`"),
]


@pytest.mark.parametrize(("presets", "problem"), WRONG)
def test_a_file_is_refused(presets: Any, problem: str):
    with pytest.raises(ConfigurationError) as error:
        made(presets)
    assert problem in str(error.value)
    assert "$.presets.brief" in str(error.value)


def test_each_end_is_realized_before_a_request_comes():
    backend = Backend("toy", realizes=REALIZABLE, policy=made({"brief": BRIEF}))
    check_policy(backend, 1000)
    with pytest.raises(
        ValueError, match=r"The preset 'brief' cannot be realized: .*beyond the voc"
    ):
        check_policy(backend, 90)  # the letters of a text


def test_the_digest_has_the_bounds():
    other = json.loads(json.dumps(BRIEF))
    other["params"]["budget"]["max"] = 65
    assert len({made({"brief": each}).digest for each in (BRIEF, other)}) == 2
    assert made({"brief": BRIEF}).digest == made({"brief": BRIEF}).digest


@pytest.mark.parametrize(
    ("presets", "is_fine"),
    [
        ({"brief": BRIEF}, True),
        ({"brief": [THINKING | {"budget": 1}]}, True),
        ({"brief": {"params": {"a": {"least": 1}}, "specs": [THINKING]}}, False),
        ({"brief": {"params": {}}}, False),
        ({"brief": []}, False),
    ],
)
def test_the_schema(presets: Any, is_fine: bool):
    validator = jsonschema.Draft202012Validator(configuration_schema())
    assert validator.is_valid({"presets": presets}) == is_fine
