"""Specs that contradict each other, and near misses that do not."""

import pytest
from hypothesis import given
from logitport.spec import (
    AllowedTokensSpec,
    BannedSequencesSpec,
    BannedTokensSpec,
    ChoiceSpec,
    ForcedEndSpec,
    GrammarSpec,
    LogitBiasSpec,
    LogitsProcessorSpec,
    MinTokensSpec,
    NoRepeatNgramSpec,
    PromptBiasSpec,
    SamplingSpec,
    SpecError,
    ThinkingBudgetSpec,
    TriggerSpec,
    decode,
    encode,
)
from logitport.spec import ForcedTokenSequenceSpec as Forced

from tests.support.strategies import payload_specs

EOS = 2
GRAMMAR = GrammarSpec(choices=("yes", "no"))
NOT_TAKEN = "a grammar, which may not take the tokens that"
Specs = tuple[LogitsProcessorSpec, ...]

# What conflicts | what is near it and does not | message after "Conflicts with " | path
CONFLICTS: dict[str, tuple[Specs, Specs, str, str]] = {
    "forced twice": (
        (Forced((1,)), Forced((1,))),
        (Forced((1,)), PromptBiasSpec(1)),
        "`$.specs[0]`: both force the first output token",
        "specs[1]",
    ),
    "forced and choice": (
        (BannedTokensSpec((9,)), ChoiceSpec(((1,),), EOS), Forced((1,))),
        (BannedTokensSpec((9,)), ChoiceSpec(((1,),), EOS), LogitBiasSpec({9: 1})),
        "`$.specs[1]`: both force the first output token",
        "specs[2]",
    ),
    "a banned sequence in a forced one": (
        (BannedSequencesSpec(((3, 4), (1, 2))), Forced((7, 1, 2, 8))),
        (BannedSequencesSpec(((3, 4), (1, 2))), Forced((7, 1, 8, 2))),
        "`$.specs[0]`, which bans [1, 2]",
        "specs[1].token_ids[2]",
    ),
    "a banned sequence in a choice": (
        (ChoiceSpec(((5, 6), (1, 2)), EOS), BannedSequencesSpec(((1, 2),))),
        (ChoiceSpec(((5, 1), (2, 6)), EOS), BannedSequencesSpec(((1, 2),))),
        "`$.specs[1]`, which bans [1, 2]",
        "specs[0].choices[1]",
    ),
    "a banned sequence in a closing one": (
        (BannedSequencesSpec(((1, 2, 3),)), ForcedEndSpec(4, (1, 2, 3))),
        (BannedSequencesSpec(((1, 2, 3),)), ForcedEndSpec(4, (1, 2), 3)),
        "`$.specs[0]`, which bans [1, 2, 3]",
        "specs[1].token_ids[2]",
    ),
    "a banned sequence in a phrase": (
        (BannedSequencesSpec(((1, 2),)), TriggerSpec((9,), (1, 2))),
        (BannedSequencesSpec(((1, 2),)), TriggerSpec((1,), (2,))),
        "`$.specs[0]`, which bans [1, 2]",
        "specs[1].token_ids[1]",
    ),
    "a banned sequence in a message": (
        (BannedSequencesSpec(((1, 2),)), ThinkingBudgetSpec(3, (7,), (8,), (1, 2))),
        (BannedSequencesSpec(((1, 2),)), ThinkingBudgetSpec(3, (7,), (8,), (2, 1))),
        "`$.specs[0]`, which bans [1, 2]",
        "specs[1].message_token_ids[1]",
    ),
    "choice twice": (
        (ChoiceSpec(((1,), (2,)), EOS), ChoiceSpec(((1,),), EOS)),
        (ChoiceSpec(((1,), (2,)), EOS), AllowedTokensSpec((1, 2))),
        "`$.specs[0]`: both force the first output token",
        "specs[1]",
    ),
    "forced and an end from the beginning": (
        (Forced((1,)), ForcedEndSpec(0, (3,))),
        (Forced((1,)), ForcedEndSpec(1, (3,))),
        "`$.specs[0]`: both force the first output token",
        "specs[1]",
    ),
    "an end before the sequence is through": (
        (ForcedEndSpec(2, (3,)), Forced((1, 1, 1), EOS)),
        (ForcedEndSpec(3, (3,)), Forced((1, 1, 1), EOS)),
        "`$.specs[0]`: both force output token 2",
        "specs[1]",
    ),
    "an end before any choice is through": (
        (ChoiceSpec(((1, 1), (3, 3, 3)), EOS), ForcedEndSpec(1, (5,))),
        (ChoiceSpec(((1, 1), (3, 3, 3)), EOS), ForcedEndSpec(2, (5,))),
        "`$.specs[0]`: both force output token 1",
        "specs[1]",
    ),
    "two ends at once": (
        (ForcedEndSpec(5, (1, 1)), ForcedEndSpec(6, (1,))),
        (ForcedEndSpec(5, (1, 1)), ForcedEndSpec(7, (1,))),
        "`$.specs[0]`: both force output token 6",
        "specs[1]",
    ),
    "a forced token is banned": (
        (Forced((1, 3, 4, 5)), BannedTokensSpec((7, 5))),
        (Forced((1, 3, 4, 5)), BannedTokensSpec((7, 6))),
        "`$.specs[1]`, which bans token 5",
        "specs[0].token_ids[3]",
    ),
    "a forced token is a banned sequence": (
        (BannedSequencesSpec(((1, 3), (4,))), Forced((1, 3, 4))),
        (BannedSequencesSpec(((1, 4), (4, 4))), Forced((1, 3, 4))),
        "`$.specs[0]`, which bans token 4",
        "specs[1].token_ids[2]",
    ),
    "a forced token is not allowed": (
        (Forced((1, 3)), AllowedTokensSpec((1, EOS))),
        (Forced((1, 3)), AllowedTokensSpec((1, 3))),
        "`$.specs[1]`, which does not allow token 3",
        "specs[0].token_ids[1]",
    ),
    "a forced token is not on the second list": (
        (Forced((1, 3)), AllowedTokensSpec((1, 3)), AllowedTokensSpec((1,))),
        (Forced((1, 3)), AllowedTokensSpec((1, 3)), AllowedTokensSpec((1, 3, 4))),
        "`$.specs[2]`, which does not allow token 3",
        "specs[0].token_ids[1]",
    ),
    "the forced EOS is banned": (
        (Forced((1,), EOS), BannedTokensSpec((EOS,))),
        (Forced((1,)), BannedTokensSpec((EOS,))),
        "`$.specs[1]`, which bans token 2",
        "specs[0].eos_token_id",
    ),
    "a closing token is banned": (
        (ForcedEndSpec(5, (1, 3)), BannedTokensSpec((3,))),
        (ForcedEndSpec(5, (1, 3)), BannedTokensSpec((EOS,))),
        "`$.specs[1]`, which bans token 3",
        "specs[0].token_ids[1]",
    ),
    "the closing EOS is not allowed": (
        (ForcedEndSpec(5, (1,), EOS), AllowedTokensSpec((1, 3))),
        (ForcedEndSpec(5, (1,), EOS), AllowedTokensSpec((1, EOS))),
        "`$.specs[1]`, which does not allow token 2",
        "specs[0].eos_token_id",
    ),
    "the end of thinking is banned": (
        (ThinkingBudgetSpec(5, (7,), (1, 3)), BannedTokensSpec((3,))),
        (ThinkingBudgetSpec(5, (7,), (1, 3)), BannedTokensSpec((7,))),
        "`$.specs[1]`, which bans token 3",
        "specs[0].end_token_ids[1]",
    ),
    "the message is not allowed": (
        (ThinkingBudgetSpec(5, (7,), (1,), (4, 5)), AllowedTokensSpec((1, 4))),
        (ThinkingBudgetSpec(5, (7,), (1,), (4,)), AllowedTokensSpec((1, 4))),
        "`$.specs[1]`, which does not allow token 5",
        "specs[0].message_token_ids[1]",
    ),
    "the triggered phrase is banned": (
        (TriggerSpec((1,), (4, 5)), BannedTokensSpec((5,))),
        (TriggerSpec((1,), (4, 5)), BannedTokensSpec((1,))),
        "`$.specs[1]`, which bans token 5",
        "specs[0].token_ids[1]",
    ),
    "a choice is banned": (
        (ChoiceSpec(((1,), (3, 4), (5,)), EOS), BannedTokensSpec((4,))),
        (ChoiceSpec(((1,), (3, 4), (5,)), EOS), BannedTokensSpec((6,))),
        "`$.specs[1]`, which bans token 4",
        "specs[0].choices[1]",
    ),
    "the first choice is banned": (
        (ChoiceSpec(((1, 3), (4,)), EOS), BannedTokensSpec((3,))),
        (ChoiceSpec(((1, 3), (4,)), EOS), BannedSequencesSpec(((3, 1),))),
        "`$.specs[1]`, which bans token 3",
        "specs[0].choices[0]",
    ),
    "the last choice is not allowed": (
        (AllowedTokensSpec((1, 3, EOS)), ChoiceSpec(((1, 3), (4,)), EOS)),
        (AllowedTokensSpec((1, 3, 4, EOS)), ChoiceSpec(((1, 3), (4,)), EOS)),
        "`$.specs[0]`, which does not allow token 4",
        "specs[1].choices[1]",
    ),
    "the EOS after a choice is not allowed": (
        (AllowedTokensSpec((1, 3)), ChoiceSpec(((1,), (3,)), EOS)),
        (AllowedTokensSpec((1, 3, EOS)), ChoiceSpec(((1,), (3,)), EOS)),
        "`$.specs[0]`, which does not allow token 2",
        "specs[1].eos_token_id",
    ),
    "nothing in common": (
        (AllowedTokensSpec((1, 3)), AllowedTokensSpec((4, 5))),
        (AllowedTokensSpec((1, 3)), AllowedTokensSpec((4, 3))),
        "`$.specs[0]`: no token is allowed by all",
        "specs[1]",
    ),
    "nothing in common to three": (
        (AllowedTokensSpec((1, 3)), AllowedTokensSpec((3, 4)), AllowedTokensSpec((1, 4))),
        (AllowedTokensSpec((1, 3)), AllowedTokensSpec((3, 4)), AllowedTokensSpec((3, 5))),
        "`$.specs[0]` and `$.specs[1]`: no token is allowed by all",
        "specs[2]",
    ),
    "all allowed tokens are banned": (
        (BannedTokensSpec((1, 9)), AllowedTokensSpec((1, 3)), BannedSequencesSpec(((3,), (3, 4)))),
        (BannedTokensSpec((1, 9)), AllowedTokensSpec((1, 3)), BannedSequencesSpec(((3, 4),))),
        "`$.specs[0]` and `$.specs[2]`: every allowed token is banned",
        "specs[1]",
    ),
    "only stop tokens are allowed, too early": (
        (AllowedTokensSpec((EOS,)), MinTokensSpec(1, (EOS, 3))),
        (AllowedTokensSpec((EOS, 1)), MinTokensSpec(1, (EOS, 3))),
        "`$.specs[1]`: every allowed token is banned",
        "specs[0]",
    ),
    "EOS is forced too early": (
        (MinTokensSpec(3, (EOS,)), Forced((1, 1), EOS)),
        (MinTokensSpec(2, (EOS,)), Forced((1, 1), EOS)),
        "`$.specs[0]`, which bans token 2 before 3 tokens are out",
        "specs[1].eos_token_id",
    ),
    "a stop token ends the sequence too early": (
        (Forced((1, 1, 7)), MinTokensSpec(3, (EOS, 7))),
        (Forced((1, 1, 7)), MinTokensSpec(2, (EOS, 7))),
        "`$.specs[1]`, which bans token 7 before 3 tokens are out",
        "specs[0].token_ids[2]",
    ),
    "a stop token lies in the sequence": (
        (Forced((1, 7, 1)), MinTokensSpec(9, (7,))),
        (Forced((1, 7, 1)), MinTokensSpec(1, (7,))),
        "`$.specs[1]`, which bans token 7 before 9 tokens are out",
        "specs[0].token_ids[1]",
    ),
    "the end comes too early": (
        (ForcedEndSpec(5, (1, 1), EOS), MinTokensSpec(8, (EOS,))),
        (ForcedEndSpec(5, (1, 1), EOS), MinTokensSpec(7, (EOS,))),
        "`$.specs[1]`, which bans token 2 before 8 tokens are out",
        "specs[0].eos_token_id",
    ),
    "a closing token stops too early": (
        (ForcedEndSpec(5, (1, 7)), MinTokensSpec(7, (7,))),
        (ForcedEndSpec(5, (1, 7)), MinTokensSpec(6, (7,))),
        "`$.specs[1]`, which bans token 7 before 7 tokens are out",
        "specs[0].token_ids[1]",
    ),
    "a choice is too short": (
        (ChoiceSpec(((1, 1), (3,)), EOS), MinTokensSpec(2, (EOS,))),
        (ChoiceSpec(((1, 1), (3,)), EOS), MinTokensSpec(1, (EOS,))),
        "`$.specs[1]`, which bans token 2 before 2 tokens are out",
        "specs[0].choices[1]",
    ),
    "two grammars": (
        (GRAMMAR, GrammarSpec(regex="a+")),
        (GRAMMAR, SamplingSpec(temperature=0)),
        "`$.specs[0]`: both are a grammar",
        "specs[1]",
    ),
    "a sequence is forced into a grammar": (
        (GRAMMAR, Forced((1,))),
        (GRAMMAR, BannedTokensSpec((1,))),
        f"`$.specs[0]`, {NOT_TAKEN} `forced_sequence` forces",
        "specs[1]",
    ),
    "an end is forced into a grammar": (
        (ForcedEndSpec(5, (1,)), GRAMMAR),
        (ThinkingBudgetSpec(5, (1,), (3,)), GRAMMAR),
        f"`$.specs[1]`, {NOT_TAKEN} `forced_end` forces",
        "specs[0]",
    ),
    "a choice beside a grammar": (
        (GRAMMAR, ChoiceSpec(((1,), (3,)), EOS)),
        (GRAMMAR, AllowedTokensSpec((1, 3, EOS))),
        f"`$.specs[0]`, {NOT_TAKEN} `choice` forces",
        "specs[1]",
    ),
    "a phrase is forced into a grammar": (
        (GRAMMAR, TriggerSpec((1,), (3,))),
        (GRAMMAR, MinTokensSpec(4, (EOS,))),
        f"`$.specs[0]`, {NOT_TAKEN} `trigger` forces",
        "specs[1]",
    ),
    "two temperatures": (
        (SamplingSpec(temperature=0.5), GRAMMAR, SamplingSpec(top_p=0.5, temperature=0.7)),
        (SamplingSpec(temperature=0.5), GRAMMAR, SamplingSpec(top_p=0.5, temperature=0.5)),
        "`$.specs[0]`, which sets temperature to 0.5",
        "specs[2].temperature",
    ),
    "greedy and not": (
        (SamplingSpec(temperature=0), SamplingSpec(temperature=1)),
        (SamplingSpec(temperature=0), SamplingSpec(top_p=1)),
        "`$.specs[0]`, which sets temperature to 0.0",
        "specs[1].temperature",
    ),
}
conflicts = pytest.mark.parametrize("name", CONFLICTS)


