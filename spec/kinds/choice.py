"""``choice``: restrict the output to one of several sequences."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated

import msgspec

from ..base import (
    ForcingSpec,
    Sizes,
    TokenFields,
    TokenId,
    TokenIds,
    check_different,
    check_total,
)
from ..errors import SpecError
from ..limits import MAX_TOKEN_IDS
from ..tokenization import Eos, Tokenizer, resolved_eos, text_fields, token_ids_of

_Choices = Annotated[
    tuple[TokenIds, ...], msgspec.Meta(min_length=1, max_length=MAX_TOKEN_IDS // 2)
]


class ChoiceSpec(ForcingSpec, frozen=True, tag="choice"):
    """The output is one of ``choices``; then EOS until the request ends, or free text.

    At each step, only the tokens are allowed that go on with a choice which the output has begun;
    among them the model chooses. A choice may be the beginning of another: EOS decides. Without
    ``eos_token_id``, no choice may be the beginning of another.

    Like the ``choice`` of vLLM's structured outputs, without a grammar. The
    ``MultipleChoiceLogitsProcessor`` of NVIDIA's logits-processor-zoo takes choices of one token.

    Examples:
        >>> from logitport.adapters.reference import edit
        >>> spec = ChoiceSpec(((1,), (2, 3)), eos_token_id=0)
        >>> [edit(spec, (), output) for output in ((), (2,), (2, 3))]
        [Allow(tokens=frozenset({1, 2})), Force(token=3), Force(token=0)]

    Args:
        choices: different non-empty sequences of token ids, with
            half of ``MAX_TOKEN_IDS`` token ids in all.
        eos_token_id: token to force after it, until the request ends; ``None`` forces nothing.

    Raises:
        SpecError: if a field is out of bounds, two choices are equal, or one begins another and
            there is no EOS to tell them apart.
    """

    TEXTS = text_fields(texts="choices")

    choices: _Choices
    eos_token_id: TokenId | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_total(sum(map(len, self.choices)), MAX_TOKEN_IDS // 2, "token ids", "choices")
        check_different(self.choices, "choices")
        if self.eos_token_id is None:
            _check_no_beginnings(self.choices)

    @classmethod
    def from_text(
        cls,
        texts: Iterable[str],
        tokenizer: Tokenizer,
        *,
        eos_token_id: Eos = "tokenizer",
    ) -> "ChoiceSpec":
        """Choose from texts, each tokenized as it stands, without special tokens.

        Args:
            texts: what may be said, with a leading space where one belongs.
            tokenizer: any Hugging Face tokenizer, that of the model.
            eos_token_id: token to force after a choice; the tokenizer's own by default,
                ``None`` to let the model go on.

        Raises:
            SpecError: if a text makes no tokens, two make the same, or the tokenizer has no EOS
                token.
        """
        if isinstance(texts, str):
            raise SpecError(f"Expected several choices, got the text {texts!r}")
        eos = resolved_eos(eos_token_id, tokenizer)
        return cls(tuple(token_ids_of(text, tokenizer) for text in texts), eos)

    def token_fields(self) -> TokenFields:
        for i, choice in enumerate(self.choices):
            yield ("choices", i, "*"), choice
        yield from super().token_fields()

    def sizes(self) -> Sizes:
        return Sizes(2 * sum(map(len, self.choices)))


def _check_no_beginnings(choices: Sequence[tuple[int, ...]]) -> None:
    """Refuse a choice that is the beginning of another. In order, such two are neighbours."""
    for first, second in pairwise(sorted(choices)):
        if second[: len(first)] == first:
            what = "Expected an eos_token_id, or no choice that "
            other = "choices", choices.index(second)
            raise SpecError((what, other, " begins with"), "choices", choices.index(first))
