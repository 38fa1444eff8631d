"""``allowed_tokens``: allow only some tokens."""

from collections.abc import Iterable

from ..base import LogitsProcessorSpec, TokenIds
from ..tokenization import LeadingSpace, Tokenizer, text_fields, word_forms


class AllowedTokensSpec(LogitsProcessorSpec, frozen=True, tag="allowed_tokens"):
    """Every output token is one of ``token_ids``.

    No other is ever chosen. EOS is a token like any other: leave it out, and the reply goes on
    until it is cut off. Several specs of this kind on a request allow what all of them do.

    Like vLLM's ``allowed_token_ids``, and transformers' ``PrefixConstrainedLogitsProcessor`` with
    the same list at every step.

    Examples:
        >>> from logitport.adapters.reference import edit
        >>> edit(AllowedTokensSpec((4, 5)), (), (4,))
        Allow(tokens=frozenset({4, 5}))

    Args:
        token_ids: 1 to ``MAX_TOKEN_IDS`` token ids; order and repetition mean nothing.

    Raises:
        SpecError: if a field is out of bounds.
    """

    TEXTS = text_fields(tokens="token_ids")

    token_ids: TokenIds

    @classmethod
    def from_words(
        cls, words: Iterable[str], tokenizer: Tokenizer, *, leading_space: LeadingSpace = "both"
    ) -> "AllowedTokensSpec":
        """Allow the tokens that the words are made of, in any order.

        For whole words and nothing else, see ``ChoiceSpec``. EOS is not among the tokens.

        Args:
            words: what may be said.
            tokenizer: any Hugging Face tokenizer, that of the model.
            leading_space: allow ``" word"``, ``"word"``, or both.

        Raises:
            SpecError: if a word makes no tokens.
        """
        forms = word_forms(words, tokenizer, leading_space)
        return cls(tuple(dict.fromkeys(token for _, token_ids in forms for token in token_ids)))

    @property
    def narrows(self) -> bool:
        return True