@conflicts
def test_conflict(name: str):
    specs, _, message, path = CONFLICTS[name]
    with pytest.raises(SpecError) as error:
        encode(specs)
    assert error.value.message == f"Conflicts with {message}"
    assert error.value.path == f"$.{path}"


@conflicts
def test_near_miss(name: str):
    _, specs, _, _ = CONFLICTS[name]
    assert decode(encode(specs)).specs == specs


@conflicts
def test_in_any_order(name: str):
    specs, near_miss, _, _ = CONFLICTS[name]
    with pytest.raises(SpecError, match=r"^Conflicts with"):
        encode(specs[::-1])
    encode(near_miss[::-1])


def test_found_by_decode():
    allowed = {"kind": "allowed_tokens", "token_ids": [1]}
    forced = {"kind": "forced_sequence", "token_ids": [1, 3]}
    with pytest.raises(SpecError) as error:
        decode({"version": 1, "specs": [allowed, forced]})
    assert (error.value.message, error.value.path) == (
        "Conflicts with `$.specs[0]`, which does not allow token 3",
        "$.specs[1].token_ids[1]",
    )
    with pytest.raises(SpecError) as error:
        decode([allowed, forced])
    assert (error.value.message, error.value.path) == (
        "Conflicts with `$[0]`, which does not allow token 3",
        "$[1].token_ids[1]",
    )


def test_many_kinds_get_on_together():
    specs = (
        LogitBiasSpec({1: 5.0, 9: -5.0}),
        LogitBiasSpec({1: -5.0}),
        BannedTokensSpec((9,)),
        BannedSequencesSpec(((5, 6), (8,))),
        AllowedTokensSpec(tuple(range(16))),
        MinTokensSpec(4, (EOS,)),
        ForcedEndSpec(40, (5, 7), EOS),
        ThinkingBudgetSpec(8, (3,), (4,), (5,)),
        TriggerSpec((1, 1), (6, 7), times=None),
        NoRepeatNgramSpec(3, 64),
        PromptBiasSpec(-1.0),
        SamplingSpec(temperature=0.5),
        Forced((3, 1, 1)),
    )
    assert decode(encode(specs)).specs == specs


@given(payload_specs(6, 6))
def test_one_spec_alone_never_conflicts(specs: Specs):
    for spec in specs:
        encode(spec)
    encode(specs[::-1])  # whether specs conflict does not depend on their order
