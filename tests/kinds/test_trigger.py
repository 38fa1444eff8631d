from logitport.spec import TriggerSpec, limits

from tests.support.kinds import AT_LEAST_1, SOME, TOO_LONG_TO_FIND, F, RealizedKindTests
from tests.support.small_tokenizer import CAT, END, GREEDY, NEWLINE

ONCE = TriggerSpec((1, 1, 2), (7, 8))
TWICE = TriggerSpec((1,), (1, 1), times=2)
ALWAYS = TriggerSpec((1,), (2,), times=None)
FIELDS = {"trigger_token_ids": [1], "token_ids": [1]}
MOST = limits.MAX_TIMES


class TestRows(RealizedKindTests):
    golden = TriggerSpec((30, 198), (12, 216), times=3)
    refused = (
        ({**FIELDS, "trigger_token_ids": []}, SOME, "trigger_token_ids"),
        ({**FIELDS, "times": 0}, AT_LEAST_1, "times"),
        ({**FIELDS, "times": MOST + 1}, f"Expected `int` <= {MOST}", "times"),
        ({**FIELDS, "trigger_token_ids": [1] * 65}, TOO_LONG_TO_FIND, "trigger_token_ids"),
    )
    largest = (
        TriggerSpec((1,) * 4, (1,) * 28, MOST),
        TriggerSpec(
            (1,) * limits.MAX_PATTERN, (1,) * (limits.MAX_TOKEN_IDS - 3 * limits.MAX_PATTERN), None
        ),
    )
    beyond = (
        (TriggerSpec((9,), (1,)), "trigger_token_ids[0]"),
        (TriggerSpec((1,), (1, 9)), "token_ids[1]"),
    )
    histories = (
        (
            ONCE,
            [1, 1],
            [None, 2, None, 1, None, 1, None, 1, None, 2, F(7), 7, F(8), 8, None, 1, None],
        ),
        (ONCE, [], [None, 1, None, 1, None, 2, F(7), 1, F(7), 7, F(8), 1, None, 1, None, 2, None]),
        (TWICE, [], [None, 1, F(1), 1, F(1), 1, None, 1, F(1), 1, F(1), 1, None, 1, None]),
        (ALWAYS, [], [None, 1, F(2), 2, None, 1, F(2), 1, F(2), 2, None]),
    )


def test_text():
    spec = TriggerSpec.from_text("</think>", "\ncat", GREEDY, times=None)
    assert spec == TriggerSpec((END,), (NEWLINE, CAT), None)
    assert TriggerSpec.from_text("5", "5", GREEDY).times == 1
