"""A request's own fields beside its specs: what contradicts is refused, with both places named."""

import math
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from logitport import spec as lp
from logitport.adapters.native import check_grammar
from logitport.adapters.own_fields import check_bounds, check_own_fields, same_as

EOS = 2
FORCED = lp.ForcedTokenSequenceSpec((5, 6), EOS)
MIN_TOKENS = {"min_tokens": lp.MinTokensSpec(12, (EOS,))}
BAD_WORDS = {"bad_words": lp.BannedSequencesSpec(((6,), (7, 8)))}
ALLOWED = {"allowed_token_ids": lp.AllowedTokensSpec((5, 9))}

Fields = dict[str, lp.LogitsProcessorSpec]

EARLY = f"the request's `min_tokens`, which bans token {EOS}"
BAD = "the request's `bad_words`, which bans"
ABSENT = "the request's `allowed_token_ids`, which does not allow"
SECOND = "$.specs[1].token_ids[1]"
LEFT, FIELD = "`$.specs[1]`: no token is left", "allowed_token_ids"


SHORT = lp.ChoiceSpec(((5,), (6,) * 12), EOS)
LATER = {"min_tokens": lp.MinTokensSpec(2, (EOS,))} | BAD_WORDS


# a spec | the request's own fields | what the error has
@pytest.mark.parametrize(
    ("spec", "own_fields", "message", "path"),
    [
        (FORCED, MIN_TOKENS, EARLY, "$.specs[1].eos_token_id"),
        (SHORT, MIN_TOKENS, EARLY, "$.specs[1].eos_token_id"),
        (FORCED, BAD_WORDS, f"{BAD} token 6", SECOND),
        (FORCED, ALLOWED, f"{ABSENT} token 6", SECOND),
        (lp.AllowedTokensSpec((6, 7)), ALLOWED, LEFT, FIELD),
        (lp.BannedTokensSpec((5, 9)), ALLOWED, LEFT, FIELD),
        (FORCED, LATER, f"{BAD} token 6", SECOND),
    ],
)
def test_what_contradicts_is_refused(
    spec: lp.LogitsProcessorSpec, own_fields: Fields, message: str, path: str
):
    with pytest.raises(lp.SpecError) as error:
        check_own_fields((lp.LogitBiasSpec({1: 2.0}), spec), own_fields)
    assert error.value.message == f"Conflicts with {message}"
    assert error.value.path == path


@pytest.mark.parametrize(
    ("spec", "own_fields"),
    [
        *product([lp.LogitBiasSpec({EOS: 9.0})], [MIN_TOKENS, BAD_WORDS, ALLOWED]),
        (lp.ForcedTokenSequenceSpec((5,) * 12, EOS), MIN_TOKENS),
        (lp.ForcedTokenSequenceSpec((7, 5, 8)), BAD_WORDS),
        (lp.ForcedEndSpec(3, (7, 8)), BAD_WORDS),  # specs override fields
        (lp.ForcedTokenSequenceSpec((5, 9)), ALLOWED),
        # Two fields that contradict each other are the engine's to refuse.
        (lp.LogitBiasSpec({1: 1.0}), ALLOWED | {"bad_words": lp.BannedTokensSpec((5, 9))}),
    ],
)
def test_what_can_be_obeyed_together_is_admitted(spec: lp.LogitsProcessorSpec, own_fields: Fields):
    check_own_fields((spec,), own_fields)


def test_a_field_beyond_the_limits_of_a_spec_is_not_compared():
    token_ids = tuple(range(lp.limits.MAX_TOKEN_IDS + 1))
    assert same_as(lp.AllowedTokensSpec, token_ids=token_ids) is None
    kept = token_ids[1:]
    assert same_as(lp.AllowedTokensSpec, token_ids=kept) == lp.AllowedTokensSpec(kept)


