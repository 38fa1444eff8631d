from logitport.spec import ThinkingBudgetSpec, limits

from .test_every_kind import LIKED, LONG, SOME, TOO_LONG, TOO_LONG_TO_FIND, F, RealizedKindTests
from .test_texts import END, FIVE, GREEDY, NEWLINE, SPACE_CAT, THINK, S

SPEC = ThinkingBudgetSpec(3, (1, 2), (3, 3, 4), (9,))
BARE = ThinkingBudgetSpec(2, (1,), (2,))
SOON = ThinkingBudgetSpec(0, (1,), (2, 3))
CLOSED = ThinkingBudgetSpec(0, (1,), (2,), (9,))
OPEN = ThinkingBudgetSpec(2, (7,), (8,))
SPENT = ThinkingBudgetSpec(0, (7,), (8,), (3, 4))
HALF = ThinkingBudgetSpec(3, (1,), (7, 8, 9), (5,))
FIELDS = {"budget": 1, "start_token_ids": [1], "end_token_ids": [2]}
SAME = {"start_token_ids": [1, 2], "end_token_ids": [1, 2]}


class TestRows(RealizedKindTests):
    golden = ThinkingBudgetSpec(512, (44, 5170, 46), (27, 5170, 46), (198,))
    refused = (
        ({**FIELDS, "budget": -1}, "Expected `int` >= 0", "budget"),
        ({**FIELDS, "start_token_ids": []}, SOME, "start_token_ids"),
        ({**FIELDS, **SAME}, "The end tag is the same as the start tag", "end_token_ids"),
        ({**FIELDS, "message_token_ids": LONG}, TOO_LONG, "message_token_ids"),
        ({**FIELDS, "start_token_ids": [1] * 65}, TOO_LONG_TO_FIND, "start_token_ids"),
        ({**FIELDS, "end_token_ids": [2] * 65}, TOO_LONG_TO_FIND, "end_token_ids"),
    )
    largest = (ThinkingBudgetSpec(limits.MAX_COUNT, (1,), (2,)),)
    beyond = (
        (ThinkingBudgetSpec(1, (1, 9), (2,)), "start_token_ids[1]"),
        (ThinkingBudgetSpec(1, (1,), (9,)), "end_token_ids[0]"),
        (ThinkingBudgetSpec(1, (1,), (2,), (3, 9)), "message_token_ids[1]"),
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
    )
    handed_over = (
        (OPEN, [], 7, [LIKED, LIKED, 8, LIKED]),  # it opens a block
        (OPEN, [7], 9, [LIKED, 8, LIKED]),  # it is the first thought of a block that is open
        (OPEN, [7], 8, [LIKED, LIKED, LIKED]),  # it closes it
        (SPENT, [7], 8, [LIKED, LIKED, LIKED]),  # also where the message was due
        (SPENT, [7], 3, [4, 8, LIKED]),  # it begins the message
        (SPENT, [7], 9, [3, 4, 8]),
    )
    outputs = (
        # A tag that is half out when the budget is spent, and cut off by max_tokens.
        (HALF, [], [1, 2, 2, 7, 8], True),
        (HALF, [], [1, 2, 2, 7, 8, 9, 4], True),
        (HALF, [], [1, 2, 2, 7, 5], False),
        (HALF, [], [1, 2, 2, 2, 5, 7], True),
        (HALF, [], [1, 2, 2, 2, 2], False),
        # A block that the first token closes.
        (CLOSED, [1], [2, 4, 4], False),
        (CLOSED, [1], [9, 2, 4], True),
        (CLOSED, [1], [4, 2, 4], False),
        (CLOSED, [4], [1, 2, 4], False),
    )


def test_text():
    plain = ThinkingBudgetSpec.from_text(9, GREEDY)
    assert plain == ThinkingBudgetSpec(9, (THINK,), (END,))
    other = ThinkingBudgetSpec.from_text(9, GREEDY, start="5", end=" cats", message="\n")
    assert other == ThinkingBudgetSpec(9, (FIVE,), (SPACE_CAT, S), (NEWLINE,))
