from functools import partial

import msgspec
import pytest
from logitport.spec import ThinkingBudgetSpec, decode, encode, limits
from logitport.spec.base import Sizes

from tests.support.kinds import (
    AT_LEAST_0,
    LONG,
    SOME,
    TOO_LONG,
    TOO_LONG_TO_FIND,
    F,
    RealizedKindTests,
    ban,
)
from tests.support.paths import GOLDEN
from tests.support.small_tokenizer import END, FIVE, GREEDY, NEWLINE, SPACE_CAT, THINK, S

SPEC = ThinkingBudgetSpec(3, (1, 2), (3, 3, 4), (9,))
BARE = ThinkingBudgetSpec(2, (1,), (2,))
SOON = ThinkingBudgetSpec(0, (1,), (2, 3))
CLOSED = ThinkingBudgetSpec(0, (1,), (2,), (9,))
TAGS = ThinkingBudgetSpec(
    2, (1,), (2, 3), other_start_token_ids=((4, 4),), other_end_token_ids=((5,), (6, 3, 3))
)
THEN = ThinkingBudgetSpec(
    1, (1,), (2, 3), (9,), other_end_token_ids=((6, 7),), then_token_ids=(4, 1, 5)
)
BOTH = ThinkingBudgetSpec(1, (1,), (2, 3), other_end_token_ids=((2, 4),), then_token_ids=(5,))
FLOOR = ThinkingBudgetSpec(4, (1,), (2, 3), other_end_token_ids=((5,),), min_tokens=2)
GRACE = ThinkingBudgetSpec(1, (1,), (2, 3), (9,), grace=3, newline_token_ids=(6, 7))
DOCUMENTED = ThinkingBudgetSpec(2, (7,), (8,), grace=2, newline_token_ids=(3,))
STOP = ThinkingBudgetSpec(2, (1,), (2,), stop_token_ids=(0,))
STOP_FLOOR = msgspec.structs.replace(FLOOR, stop_token_ids=(0,))
LINES = ThinkingBudgetSpec(0, (1,), (6, 2), (9,), grace=2, newline_token_ids=(7, 6, 6))
ALL = ThinkingBudgetSpec(
    512,
    (100, 101),
    (102,),
    (198,),
    other_start_token_ids=((103,),),
    other_end_token_ids=((104, 105), (106,)),
    then_token_ids=(107, 108),
    min_tokens=16,
    grace=50,
    newline_token_ids=(198, 271),
)
FIELDS = {"budget": 1, "start_token_ids": [1], "end_token_ids": [2]}
LONG_TAGS = {"other_end_token_ids": [[3] * 32, [4] * 32]}
TOO_LONG_IN_ALL = "Expected at most 64 token ids with end_token_ids in all, got 65"
BOTH_OR_NEITHER = "Expected both of grace and newline_token_ids, or neither"
AS_START = "The same as `$.start_token_ids`"
SAME = {"start_token_ids": [1, 2], "end_token_ids": [1, 2]}
MINIMAL = partial(ThinkingBudgetSpec, 1, (1,), (2,))


