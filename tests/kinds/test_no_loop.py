import pytest
from logitport.adapters.core import compile_specs
from logitport.adapters.core.contradictions import check_contradictions, may_lose
from logitport.adapters.reference import edit
from logitport.spec import (
    BannedTokensSpec,
    ChoiceSpec,
    ForcedTokenSequenceSpec,
    NoLoopSpec,
    SpecError,
    ThinkingBudgetSpec,
    limits,
)

from tests.support.kinds import F, RealizedKindTests, ban

MOST = limits.MAX_LOOP
BOTH = "Expected both of start_token_ids and end_token_ids, or neither"
TAGS = {"start_token_ids": [1], "end_token_ids": [2]}


class TestRows(RealizedKindTests):
    golden = NoLoopSpec(4, 64, 2, 24, (198,), (7,), (8,), ((7, 9),), ((8, 9),), output_only=False)
    refused = (
        ({"times": 1}, "Expected `int` >= 2", "times"),
        ({"times": MOST + 1}, f"Expected `int` <= {MOST}", "times"),
        ({"times": 2, "max_period": 0}, "Expected `int` >= 1", "max_period"),
        ({"times": 2, "max_period": 513}, "Expected `int` <= 512", "max_period"),
        (
            {"times": 3, "max_period": 512},
            f"Expected at most {MOST} tokens in 3 copies, got 1536",
            "max_period",
        ),
        (
            {"times": 9},
            f"Expected at most {MOST} tokens in 9 copies, got 1152",
            "max_period",
        ),
        (
            {"times": 2, "max_period": 8, "min_period": 9},
            "Expected at most the longest period, 8, got 9",
            "min_period",
        ),
        ({"times": 2, "min_tokens": MOST + 1}, f"Expected `int` <= {MOST}", "min_tokens"),
        (
            {"times": 2, "then_token_ids": [1] * 65},
            "Expected at most 64 token ids to look for, got 65",
            "then_token_ids",
        ),
        (
            {"times": 2, "then_token_ids": [7, 7, 7, 7]},
            "Expected a text whose beginning comes again at most 2 times",
            "then_token_ids",
        ),
        ({"times": 2, "start_token_ids": [1]}, BOTH, "start_token_ids"),
        ({"times": 2, "end_token_ids": [1]}, BOTH, "end_token_ids"),
        (
            {"times": 2, "other_end_token_ids": [[1]]},
            "Expected start_token_ids and end_token_ids, too",
            "other_end_token_ids",
        ),
        (
            {"times": 2, **TAGS, "other_end_token_ids": [[1]]},
            "The same as `$.start_token_ids`",
            "other_end_token_ids[0]",
        ),
        ({"times": 2, "output_only": 0}, "Expected `bool`, got `int`", "output_only"),
    )
    largest = (
        NoLoopSpec(2, 512, 512, MOST, tuple(range(64)), (1,) * 64, (2,) * 64),
        NoLoopSpec(MOST, 1),
    )
    beyond = (
        (NoLoopSpec(2, then_token_ids=(1, 9)), "then_token_ids[1]"),
        (NoLoopSpec(2, start_token_ids=(1,), end_token_ids=(3, 9)), "end_token_ids[1]"),
    )
    histories = (
        (NoLoopSpec(2), [], [None, 1, ban(1), 2, ban(2), 1, ban(1, 2), 3, ban(3)]),
        (NoLoopSpec(3), [], [None, 1, None, 1, ban(1), 2, None, 2, ban(2)]),
        (NoLoopSpec(3), [], [None, 8, None, 9, None, 8, None, 9, None, 8, ban(9), 7, None]),
        # Two tokens, but not one.
        (NoLoopSpec(2, 2, 2), [], [None, 1, None, 1, None, 1, ban(1), 1, ban(1)]),
        # Six tokens: six times one token, and three times two.
        (
            NoLoopSpec(2, min_tokens=6),
            [],
            [None, 1, None, 2, None, 1, None, 2, None, 1, ban(2), 3, None],
        ),
        (NoLoopSpec(2, min_tokens=3), [], [None, 4, None, 4, ban(4)]),
        # The prompt counts if it is asked for.
        (NoLoopSpec(3), [5, 5, 5], [None, 5, None, 5, ban(5)]),
        (NoLoopSpec(3, output_only=False), [5], [None, 5, ban(5)]),
        # A text is forced after a loop; another token in its place ends it.
        (
            NoLoopSpec(2, then_token_ids=(3, 4)),
            [],
            [None, 8, None, 8, F(3), 3, F(4), 4, None, 9, None, 9, F(3), 5, None],
        ),
        # Then the model is free for a token, even if the text is a loop.
        (
            NoLoopSpec(2, then_token_ids=(3, 3)),
            [],
            [None, 8, None, 8, F(3), 3, F(3), 3, None, 3, F(3)],
        ),
        # Within a block, which 1 begins and 2 ends.
        (
            NoLoopSpec(2, start_token_ids=(1,), end_token_ids=(2,)),
            [],
            [None, 5, None, 1, ban(1), 5, ban(1, 5), 2, None, 5, None],
        ),
        (
            NoLoopSpec(3, 1, 1, 0, (6, 2, 7), (1,), (2,)),
            [1],
            [None, 5, None, 5, None, 5, F(6), 6, F(2), 2, F(7), 7, None, 5, None, 5, None, 5, None],
        ),
    )


