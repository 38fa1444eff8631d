"""The reference against examples written down by hand, token by token."""

from typing import Any

import numpy as np
import pytest
from logitport.adapters.conformance.meaning import (
    BAN,
    FORCED,
    MEANING,
    Add,
    Allow,
    Force,
    combine,
    edit,
)
from logitport.adapters.conformance.obeys import obeys
from logitport.spec import (
    AllowedTokensSpec,
    BannedSequencesSpec,
    BannedTokensSpec,
    ChoiceSpec,
    ForcedEndSpec,
    ForcedTokenSequenceSpec,
    LogitBiasSpec,
    MinTokensSpec,
    NoRepeatNgramSpec,
    PromptBiasSpec,
    ThinkingBudgetSpec,
    TriggerSpec,
)

from tests.strategies import REALIZED


def allow(*tokens: int) -> Allow:
    return Allow(frozenset(tokens))


def ban(*tokens: int) -> Add:
    return Add(dict.fromkeys(tokens, BAN))


F = Force
TEXT = ForcedTokenSequenceSpec((1, 2, 1), eos_token_id=0)
END = ForcedEndSpec(2, (1, 2), eos_token_id=0)
WORDS = BannedSequencesSpec(((5,), (1, 2), (1, 1, 3), (4, 1, 2, 6)))
CHOICE = ChoiceSpec(((1,), (1, 2, 3), (4, 5)), eos_token_id=0)
ONCE = TriggerSpec((1, 1, 2), (7, 8))
TWICE = TriggerSpec((1,), (1, 1), times=2)
ALWAYS = TriggerSpec((1,), (2,), times=None)
THINK = ThinkingBudgetSpec(3, (1, 2), (3, 3, 4), (9,))
BARE = ThinkingBudgetSpec(2, (1,), (2,))
SOON = ThinkingBudgetSpec(0, (1,), (2, 3))
CLOSED = ThinkingBudgetSpec(0, (1,), (2,), (9,))

