"""``banned_tokens``: ban some tokens."""

from collections.abc import Iterable

from ..base import LogitsProcessorSpec, TokenIds
from ..tokenization import LeadingSpace, Tokenizer, one_token_words, text_fields


class BannedTokensSpec(LogitsProcessorSpec, frozen=True, tag="banned_tokens"):
    """No output token is one of ``token_ids``.

    They are never chosen, at any step, unless nothing else is left.

    Like SGLang's ``DisallowedTokensLogitsProcessor`` and transformers'
    ``SuppressTokensLogitsProcessor``.

    Examples:
        >>> from logitport.adapters.reference import edit
        >>> edit(BannedTokensSpec((4, 5)), (), ())
        Add(values={4: -1000000000.0, 5: -1000000000.0})

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
    ) -> "BannedTokensSpec":
        """Ban words that are one token each.

        Other words that hold the text can still be made of other tokens.

        Args:
            words: what must not be said.
            tokenizer: any Hugging Face tokenizer, that of the model.
            leading_space: ban ``" word"``, ``"word"``, or both.

        Raises:
            SpecError: if a form of a word is not one token; ``BannedSequencesSpec`` takes those.
        """
        forms = one_token_words(
            words, tokenizer, leading_space, advice="ban it with BannedSequencesSpec.from_words"
        )
        return cls(tuple(dict.fromkeys(token_id for _, token_id in forms)))