def test_a_thinking_block_is_closed_as_by_its_budget():
    """The message, the end tag and what follows are those of the budget."""
    thinking = ThinkingBudgetSpec(
        9, (1,), (2,), (6,), other_end_token_ids=((4,),), then_token_ids=(7,)
    )
    loop = NoLoopSpec.within_thinking(thinking, 3)
    output = [5, 5, 5]
    for token in (6, 2, 7):
        assert edit(loop, [1], output) == F(token)
        output.append(token)
    assert edit(loop, [1], output) is None
    assert edit(loop, [1], [4, 5, 5, 5]) is None


def test_programs():
    equal = compile_specs([NoLoopSpec(2), NoLoopSpec(2)])
    assert len(equal.loops) == 1
    assert not equal.reads_prompt
    assert equal.needs_output_ids
    assert compile_specs([NoLoopSpec(2, output_only=False)]).reads_prompt
    assert compile_specs([NoLoopSpec(2, start_token_ids=(1,), end_token_ids=(2,))]).reads_prompt


def test_what_a_grammar_takes_beside_it():
    """A grammar begins after the thinking block that is closed."""
    assert not NoLoopSpec(2).breaks_grammar
    assert NoLoopSpec(2, then_token_ids=(1,)).breaks_grammar
    assert not NoLoopSpec.within_thinking(ThinkingBudgetSpec(9, (1,), (2,)), 3).breaks_grammar


def test_contradictions():
    specs = [NoLoopSpec(2, then_token_ids=(3,)), BannedTokensSpec((3,))]
    with pytest.raises(SpecError, match="which bans token 3"):
        check_contradictions(specs, compile_specs(specs))
    specs = [ForcedTokenSequenceSpec((1, 1, 1)), NoLoopSpec(2)]
    assert may_lose(specs, compile_specs(specs)) == ("no_loop",)
    # What is forced may come at any time, and contradicts no other text by that.
    for beside, lose in (
        (BannedTokensSpec((4,)), ()),
        (ForcedTokenSequenceSpec((0, 7)), ("no_loop", "forced_sequence")),
        (ChoiceSpec(((3, 0, 4), (3, 2)), 1), ("no_loop", "choice")),
    ):
        specs = [NoLoopSpec(3, then_token_ids=(5,)), beside]
        check_contradictions(specs, compile_specs(specs), 16)
        assert may_lose(specs, compile_specs(specs), 16) == lose
    few = [BannedTokensSpec(tuple(range(1, 8))), NoLoopSpec(2)]
    assert "no_loop" in may_lose(few, compile_specs(few), 8)
    assert may_lose(few, compile_specs(few), 1000) == ()