@pytest.mark.parametrize(
    ("request_", "path"),
    [
        ({"repetition_penalty": 0.05}, "repetition_penalty"),
        ({"temperature": 1e10}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"logit_bias": {"5": 2e9}}, "logit_bias[5]"),
        ({"logit_bias": {5: math.inf}}, "logit_bias[5]"),
        (SimpleNamespace(repetition_penalty=11), "repetition_penalty"),
    ],
)
def test_what_outvotes_a_ban_is_refused(request_: Any, path: str):
    with pytest.raises(lp.SpecError, match="where specs act, got") as error:
        check_bounds(request_)
    assert error.value.path == path


def test_what_cannot_outvote_a_ban_is_admitted():
    """A bias of -inf is a ban, and other types are the engine's to refuse."""
    check_bounds({"temperature": None, "repetition_penalty": "2", "logit_bias": {"5": -math.inf}})
    check_bounds({"temperature": 0, "repetition_penalty": 10, "logit_bias": {"5": -100}})
    check_bounds(None)


YES, DIGITS = lp.BannedTextSpec(("yes",)), lp.BannedTextSpec(tuple("0123456789"))
WORD = lp.BannedTextSpec(("yes",), whole_words=True)


def vllm(**grammar: Any) -> dict[str, Any]:
    return {"structured_outputs": grammar}


# a spec | a grammar of the request's own | what it offers, that the spec bans; "" if it leaves it
@pytest.mark.parametrize(
    ("spec", "own", "offered"),
    [
        (YES, vllm(choice=["no", "yes"]), "'yes'"),
        (YES, vllm(grammar='root ::= "no" | "\\"yes\\n\\""'), "'\"yes\\n\"'"),  # made of choices
        (YES, vllm(grammar='root ::= "yes" other'), ""),
        (YES, vllm(regex="(no|yes)"), "'yes'"),
        (YES, vllm(regex="no|yes"), "'yes'"),
        (YES, vllm(regex="(no|yes)?"), ""),
        (WORD, vllm(choice=["no", "yesterday"]), ""),
        (lp.MaxRunSpec(2), {"regex": "(a b|a   b)"}, "'a   b'"),
        (DIGITS, vllm(json={"type": "integer"}), "'0' or '1'"),
        (DIGITS, vllm(json='{"type": "number"}'), "'0' or '1'"),
        (DIGITS, vllm(regex=r"\d{3}"), "'0' or '1'"),
        (DIGITS, {"regex": "-?[0-9]+"}, "'0' or '1'"),
        (DIGITS, vllm(regex="[0-9]+|none"), ""),
        (DIGITS, vllm(json={"type": ["integer", "null"]}), ""),
        (lp.BannedTextSpec(tuple("012345678")), vllm(json={"type": "integer"}), ""),
        (lp.BannedTextSpec(("}",)), vllm(json_object=True), "'}'"),
        (lp.BannedTextSpec(("[",)), {"json_schema": '{"type": "array"}'}, "'['"),
        (lp.BannedTextSpec(("[",)), {"json_schema": "[" * 100_000}, ""),  # for the engine
        (YES, {"ebnf": 'root ::= "yes" | "no"'}, "'yes'"),
        (YES, vllm(choice=["yes"] * 1000), ""),
        (YES, vllm(choice=[["yes"]]), ""),
        (YES, vllm(structural_tag="yes"), ""),
        (YES, {"response_format": "json_object"}, ""),
        (lp.BannedTokensSpec((5,)), vllm(choice=["yes"]), ""),
    ],
)
def test_a_grammar_whose_texts_are_banned(
    spec: lp.LogitsProcessorSpec, own: dict[str, Any], offered: str
):
    names = "structured_outputs", "response_format", "json_schema", "regex", "ebnf"
    specs = lp.LogitBiasSpec({1: 2.0}), spec
    if not offered:
        check_grammar(specs, own, names)
        return
    with pytest.raises(lp.SpecError) as error:
        check_grammar(specs, own, names)
    (name,) = own
    assert error.value.message.startswith(
        f"Conflicts with the request's {name}, which offers {offered}"
    )
    assert error.value.path == "$.specs[1]"
