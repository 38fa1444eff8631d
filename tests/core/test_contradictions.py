"""Specs that contradict each other, and near misses that do not."""

import pytest
from logitport import spec as s
from logitport.adapters.core.contradictions import check_contradictions
from logitport.adapters.core.program import compile_specs
from logitport.spec import ForcedTokenSequenceSpec as Forced
from logitport.spec import LogitsProcessorSpec, NativeSpec, SpecError, decode, encode

EOS = 2
GRAMMAR = s.GrammarSpec(choices=("yes", "no"))
NOT_TAKEN = "a grammar, which may not take the tokens that"
Specs = tuple[LogitsProcessorSpec, ...]


def in_phase(after: int) -> s.PhasesSpec:
    """An end in a phase of three tokens."""
    phase = s.Phase((s.ForcedEndSpec(after, (3,)),), (s.PhaseEnd(n=3),))
    return s.PhasesSpec((phase, s.Phase()))


def left_at_once(**state: int) -> s.AutomatonSpec:
    return s.AutomatonSpec(
        (s.AutomatonState(default=1), s.AutomatonState(**state), s.AutomatonState())
    )


# What conflicts | what is near it and does not | the error after "Conflicts with "
CONFLICTS: dict[str, tuple[Specs, Specs, str]] = {
    "forced twice": (
        (Forced((1,)), Forced((3,))),
        (Forced((1,)), Forced((1,))),
        "`$.specs[0]`: both force a token at the same step - at `$.specs[1]`",
    ),
    "forced and choice": (
        (s.BannedTokensSpec((9,)), s.ChoiceSpec(((1,),), EOS), Forced((3,))),
        (s.BannedTokensSpec((9,)), s.ChoiceSpec(((1,),), EOS), Forced((1,))),
        "`$.specs[1]`: both force a token at the same step - at `$.specs[2]`",
    ),
    "a banned sequence in a forced one": (
        (s.BannedSequencesSpec(((3, 4), (1, 2))), Forced((7, 1, 2, 8))),
        (s.BannedSequencesSpec(((3, 4), (1, 2))), Forced((7, 1, 8, 2))),
        "`$.specs[0]`, which bans token 2 - at `$.specs[1].token_ids[2]`",
    ),
    "a banned sequence in a choice": (
        (s.ChoiceSpec(((5, 6), (1, 2)), EOS), s.BannedSequencesSpec(((1, 2),))),
        (s.ChoiceSpec(((1, 5), (2, 6)), EOS), s.BannedSequencesSpec(((1, 2),))),
        "`$.specs[1]`, which bans token 2 - at `$.specs[0].choices[1][1]`",
    ),
    "choice twice": (
        (s.ChoiceSpec(((1,), (5,)), EOS), s.ChoiceSpec(((3,),), EOS)),
        (s.ChoiceSpec(((1,), (5,)), EOS), s.ChoiceSpec(((1,), (3,)), EOS)),
        "`$.specs[0]`, which refuses token 3 - at `$.specs[1].choices[0][0]`",
    ),
    "forced and an end from the beginning": (
        (Forced((1,)), s.ForcedEndSpec(0, (3,))),
        (Forced((1,)), s.ForcedEndSpec(1, (3,))),
        "`$.specs[0]`: both force a token at the same step - at `$.specs[1]`",
    ),
    "an end before the sequence is through": (
        (s.ForcedEndSpec(2, (3,)), Forced((1, 1, 1), EOS)),
        (s.ForcedEndSpec(4, (3,)), Forced((1, 1, 1), EOS)),
        "`$.specs[0]`: both force a token at the same step - at `$.specs[1]`",
    ),
    "an end before any choice is through": (
        (s.ChoiceSpec(((1, 1), (3, 3, 3)), EOS), s.ForcedEndSpec(1, (5,))),
        (s.ChoiceSpec(((1, 1), (3, 3, 3)), EOS), s.ForcedEndSpec(4, (5,))),
        "`$.specs[0]`: both force a token at the same step - at `$.specs[1]`",
    ),
    "two ends at once": (
        (s.ForcedEndSpec(5, (1, 1)), s.ForcedEndSpec(6, (3,))),
        (s.ForcedEndSpec(5, (1, 1)), s.ForcedEndSpec(7, (3,))),
        "`$.specs[0]`: both force a token at the same step - at `$.specs[1]`",
    ),
    "a forced token is banned": (
        (Forced((1, 3, 4, 5)), s.BannedTokensSpec((7, 5))),
        (Forced((1, 3, 4, 5)), s.BannedTokensSpec((7, 6))),
        "`$.specs[1]`, which bans token 5 - at `$.specs[0].token_ids[3]`",
    ),
    "a forced token is a banned sequence": (
        (s.BannedSequencesSpec(((1, 3), (4,))), Forced((1, 3, 4))),
        (s.BannedSequencesSpec(((1, 4), (4, 4))), Forced((1, 3, 4))),
        "`$.specs[0]`, which bans token 3 - at `$.specs[1].token_ids[1]`",
    ),
    "a forced token is not allowed": (
        (Forced((1, 3)), s.AllowedTokensSpec((1, EOS))),
        (Forced((1, 3)), s.AllowedTokensSpec((1, 3))),
        "`$.specs[1]`, which does not allow token 3 - at `$.specs[0].token_ids[1]`",
    ),
    "a forced token is not on the second list": (
        (Forced((1, 3)), s.AllowedTokensSpec((1, 3)), s.AllowedTokensSpec((1,))),
        (Forced((1, 3)), s.AllowedTokensSpec((1, 3)), s.AllowedTokensSpec((1, 3, 4))),
        "`$.specs[2]`, which bans token 3 - at `$.specs[0].token_ids[1]`",
    ),
    "the forced EOS is banned": (
        (Forced((1,), EOS), s.BannedTokensSpec((EOS,))),
        (Forced((1,)), s.BannedTokensSpec((EOS,))),
        "`$.specs[1]`, which bans token 2 - at `$.specs[0].eos_token_id`",
    ),
    "a closing token is banned": (
        (s.ForcedEndSpec(5, (1, 3)), s.BannedTokensSpec((3,))),
        (s.ForcedEndSpec(5, (1, 3)), s.BannedTokensSpec((EOS,))),
        "`$.specs[1]`, which bans token 3 - at `$.specs[0].token_ids[1]`",
    ),
    "the closing EOS is not allowed": (
        (s.ForcedEndSpec(5, (1,), EOS), s.AllowedTokensSpec((1, 3))),
        (s.ForcedEndSpec(5, (1,), EOS), s.AllowedTokensSpec((1, EOS))),
        "`$.specs[1]`, which does not allow token 2 - at `$.specs[0].eos_token_id`",
    ),
    "the end of thinking is banned": (
        (s.ThinkingBudgetSpec(5, (7,), (1, 3)), s.BannedTokensSpec((3,))),
        (s.ThinkingBudgetSpec(5, (7,), (1, 3)), s.BannedTokensSpec((7,))),
        "`$.specs[1]`, which bans token 3 - at `$.specs[0].end_token_ids[1]`",
    ),
    "the message is not allowed": (
        (s.ThinkingBudgetSpec(5, (7,), (1,), (4, 5)), s.AllowedTokensSpec((1, 4))),
        (s.ThinkingBudgetSpec(5, (7,), (1,), (4,)), s.AllowedTokensSpec((1, 4))),
        "`$.specs[1]`, which does not allow token 5 - at `$.specs[0].message_token_ids[1]`",
    ),
    "the beginning of the answer is banned": (
        (s.ThinkingBudgetSpec(5, (7,), (1,), then_token_ids=(4, 5)), s.BannedTokensSpec((5,))),
        (s.ThinkingBudgetSpec(5, (7,), (1,), then_token_ids=(4, 5)), s.BannedTokensSpec((7,))),
        "`$.specs[1]`, which bans token 5 - at `$.specs[0].then_token_ids[1]`",
    ),
    "another end of thinking is banned": (
        (s.ThinkingBudgetSpec(5, (7,), (1,), (), (), ((5,), (3, 4))), s.BannedTokensSpec((4,))),
        (s.ThinkingBudgetSpec(5, (7,), (1,), (), (), ((5,), (3, 4))), s.BannedTokensSpec((5,))),
        "`$.specs[1]`, which bans token 4 - at `$.specs[0].other_end_token_ids[1][1]`",
    ),
    "the token that stands for an end is forced": (
        (Forced((4, 1)), s.AtEndSpec((1, 5), (EOS,))),
        (Forced((4, 5)), s.AtEndSpec((1, 5), (EOS,))),
        "`$.specs[1]`, which refuses token 1 - at `$.specs[0].token_ids[1]`",
    ),
    "the token that stands for an end is offered": (
        (s.AtEndSpec((1, 5), (EOS,)), s.ChoiceSpec(((1,), (4, 5)), EOS)),
        (s.AtEndSpec((1, 5), (EOS,)), s.ChoiceSpec(((3,), (4, 5)), EOS)),
        "`$.specs[0]`, which refuses token 1 - at `$.specs[1].choices[0][0]`",
    ),
    "the token that stands for an end is banned": (
        (s.BannedTokensSpec((1,)), s.AtEndSpec((1, 5), (EOS,))),
        (s.BannedTokensSpec((EOS,)), s.AtEndSpec((1, 5), (3, EOS))),
        "`$.specs[0]`, which bans token 1 - at `$.specs[1].token_ids[0]`",
    ),
    "a text before the end is not allowed": (
        (s.AtEndSpec((1, 5), (EOS,)), s.AllowedTokensSpec((1, EOS))),
        (s.AtEndSpec((1, 5), (EOS,)), s.AllowedTokensSpec((1, 5, EOS))),
        "`$.specs[1]`, which does not allow token 5 - at `$.specs[0].token_ids[1]`",
    ),
    "the triggered phrase is banned": (
        (s.TriggerSpec((1,), (4, 5)), s.BannedTokensSpec((5,))),
        (s.TriggerSpec((1,), (4, 5)), s.BannedTokensSpec((1,))),
        "`$.specs[1]`, which bans token 5 - at `$.specs[0].token_ids[1]`",
    ),
    "a choice is banned": (
        (s.ChoiceSpec(((1,), (3, 4), (5,)), EOS), s.BannedTokensSpec((4,))),
        (s.ChoiceSpec(((1,), (3, 4), (5,)), EOS), s.BannedTokensSpec((6,))),
        "`$.specs[1]`, which bans token 4 - at `$.specs[0].choices[1][1]`",
    ),
    "the first choice is banned": (
        (s.ChoiceSpec(((1, 3), (4,)), EOS), s.BannedTokensSpec((3,))),
        (s.ChoiceSpec(((1, 3), (4,)), EOS), s.BannedSequencesSpec(((3, 1),))),
        "`$.specs[1]`, which bans token 3 - at `$.specs[0].choices[0][1]`",
    ),
    "the last choice is not allowed": (
        (s.AllowedTokensSpec((1, 3, EOS)), s.ChoiceSpec(((1, 4), (3,)), EOS)),
        (s.AllowedTokensSpec((1, 3, EOS)), s.ChoiceSpec(((1, 3), (4,)), EOS)),
        "`$.specs[0]`, which does not allow token 4 - at `$.specs[1].choices[0][1]`",
    ),
    "the EOS after a choice is not allowed": (
        (s.AllowedTokensSpec((1, 3)), s.ChoiceSpec(((1,), (3,)), EOS)),
        (s.AllowedTokensSpec((1, 3, EOS)), s.ChoiceSpec(((1,), (3,)), EOS)),
        "`$.specs[0]`, which does not allow token 2 - at `$.specs[1].eos_token_id`",
    ),
    "nothing in common": (
        (s.AllowedTokensSpec((1, 3)), s.AllowedTokensSpec((4, 5))),
        (s.AllowedTokensSpec((1, 3)), s.AllowedTokensSpec((4, 3))),
        "`$.specs[0]`: no token is left - at `$.specs[1]`",
    ),
    "nothing in common to three": (
        (s.AllowedTokensSpec((1, 3)), s.AllowedTokensSpec((3, 4)), s.AllowedTokensSpec((1, 4))),
        (s.AllowedTokensSpec((1, 3)), s.AllowedTokensSpec((3, 4)), s.AllowedTokensSpec((3, 5))),
        "`$.specs[0]` and `$.specs[1]`: no token is left - at `$.specs[2]`",
    ),
    "all allowed tokens are banned": (
        (
            s.BannedTokensSpec((1, 9)),
            s.AllowedTokensSpec((1, 3)),
            s.BannedSequencesSpec(((3,), (3, 4))),
        ),
        (s.BannedTokensSpec((1, 9)), s.AllowedTokensSpec((1, 3)), s.BannedSequencesSpec(((3, 4),))),
        "`$.specs[0]` and `$.specs[1]`: no token is left - at `$.specs[2]`",
    ),
    "only stop tokens are allowed, too early": (
        (s.AllowedTokensSpec((EOS,)), s.MinTokensSpec(1, (EOS, 3))),
        (s.AllowedTokensSpec((EOS, 1)), s.MinTokensSpec(1, (EOS, 3))),
        "`$.specs[0]`: no token is left - at `$.specs[1]`",
    ),
    "EOS is forced too early": (
        (s.MinTokensSpec(3, (EOS,)), Forced((1, 1), EOS)),
        (s.MinTokensSpec(2, (EOS,)), Forced((1, 1), EOS)),
        "`$.specs[0]`, which bans token 2 - at `$.specs[1].eos_token_id`",
    ),
    "a stop token ends the sequence too early": (
        (Forced((1, 1, 7)), s.MinTokensSpec(3, (EOS, 7))),
        (Forced((1, 1, 7)), s.MinTokensSpec(2, (EOS, 7))),
        "`$.specs[1]`, which bans token 7 - at `$.specs[0].token_ids[2]`",
    ),
    "a stop token lies in the sequence": (
        (Forced((1, 7, 1)), s.MinTokensSpec(9, (7,))),
        (Forced((1, 7, 1)), s.MinTokensSpec(1, (7,))),
        "`$.specs[1]`, which bans token 7 - at `$.specs[0].token_ids[1]`",
    ),
    "the end comes too early": (
        (s.ForcedEndSpec(5, (1, 1), EOS), s.MinTokensSpec(8, (EOS,))),
        (s.ForcedEndSpec(5, (1, 1), EOS), s.MinTokensSpec(7, (EOS,))),
        "`$.specs[1]`, which bans token 2 - at `$.specs[0].eos_token_id`",
    ),
    "a closing token stops too early": (
        (s.ForcedEndSpec(5, (1, 7)), s.MinTokensSpec(7, (7,))),
        (s.ForcedEndSpec(5, (1, 7)), s.MinTokensSpec(6, (7,))),
        "`$.specs[1]`, which bans token 7 - at `$.specs[0].token_ids[1]`",
    ),
    "a choice is too short": (
        (s.ChoiceSpec(((1, 1), (3,)), EOS), s.MinTokensSpec(2, (EOS,))),
        (s.ChoiceSpec(((1, 1), (3,)), EOS), s.MinTokensSpec(1, (EOS,))),
        "`$.specs[1]`, which bans token 2 - at `$.specs[0].eos_token_id`",
    ),
    "a token that opens thinking and is forced, too": (
        (s.ThinkingBudgetSpec(3, (5, 7), (5,)), s.BannedTokensSpec((5,))),
        (s.ThinkingBudgetSpec(3, (5, 7), (6,)), s.BannedTokensSpec((5,))),
        "`$.specs[1]`, which bans token 5 - at `$.specs[0].end_token_ids[0]`",
    ),
    "a state that is left at once": (
        (left_at_once(force=7, timer=1, timeout=2), s.BannedTokensSpec((7,))),
        (left_at_once(force=7, timer=0, timeout=2), s.BannedTokensSpec((7,))),
        "`$.specs[1]`, which bans token 7 - at `$.specs[0].states[1].force`",
    ),
    "an end that its phase does not reach": (
        (in_phase(2), s.BannedTokensSpec((3,))),
        (in_phase(3), s.BannedTokensSpec((3,))),
        "`$.specs[1]`, which bans token 3 - at `$.specs[0].phases[0].specs[0].token_ids[0]`",
    ),
    "two grammars": (
        (GRAMMAR, s.GrammarSpec(regex="a+")),
        (GRAMMAR, s.SamplingSpec(temperature=0)),
        "`$.specs[0]`: both are a grammar - at `$.specs[1]`",
    ),
    "a sequence is forced into a grammar": (
        (GRAMMAR, Forced((1,))),
        (GRAMMAR, s.BannedTokensSpec((1,))),
        f"`$.specs[0]`, {NOT_TAKEN} `forced_sequence` forces - at `$.specs[1]`",
    ),
    "an end is forced into a grammar": (
        (s.ForcedEndSpec(5, (1,)), GRAMMAR),
        (s.ThinkingBudgetSpec(5, (1,), (3,)), GRAMMAR),
        f"`$.specs[1]`, {NOT_TAKEN} `forced_end` forces - at `$.specs[0]`",
    ),
    "a choice beside a grammar": (
        (GRAMMAR, s.ChoiceSpec(((1,), (3,)), EOS)),
        (GRAMMAR, s.AllowedTokensSpec((1, 3, EOS))),
        f"`$.specs[0]`, {NOT_TAKEN} `choice` forces - at `$.specs[1]`",
    ),
    "a phrase is forced into a grammar": (
        (GRAMMAR, s.TriggerSpec((1,), (3,))),
        (GRAMMAR, s.MinTokensSpec(4, (EOS,))),
        f"`$.specs[0]`, {NOT_TAKEN} `trigger` forces - at `$.specs[1]`",
    ),
    "two temperatures": (
        (s.SamplingSpec(temperature=0.5), GRAMMAR, s.SamplingSpec(top_p=0.5, temperature=0.7)),
        (s.SamplingSpec(temperature=0.5), GRAMMAR, s.SamplingSpec(top_p=0.5, temperature=0.5)),
        "`$.specs[0]`, which sets temperature to 0.5 - at `$.specs[2].temperature`",
    ),
    "greedy and not": (
        (s.SamplingSpec(temperature=0), s.SamplingSpec(temperature=1)),
        (s.SamplingSpec(temperature=0), s.SamplingSpec(top_p=1)),
        "`$.specs[0]`, which sets temperature to 0.0 - at `$.specs[1].temperature`",
    ),
}
conflicts = pytest.mark.parametrize("name", CONFLICTS)