# spec | prompt | the first output tokens, and after each, what happens to the next one
HISTORIES: list[tuple[Any, list[int], list[Any]]] = [
    (TEXT, [1], [F(1), 1, F(2), 2, F(1), 1, F(0), 0, F(0), 7, F(0)]),
    (TEXT, [], [F(1), 9, F(1), 2, F(1), 1, F(2), 9, F(1), 9, F(0)]),  # a foreign token comes first
    (ForcedTokenSequenceSpec((1,)), [], [F(1), 1, None, 1, None]),
    (AllowedTokensSpec((3, 1, 3)), [], [allow(1, 3), 2, allow(1, 3)]),
    (BannedTokensSpec((3, 1)), [], [ban(3, 1), 2, ban(3, 1)]),
    (WORDS, [1], [ban(5), 1, ban(5, 2), 1, ban(5, 2, 3), 1, ban(5, 2, 3), 4, ban(5)]),
    (WORDS, [], [ban(5), 4, ban(5), 1, ban(5, 2), 2, ban(5, 6), 6, ban(5)]),
    (LogitBiasSpec({2: 1.5}), [], [Add({2: 1.5}), 0, Add({2: 1.5})]),
    (MinTokensSpec(2, (0, 4)), [8, 8], [ban(0, 4), 1, ban(0, 4), 1, None, 1, None]),
    (END, [], [None, 1, None, 2, F(1), 1, F(2), 2, F(0), 5, F(0)]),
    (END, [], [None, 1, None, 1, F(1), 2, F(1), 1, F(2), 1, F(0)]),
    (ForcedEndSpec(0, (1,)), [], [F(1), 1, None]),
    (CHOICE, [4], [allow(1, 4), 1, allow(0, 2), 2, F(3), 3, F(0), 0, F(0), 1, F(0)]),
    (CHOICE, [], [allow(1, 4), 9, allow(1, 4), 4, F(5), 9, F(0), 4, F(0)]),
    (CHOICE, [], [allow(1, 4), 1, allow(0, 2), 0, F(0)]),
    (ChoiceSpec(((1,), (1, 0, 2)), 0), [], [F(1), 1, F(0), 0, F(2), 2, F(0)]),
    (ONCE, [1, 1], [None, 2, None, 1, None, 1, None, 1, None, 2, F(7), 7, F(8), 8, None, 1, None]),
    (ONCE, [], [None, 1, None, 1, None, 2, F(7), 1, F(7), 7, F(8), 1, None, 1, None, 2, None]),
    (TWICE, [], [None, 1, F(1), 1, F(1), 1, None, 1, F(1), 1, F(1), 1, None, 1, None]),
    (ALWAYS, [], [None, 1, F(2), 2, None, 1, F(2), 1, F(2), 2, None]),
    (NoRepeatNgramSpec(3), [1, 2, 3], [None, 1, None, 2, ban(3), 4, None, 1, None, 2, ban(3, 4)]),
    (NoRepeatNgramSpec(2, 3), [1, 5], [None, 1, ban(5), 6, None, 1, ban(6), 7, None]),
    (NoRepeatNgramSpec(1, 2, (3,)), [1, 2], [ban(1, 2), 3, ban(2), 3, None, 4, ban(4)]),
    (NoRepeatNgramSpec(1), [], [None, 2, ban(2), 1, ban(1, 2)]),
    (PromptBiasSpec(2, (7,)), [1, 7, 1], [Add({1: 2}), 3, Add({1: 2})]),
    # The model opens the block and goes on for too long.
    (THINK, [], [None, 1, None, 2, None, 5, None, 1, None, 2, F(9), 9, F(3), 3, F(3), 3, F(4)]),
    # It ends in time, and a second block has its own budget.
    (THINK, [], [None, 1, None, 2, None, 3, None, 3, None, 4, None, 5, None, 5, None, 5, None]),
    (BARE, [], [None, 1, None, 2, None, 1, None, 7, None, 7, F(2), 2, None, 1, None, 3, None]),
    # The prompt opens it: what is in the prompt counts, but nothing is forced there.
    (THINK, [1, 2], [None, 5, None, 5, None, 5, F(9)]),
    (THINK, [1, 2, 5, 5, 5, 5, 5], [F(9), 9, F(3), 3, F(3), 3, F(4), 4, None]),
    (THINK, [1, 2, 5, 5, 5, 3, 3, 4], [None, 1, None, 2, None, 5, None]),
    # One or two tokens of the end tag are out when the budget is.
    (THINK, [1, 2, 5], [None, 5, None, 3, F(3), 3, F(4), 4, None, 5, None]),
    (THINK, [1, 2, 3], [None, 3, None, 3, F(4), 9, None, 1, None, 2, None]),
    (THINK, [1, 2, 5, 5, 5, 3, 3], [F(4), 4, None]),
    # What is forced waits for its own beginning, like every chain.
    (THINK, [1, 2, 5, 5, 5], [F(9), 6, F(9), 9, F(3), 9, F(3), 3, F(3), 9, F(4), 9, None]),
    # Who closes the block instead of beginning the message has closed it.
    (THINK, [1, 2, 5, 5, 5], [F(9), 6, F(9), 3, F(3), 3, F(4), 4, None, 9, None]),
    (CLOSED, [1], [F(9), 2, None, 1, F(9), 9, F(2), 2, None]),
    (ThinkingBudgetSpec(0, (1,), (2, 3), (2, 9)), [1], [F(2), 2, F(9), 9, F(2), 2, F(3), 3, None]),
    # A start tag inside a block does not start the count anew; a tag's end does not begin another.
    (BARE, [1], [None, 1, None, 1, F(2), 2, None]),
    (THINK, [1, 1], [None, 2, None, 5, None, 5, None, 5, F(9)]),
    (SOON, [], [None, 1, F(2), 2, F(3), 3, None, 1, F(2)]),
]


@pytest.mark.parametrize(("spec", "prompt", "steps"), HISTORIES)
def test_the_meaning_of_each_kind(spec: Any, prompt: list[int], steps: list[Any]) -> None:
    output: list[int] = []
    for expected, token in zip(steps[::2], [*steps[1::2], 0], strict=True):
        assert edit(spec, prompt, output) == expected, output
        output.append(token)