class TestRows(RealizedKindTests):
    golden = ThinkingBudgetSpec(512, (44, 5170, 46), (27, 5170, 46), (198,))
    refused = (
        ({**FIELDS, "budget": -1}, AT_LEAST_0, "budget"),
        ({**FIELDS, "start_token_ids": []}, SOME, "start_token_ids"),
        ({**FIELDS, **SAME}, "The end tag is the same as the start tag", "end_token_ids"),
        ({**FIELDS, "message_token_ids": LONG}, TOO_LONG, "message_token_ids"),
        ({**FIELDS, "start_token_ids": [1] * 65}, TOO_LONG_TO_FIND, "start_token_ids"),
        ({**FIELDS, "end_token_ids": [2] * 65}, TOO_LONG_TO_FIND, "end_token_ids"),
        ({**FIELDS, "other_start_token_ids": [[]]}, SOME, "other_start_token_ids[0]"),
        (
            {**FIELDS, "other_end_token_ids": [[1]] * 16},
            "Expected at most 15 entries",
            "other_end_token_ids",
        ),
        ({**FIELDS, **LONG_TAGS}, TOO_LONG_IN_ALL, "other_end_token_ids"),
        ({**FIELDS, "other_start_token_ids": [[3], [1]]}, AS_START, "other_start_token_ids[1]"),
        ({**FIELDS, "other_end_token_ids": [[1]]}, AS_START, "other_end_token_ids[0]"),
        ({**FIELDS, "then_token_ids": LONG}, TOO_LONG, "then_token_ids"),
        ({**FIELDS, "grace": -1}, AT_LEAST_0, "grace"),
        ({**FIELDS, "grace": 1}, BOTH_OR_NEITHER, "grace"),
        ({**FIELDS, "newline_token_ids": [1]}, BOTH_OR_NEITHER, "newline_token_ids"),
        ({**FIELDS, "min_tokens": -1}, AT_LEAST_0, "min_tokens"),
        ({**FIELDS, "stop_token_ids": [3] * 65}, TOO_LONG_TO_FIND, "stop_token_ids"),
        (
            {**FIELDS, "stop_token_ids": [3, 2]},
            "The same as `$.end_token_ids`",
            "stop_token_ids[1]",
        ),
        ({**FIELDS, "min_tokens": 2}, "Expected at most the budget, 1, got 2", "min_tokens"),
    )
    largest = (
        ThinkingBudgetSpec(limits.MAX_INT, (1,), (2,), min_tokens=limits.MAX_INT),
        MINIMAL(grace=limits.MAX_INT, newline_token_ids=LONG[:5_000]),
        MINIMAL(other_start_token_ids=[[i] for i in range(3, 18)], other_end_token_ids=[[3] * 63]),
    )
    beyond = (
        (ThinkingBudgetSpec(1, (1, 9), (2,)), "start_token_ids[1]"),
        (ThinkingBudgetSpec(1, (1,), (9,)), "end_token_ids[0]"),
        (ThinkingBudgetSpec(1, (1,), (2,), (3, 9)), "message_token_ids[1]"),
        (MINIMAL(other_start_token_ids=((3,), (4, 9))), "other_start_token_ids[1][1]"),
        (MINIMAL(other_end_token_ids=((9,),)), "other_end_token_ids[0][0]"),
        (MINIMAL(then_token_ids=(3, 9)), "then_token_ids[1]"),
        (MINIMAL(grace=1, newline_token_ids=(9,)), "newline_token_ids[0]"),
        (MINIMAL(stop_token_ids=(0, 9)), "stop_token_ids[1]"),
    )
    histories = (
        # The model opens the block and goes on for too long.
        (SPEC, [], [None, 1, None, 2, None, 5, None, 1, None, 2, F(9), 9, F(3), 3, F(3), 3, F(4)]),
        # It ends in time, and a second block has its own budget.
        (SPEC, [], [None, 1, None, 2, None, 3, None, 3, None, 4, None, 5, None, 5, None, 5, None]),
        (BARE, [], [None, 1, None, 2, None, 1, None, 7, None, 7, F(2), 2, None, 1, None, 3, None]),
        # The prompt opens it: what is in the prompt counts, but nothing is forced there.
        (SPEC, [1, 2], [None, 5, None, 5, None, 5, F(9)]),
        (SPEC, [1, 2, 5, 5, 5, 5, 5], [F(9), 9, F(3), 3, F(3), 3, F(4), 4, None]),
        (SPEC, [1, 2, 5, 5, 5, 3, 3, 4], [None, 1, None, 2, None, 5, None]),
        # One or two tokens of the end tag are out when the budget is.
        (SPEC, [1, 2, 5], [None, 5, None, 3, F(3), 3, F(4), 4, None, 5, None]),
        (SPEC, [1, 2, 3], [None, 3, None, 3, F(4), 9, None, 1, None, 2, None]),
        (SPEC, [1, 2, 5, 5, 5, 3, 3], [F(4), 4, None]),
        # What is forced waits for its own beginning, like every chain.
        (SPEC, [1, 2, 5, 5, 5], [F(9), 6, F(9), 9, F(3), 9, F(3), 3, F(3), 9, F(4), 9, None]),
        # A token that closes the block instead of beginning the message has closed it.
        (SPEC, [1, 2, 5, 5, 5], [F(9), 6, F(9), 3, F(3), 3, F(4), 4, None, 9, None]),
        (CLOSED, [1], [F(9), 2, None, 1, F(9), 9, F(2), 2, None]),
        (
            ThinkingBudgetSpec(0, (1,), (2, 3), (2, 9)),
            [1],
            [F(2), 2, F(9), 9, F(2), 2, F(3), 3, None],
        ),
        # A start tag inside a block does not restart the count; a tag's end does not begin another.
        (BARE, [1], [None, 1, None, 1, F(2), 2, None]),
        (SPEC, [1, 1], [None, 2, None, 5, None, 5, None, 5, F(9)]),
        (SOON, [], [None, 1, F(2), 2, F(3), 3, None, 1, F(2)]),
        # Any start tag opens a block, any end tag closes it, and the first of them is forced.
        (TAGS, [], [None, 4, None, 4, None, 9, None, 9, F(2), 2, F(3), 3, None, 1, None, 5, None]),
        (TAGS, [4, 4, 6], [None, 3, F(3), 3, None, 9, None]),
        (TAGS, [4, 1, 9, 5, 4], [None, 4, None, 9, None]),
        # The tag that is half out goes on, whichever it is.
        (TAGS, [1, 6], [None, 3, F(3), 3, None]),
        (TAGS, [1, 6], [None, 2, F(3), 3, None]),
        (BOTH, [1], [None, 2, F(3), 3, F(5), 5, None]),
        # An answer is begun after the forced tag, whole or in part; its tokens open no block.
        (THEN, [1], [None, 8, F(9), 9, F(2), 2, F(3), 3, F(4), 4, F(1), 1, F(5), 5, None, 8, None]),
        (THEN, [1], [None, 2, F(3), 3, F(4), 4, F(1), 1, F(5), 5, None]),
        # There is none after the model's own tag, nor after another tag that is half out.
        (
            ThinkingBudgetSpec(2, (1,), (2, 3), then_token_ids=(5,)),
            [1],
            [None, 2, None, 3, None, 8, None],
        ),
        (THEN, [1, 2, 3], [None, 8, None]),
        (THEN, [1], [None, 6, F(7), 7, None, 8, None]),
        # No end tag is completed in the first tokens of a block, whichever it is.
        (FLOOR, [], [None, 1, ban(5), 2, ban(3, 5), 9, None, 2, None, 3, None]),
        (FLOOR, [1], [ban(5), 9, ban(5), 2, None, 3, None]),
        (FLOOR, [1], [ban(5), 9, ban(5), 9, None, 9, None, 9, F(2), 2, F(3), 3, None, 5, None]),
        (ThinkingBudgetSpec(1, (1,), (2,), min_tokens=1), [1], [ban(2), 9, F(2), 2, None]),
        # Tokens of the prompt count, but only two of them towards the budget.
        (FLOOR, [1, 9], [ban(5), 9, None, 9, None, 9, F(2)]),
        (FLOOR, [1, 9, 9, 9], [None, 9, None, 9, F(2)]),
        (FLOOR, [1, 9, 9, 2], [None, 3, None, 9, None]),
        # The model may end its line when the budget is spent.
        (GRACE, [1], [None, 6, None, 8, None, 6, F(9), 9, F(2), 2, F(3), 3, None]),
        (GRACE, [1], [None, 8, None, 8, None, 8, None, 8, F(9)]),
        (GRACE, [1, 8, 6, 8, 8], [None, 8, None, 7, F(9)]),
        (GRACE, [1], [None, 8, None, 2, None, 3, None, 6, None]),
        (GRACE, [1], [None, 8, None, 2, None, 6, F(9)]),
        (GRACE, [1], [None, 8, None, 8, None, 8, None, 2, F(3), 3, None]),
        (DOCUMENTED, [], [None, 7, None, 9, None, 9, None, 9, None, 3, F(8), 8, None]),
        # A newline may begin the end tag.
        (LINES, [1], [None, 6, F(2), 2, None]),
        (LINES, [1], [None, 7, F(9)]),
        # An end tag comes all the same, from elsewhere.
        (FLOOR, [1], [ban(5), 5, None, 9, None]),
        # No reply ends within a block.
        (STOP, [], [None, 0, None, 1, ban(0), 9, ban(0), 9, F(2), 2, None]),
        (STOP, [1], [ban(0), 2, None]),
        (
            STOP_FLOOR,
            [1],
            [ban(0, 5), 2, ban(0, 3, 5), 9, ban(0), 9, ban(0), 9, F(2), 2, F(3), 3, None],
        ),
    )


@pytest.mark.parametrize(("name", "spec"), [("short", BARE), ("all", ALL)])
def test_other_golden_files(name: str, spec: ThinkingBudgetSpec):
    """Payloads of other versions are read, and those without the new fields look as before."""
    golden = (GOLDEN / f"thinking_budget_{name}.json").read_text()
    assert encode(spec) + "\n" == golden
    assert decode(golden).specs == (spec,)


def test_edges_count():
    """A request's limits hold for what tags and newlines multiply to."""
    assert BARE.sizes() == Sizes(2)
    assert MINIMAL(other_start_token_ids=((3,), (4, 5))).sizes() == Sizes(5 + 4 * 4 * 2)
    assert GRACE.sizes() == Sizes(6 + 2 * 2 * 2)


def test_text():
    plain = ThinkingBudgetSpec.from_text(9, GREEDY)
    assert plain == ThinkingBudgetSpec(9, (THINK,), (END,))
    other = ThinkingBudgetSpec.from_text(9, GREEDY, start="5", end=" cats", message="\n")
    assert other == ThinkingBudgetSpec(9, (FIVE,), (SPACE_CAT, S), (NEWLINE,))
