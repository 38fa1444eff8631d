"""``forced_sequence``: force the output to begin with these tokens."""

from ..base import ForcingSpec, TokenId, TokenIds
from ..tokenization import Eos, Tokenizer, resolved_eos, text_fields, token_ids_of


class ForcedTokenSequenceSpec(ForcingSpec, frozen=True, tag="forced_sequence"):
    """Output token ``i`` is ``token_ids[i]``; then EOS until the request ends, or free text.

    The position is that of the output tokens themselves, so chunked prefill, preemption and
    resumption change nothing. A first token that a prefill worker chose and handed over does
    not count, unless it happens to be the first of ``token_ids``.

    The same as Dynamo's ``ForcedTokenSequenceSpec`` (``dynamo/common/backend/engine.py``), which
    always ends in EOS.

    Examples:
        >>> from logitport.adapters.reference import edit
        >>> spec = ForcedTokenSequenceSpec((4, 5), eos_token_id=0)
        >>> [edit(spec, (), output) for output in ((), (4,), (4, 5))]
        [Force(token=4), Force(token=5), Force(token=0)]

    Args:
        token_ids: 1 to ``MAX_TOKEN_IDS`` token ids, in order.
        eos_token_id: token to force after them, until the request ends; ``None`` forces nothing.

    Raises:
        SpecError: if a field is out of bounds.
    """

    TEXTS = text_fields(text="token_ids")

    token_ids: TokenIds
    eos_token_id: TokenId | None = None

    @classmethod
    def from_text(
        cls, text: str, tokenizer: Tokenizer, *, eos_token_id: Eos = "tokenizer"
    ) -> "ForcedTokenSequenceSpec":
        """Force ``text``, tokenized without special tokens.

        Args:
            text: what to say.
            tokenizer: any Hugging Face tokenizer, that of the model.
            eos_token_id: token to force after the text; the tokenizer's own by default,
                ``None`` to let the model go on.

        Raises:
            SpecError: if the text makes no tokens, or the tokenizer has no EOS token.
        """
        return cls(token_ids_of(text, tokenizer), resolved_eos(eos_token_id, tokenizer))
