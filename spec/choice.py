"""``choice``: one of these, and nothing else."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal

from .base import LogitsProcessorSpec, Sizes, TokenId, TokenSequences, check_total
from .errors import SpecError
from .limits import MAX_SEQUENCE_TOKEN_IDS
from .text import Tokenizer, eos_token_id_of, token_ids_of


class ChoiceSpec(LogitsProcessorSpec, frozen=True, tag="choice"):
    """The output is one of ``choices``, then EOS for ever.

    At each step, only the tokens are allowed that go on with a choice which the output has begun;
    among them the model chooses. A choice may be the beginning of another: EOS decides.

    Like the ``choice`` of vLLM's structured outputs, without a grammar. The
    ``MultipleChoiceLogitsProcessor`` of NVIDIA's logits-processor-zoo takes choices of one token.

    Args:
        choices: 1 to ``MAX_SEQUENCES`` different non-empty sequences of token ids, with
            ``MAX_SEQUENCE_TOKEN_IDS`` token ids in all.
        eos_token_id: token to force after a choice, for ever.

    Raises:
        SpecError: if a field is out of bounds, or two choices are equal.
    """

    choices: TokenSequences
    eos_token_id: TokenId

    def __post_init__(self) -> None:
        super().__post_init__()
        in_all = self.sizes().token_ids_in_sequences
        check_total(in_all, MAX_SEQUENCE_TOKEN_IDS, "token ids", "$.choices")
        first_of: dict[Sequence[int], int] = {}
        for i, choice in enumerate(self.choices):
            if (first := first_of.setdefault(choice, i)) != i:
                raise SpecError(f"The same as `$.choices[{first}]`", f"$.choices[{i}]")

    @classmethod
    def from_text(
        cls,
        choices: Iterable[str],
        tokenizer: Tokenizer,
        *,
        eos_token_id: int | Literal["tokenizer"] = "tokenizer",
    ) -> "ChoiceSpec":
        """Choose from texts, each tokenized as it stands, without special tokens.

        Args:
            choices: what may be said, with a leading space where one belongs.
            tokenizer: any Hugging Face tokenizer, that of the model.
            eos_token_id: token to force after a choice; the tokenizer's own by default.

        Raises:
            SpecError: if a choice makes no tokens, two make the same, or the tokenizer has no EOS
                token.
        """
        if isinstance(choices, str):
            raise SpecError(f"Expected several choices, got the text {choices!r}")
        eos = eos_token_id
        if eos == "tokenizer":
            eos = eos_token_id_of(tokenizer, advice="pass eos_token_id")
        return cls(tuple(token_ids_of(choice, tokenizer) for choice in choices), eos)

    def token_fields(self) -> Iterator[tuple[str, Sequence[int]]]:
        for i, choice in enumerate(self.choices):
            yield f"$.choices[{i}][*]", choice
        yield "$.eos_token_id", (self.eos_token_id,)

    def sizes(self) -> Sizes:
        token_ids = sum(map(len, self.choices))
        return Sizes(token_ids, len(self.choices), token_ids)

    def check_vocabulary(self, vocab_size: int) -> None:
        if max(self.eos_token_id, *chain.from_iterable(self.choices)) >= vocab_size:
            super().check_vocabulary(vocab_size)
