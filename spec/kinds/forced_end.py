"""``forced_end``: force a closing sequence at an output index."""

from ..base import Count, ForcingSpec, TokenId, TokenIds
from ..tokenization import Eos, Tokenizer, resolved_eos, text_fields, token_ids_of


class ForcedEndSpec(ForcingSpec, frozen=True, tag="forced_end"):
    """Output token ``after + i`` is ``token_ids[i]``; then EOS until the end, or free text.

    A reply that is over by then stays as it is.

    Like transformers' ``ForcedEOSTokenLogitsProcessor``, with a closing phrase before EOS. Where
    the model would have ended, wherever that is, ``at_end`` says something. NVIDIA's
    ``MaxTimeLogitsProcessor`` counts seconds, which no other worker can count again.

    Examples:
        >>> from logitport.adapters.reference import edit
        >>> spec = ForcedEndSpec(2, (5,), eos_token_id=0)
        >>> [edit(spec, (), output) for output in ((), (7,), (7, 7), (7, 7, 5))]
        [None, None, Force(token=5), Force(token=0)]

    Args:
        after: 0 to ``MAX_INT`` output tokens that come before.
        token_ids: 1 to ``MAX_TOKEN_IDS`` token ids, in order.
        eos_token_id: token to force after them, until the request ends; ``None`` forces nothing.

    Raises:
        SpecError: if a field is out of bounds.
    """

    TEXTS = text_fields(text="token_ids")

    after: Count
    token_ids: TokenIds
    eos_token_id: TokenId | None = None

    @classmethod
    def from_text(
        cls, after: int, text: str, tokenizer: Tokenizer, *, eos_token_id: Eos = "tokenizer"
    ) -> "ForcedEndSpec":
        """Force ``text``, tokenized without special tokens.

        Args:
            after: 0 to ``MAX_INT`` output tokens that come before.
            text: what to say at the end, with a leading space where one belongs.
            tokenizer: any Hugging Face tokenizer, that of the model.
            eos_token_id: token to force after the text; the tokenizer's own by default,
                ``None`` to let the model go on.

        Raises:
            SpecError: if the text makes no tokens, or the tokenizer has no EOS token.
        """
        return cls(after, token_ids_of(text, tokenizer), resolved_eos(eos_token_id, tokenizer))
