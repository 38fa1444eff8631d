"""Specs from texts: a tokenizer for the tests, and what holds for several kinds."""

from collections.abc import Iterable

import pytest
from logitport import spec as s
from logitport.spec import SpecError


class Greedy:
    """A tokenizer that takes the longest token it knows."""

    tokens = ("<eos>", " cat", "cat", " ", "5", " dog", "d", "og", "<think>", "</think>", "\n", "s")
    eos_token_id: int | None = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        ids: list[int] = []
        while text:
            token = max((t for t in self.tokens if text.startswith(t)), key=len)
            ids.append(self.tokens.index(token))
            text = text[len(token) :]
        return ids


class NoEos(Greedy):
    eos_token_id = None


GREEDY = Greedy()
SPACE_CAT, CAT, SPACE, FIVE, SPACE_DOG, D, OG, THINK, END, NEWLINE, S = range(1, 12)


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