def admit(specs: Specs) -> Specs:
    """Check specs as they are on the way from a client to the end of admission."""
    decoded = decode(encode(specs)).specs
    if not any(isinstance(spec, NativeSpec) for spec in decoded):
        check_contradictions(decoded, compile_specs(decoded), 1000)
    return decoded


@conflicts
def test_conflict(name: str):
    specs, _, message = CONFLICTS[name]
    with pytest.raises(SpecError) as error:
        admit(specs)
    assert str(error.value) == f"Conflicts with {message}"
    with pytest.raises(SpecError, match=r"^Conflicts with"):
        admit(specs[::-1])


@conflicts
def test_near_miss(name: str):
    _, specs, _ = CONFLICTS[name]
    assert admit(specs) == specs
    admit(specs[::-1])


def test_of_three_the_certain_ones_are_named():
    specs = s.NoRepeatNgramSpec(3), Forced((1, 3)), s.AllowedTokensSpec((1,))
    with pytest.raises(SpecError) as error:
        admit(specs)
    assert error.value.path == "$.specs[1].token_ids[1]"
    assert error.value.message == "Conflicts with `$.specs[2]`, which does not allow token 3"


def test_many_kinds_get_on_together():
    specs = (
        s.LogitBiasSpec({1: 5.0, 9: -5.0}),
        s.LogitBiasSpec({1: -5.0}),
        s.BannedTokensSpec((9,)),
        s.BannedSequencesSpec(((5, 6), (8,))),
        s.AllowedTokensSpec(tuple(range(16))),
        s.MinTokensSpec(4, (EOS,)),
        s.ForcedEndSpec(40, (5, 7), EOS),
        s.ThinkingBudgetSpec(8, (3,), (4,), (5,)),
        s.TriggerSpec((1, 1), (6, 7), times=None),
        s.NoRepeatNgramSpec(3, 64),
        s.PromptBiasSpec(-1.0),
        Forced((3, 1, 1)),
    )
    assert admit(specs) == specs
