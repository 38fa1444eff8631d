"""A request's own fields beside its specs: what contradicts is refused, with both places named."""

from itertools import product

import pytest
from logitport import spec as lp
from logitport.adapters.own_fields import check_own_fields, same_as

EOS = 2
FORCED = lp.ForcedTokenSequenceSpec((5, 6), EOS)
MIN_TOKENS = {"min_tokens": lp.MinTokensSpec(12, (EOS,))}
BAD_WORDS = {"bad_words": lp.BannedSequencesSpec(((6,), (7, 8)))}
ALLOWED = {"allowed_token_ids": lp.AllowedTokensSpec((5, 9))}

Fields = dict[str, lp.LogitsProcessorSpec]

# spec | the request's own fields | message | path
REFUSED: dict[str, tuple[lp.LogitsProcessorSpec, Fields, str, str]] = {
    "EOS before min_tokens": (
        FORCED,
        MIN_TOKENS,
        f"the request's `min_tokens`, which bans token {EOS} before 12 tokens are out",
        "$.specs[1].eos_token_id",
    ),
    "a choice shorter than min_tokens": (
        lp.ChoiceSpec(((5,), (6,) * 12), EOS),
        MIN_TOKENS,
        f"the request's `min_tokens`, which bans token {EOS} before 12 tokens are out",
        "$.specs[1].choices[0]",
    ),
    "a forced bad word": (
        FORCED,
        BAD_WORDS,
        "the request's `bad_words`, which bans token 6",
        "$.specs[1].token_ids[1]",
    ),
    "a bad word of several tokens": (
        lp.ForcedEndSpec(3, (7, 8)),
        BAD_WORDS,
        "the request's `bad_words`, which bans [7, 8]",
        "$.specs[1].token_ids[1]",
    ),
    "a forced token that is not allowed": (
        FORCED,
        ALLOWED,
        "the request's `allowed_token_ids`, which does not allow token 6",
        "$.specs[1].token_ids[1]",
    ),
    "no token allowed by both": (
        lp.AllowedTokensSpec((6, 7)),
        ALLOWED,
        "`$.specs[1]`: no token is allowed by all",
        "allowed_token_ids",
    ),
    "every allowed token banned": (
        lp.BannedTokensSpec((5, 9)),
        ALLOWED,
        "`$.specs[1]`: every allowed token is banned",
        "allowed_token_ids",
    ),
    "the later of two fields": (
        FORCED,
        {"min_tokens": lp.MinTokensSpec(2, (EOS,))} | BAD_WORDS,
        "the request's `bad_words`, which bans token 6",
        "$.specs[1].token_ids[1]",
    ),
}


@pytest.mark.parametrize(
    ("spec", "own_fields", "message", "path"), REFUSED.values(), ids=REFUSED.keys()
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
    assert same_as(lp.AllowedTokensSpec, token_ids=token_ids[1:]) == lp.AllowedTokensSpec(
        token_ids[1:]
    )
