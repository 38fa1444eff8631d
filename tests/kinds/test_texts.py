"""Specs from texts: what holds for several kinds."""

from collections.abc import Iterable

import pytest
from logitport import spec as s
from logitport.spec import SpecError

from tests.support.small_tokenizer import GREEDY


@pytest.mark.parametrize("words", ["cat", [""], ["  "], []])
def test_no_words(words: Iterable[str]):
    for kind in (s.AllowedTokensSpec, s.BannedTokensSpec, s.BannedSequencesSpec):
        with pytest.raises(SpecError, match="Expected"):
            kind.from_words(words, GREEDY)


def test_empty_text():
    for make in (
        lambda: s.ForcedEndSpec.from_text(1, "", GREEDY),
        lambda: s.ThinkingBudgetSpec.from_text(1, GREEDY, end=""),
        lambda: s.ChoiceSpec.from_text(["5", ""], GREEDY),
        lambda: s.TriggerSpec.from_text("", "5", GREEDY),
    ):
        with pytest.raises(SpecError, match="makes no tokens of ''"):
            make()
