"""A tokenizer for the tests that has twelve tokens."""

from collections.abc import Sequence


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

    def get_vocab(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(self.tokens[i] for i in token_ids)


class NoEos(Greedy):
    eos_token_id = None


GREEDY = Greedy()

SPACE_CAT, CAT, SPACE, FIVE, SPACE_DOG, D, OG, THINK, END, NEWLINE, S = range(1, 12)
