"""``choice``: restrict the output to one of several sequences."""

from collections.abc import Iterable
from itertools import chain
from typing import Annotated, Literal

import msgspec

from ..base import LogitsProcessorSpec, Sizes, TokenId, TokenIds, check_different, check_total
from ..claims import Claims, Forces, TokenFields
from ..errors import SpecError
from ..limits import MAX_SEQUENCES, MAX_TOKEN_IDS
from ..tokenization import Tokenizer, eos_token_id_of, token_ids_of

_Choices = Annotated[
    tuple[TokenIds, ...], msgspec.Meta(min_length=1, max_length=MAX_SEQUENCES // 2)
]


class ChoiceSpec(LogitsProcessorSpec, frozen=True, tag="choice"):
    """The output is one of ``choices``, then EOS for ever.

    At each step, only the tokens are allowed that go on with a choice which the output has begun;
    among them the model chooses. A choice may be the beginning of another: EOS decides.

    Like the ``choice`` of vLLM's structured outputs, without a grammar. The
    ``MultipleChoiceLogitsProcessor`` of NVIDIA's logits-processor-zoo takes choices of one token.

    Args:
        choices: 1 to half of ``MAX_SEQUENCES`` different non-empty sequences of token ids, with
            half of ``MAX_TOKEN_IDS`` token ids in all.
        eos_token_id: token to force after a choice, for ever.

    Raises:
        SpecError: if a field is out of bounds, or two choices are equal.
    """

    choices: _Choices
    eos_token_id: TokenId

    def __post_init__(self) -> None:
        super().__post_init__()
        check_total(sum(map(len, self.choices)), MAX_TOKEN_IDS // 2, "token ids", "$.choices")
        check_different(self.choices, "$.choices")

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

    def token_fields(self) -> TokenFields:
        for i, choice in enumerate(self.choices):
            yield f"$.choices[{i}][*]", choice
        yield "$.eos_token_id", (self.eos_token_id,)

    def sizes(self) -> Sizes:
        return Sizes(2 * sum(map(len, self.choices)), 2 * len(self.choices))

    def check_vocabulary(self, vocab_size: int) -> None:
        if max(self.eos_token_id, max(chain.from_iterable(self.choices))) >= vocab_size:
            super().check_vocabulary(vocab_size)

    def claims(self) -> Claims:
        yield Forces("$.choices[{choice}]", self.choices, 0, self.eos_token_id)
        yield Forces("$.eos_token_id", ((self.eos_token_id,),), in_reply=False)
