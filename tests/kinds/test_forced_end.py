import pytest
from logitport.spec import ForcedEndSpec, SpecError, limits

from tests.support.kinds import AT_LEAST_0, SOME, TOO_LARGE, F, RealizedKindTests
from tests.support.small_tokenizer import FIVE, GREEDY, SPACE_CAT, NoEos, S

END = ForcedEndSpec(2, (1, 2), eos_token_id=0)


class TestRows(RealizedKindTests):
    golden = ForcedEndSpec(100, (30, 2683), eos_token_id=2)
    refused = (
        ({"after": -1, "token_ids": [1]}, AT_LEAST_0, "after"),
        ({"after": 2**31, "token_ids": [1]}, TOO_LARGE, "after"),
        ({"after": 1, "token_ids": []}, SOME, "token_ids"),
    )
    largest = (ForcedEndSpec(limits.MAX_INT, (1,)),)
    beyond = (
        (ForcedEndSpec(1, (1, 9)), "token_ids[1]"),
        (ForcedEndSpec(1, (1,), 9), "eos_token_id"),
    )
    histories = (
        (END, [], [None, 1, None, 2, F(1), 1, F(2), 2, F(0), 5, F(0)]),
        (END, [], [None, 1, None, 1, F(1), 2, F(1), 1, F(2), 1, F(0)]),
        (ForcedEndSpec(0, (1,)), [], [F(1), 1, None]),
    )


def test_text():
    assert ForcedEndSpec.from_text(3, " cats", GREEDY) == ForcedEndSpec(3, (SPACE_CAT, S), 0)
    free = ForcedEndSpec.from_text(3, "5", NoEos(), eos_token_id=None)
    assert free == ForcedEndSpec(3, (FIVE,))
    assert ForcedEndSpec.from_text(0, "5", NoEos(), eos_token_id=7).eos_token_id == 7
    with pytest.raises(SpecError, match="has no EOS token"):
        ForcedEndSpec.from_text(3, "5", NoEos())