def test_it_knows_every_kind() -> None:
    assert set(MEANING) == set(REALIZED) == {type(spec) for spec, _, _ in HISTORIES}


ROW = np.array([1.0, 2.0, 3.0, -np.inf])
GONE = -np.inf


@pytest.mark.parametrize(
    ("acting", "expected"),
    [
        ([None], [1, 2, 3, GONE]),
        ([Add({0: 1.5, 3: 4.0}), Add({0: -1})], [1.5, 2, 3, GONE]),
        ([ban(1)], [1, 2 + BAN, 3, GONE]),
        ([allow(0, 2)], [1, GONE, 3, GONE]),
        ([allow(0, 2), Add({0: 1, 1: 1})], [2, GONE, 3, GONE]),
        ([allow(3)], [GONE, GONE, GONE, 0]),
        ([allow(1), ban(1)], [GONE, 2 + BAN, GONE, GONE]),
        ([allow(0, 1), allow(1, 2)], [1 + BAN, 2, GONE, GONE]),
        ([allow(0), allow(2)], [1 + BAN, GONE, GONE, GONE]),
        ([F(1), F(2)], [1, FORCED, 3, GONE]),
        ([ban(1), F(1), allow(0)], [1, FORCED, GONE, GONE]),
        ([F(3)], [1, 2, 3, FORCED]),
    ],
)
def test_what_combines_to_what(acting: list[Any], expected: list[float]) -> None:
    np.testing.assert_array_equal(combine(ROW, acting), expected)
    assert ROW.tolist() == [1, 2, 3, GONE]


@pytest.mark.parametrize(
    ("spec", "output", "expected"),
    [
        (TriggerSpec((1,), (2, 3)), [4, 5, 6], True),
        (TriggerSpec((1,), (2, 3)), [4, 1, 2, 3, 1], True),
        (TriggerSpec((1,), (2, 3)), [4, 1, 2], True),
        (TriggerSpec((1,), (2, 3)), [4, 1, 5], False),
        # A tag that is half out when the budget is spent, and cut off by max_tokens.
        (ThinkingBudgetSpec(3, (1,), (7, 8, 9), (5,)), [1, 2, 2, 7, 8], True),
        (ThinkingBudgetSpec(3, (1,), (7, 8, 9), (5,)), [1, 2, 2, 7, 8, 9, 4], True),
        (ThinkingBudgetSpec(3, (1,), (7, 8, 9), (5,)), [1, 2, 2, 7, 5], False),
        (ThinkingBudgetSpec(3, (1,), (7, 8, 9), (5,)), [1, 2, 2, 2, 5, 7], True),
        (ThinkingBudgetSpec(3, (1,), (7, 8, 9), (5,)), [1, 2, 2, 2, 2], False),
    ],
    ids=str,
)
def test_what_a_spec_lets_through(spec: Any, output: list[int], expected: bool):
    assert obeys(spec, [], output) is expected


@pytest.mark.parametrize(
    ("prompt", "output", "expected"),
    [
        ([1], [2, 4, 4], True),  # handed over: no message could come before it
        ([1], [9, 2, 4], True),
        ([1], [4, 2, 4], False),
        ([4], [1, 2, 4], False),
    ],
)
def test_a_block_that_the_first_token_closes(prompt: list[int], output: list[int], expected: bool):
    assert obeys(CLOSED, prompt, output) is expected


@pytest.mark.parametrize(
    ("prompt", "output", "expected"),
    [
        ([5], [1, 2, 3, 4, 6, 7], True),
        ([], [1, 2, 3, 1, 2, 4], True),
        ([], [1, 2, 3, 1, 2, 3], False),
        ([1, 2], [3, 1, 2, 3], False),
    ],
)
def test_ngrams_that_begin_before_the_prompt(prompt: list[int], output: list[int], expected: bool):
    """There are none, so they repeat nothing."""
    assert obeys(NoRepeatNgramSpec(3), prompt, output) is expected
