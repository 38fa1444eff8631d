"""``min_tokens``: ban stop tokens before a minimum length."""

from ..base import LogitsProcessorSpec, PositiveCount, TokenIds
from ..tokenization import Tokenizer, eos_token_id_of, text_fields


class MinTokensSpec(LogitsProcessorSpec, frozen=True, tag="min_tokens"):
    """None of ``stop_token_ids`` is chosen until the output has ``n`` tokens.

    They are banned for output tokens 0 to ``n - 1``. Stop texts, which engines look for in the
    decoded text, are not held back.

    Like vLLM's ``min_tokens`` and transformers' ``MinNewTokensLengthLogitsProcessor``, which take
    the stop tokens from the model.

    Examples:
        >>> from logitport.adapters.reference import edit
        >>> spec = MinTokensSpec(1, stop_token_ids=(0,))
        >>> [edit(spec, (), output) for output in ((), (7,))]
        [Add(values={0: -1000000000.0}), None]

    Args:
        n: 1 to ``MAX_INT`` output tokens.
        stop_token_ids: 1 to ``MAX_TOKEN_IDS`` token ids that would end the reply.

    Raises:
        SpecError: if a field is out of bounds.
    """

    TEXTS = text_fields(stop_tokens="stop_token_ids")

    n: PositiveCount
    stop_token_ids: TokenIds

    @classmethod
    def from_tokenizer(cls, n: int, tokenizer: Tokenizer) -> "MinTokensSpec":
        """Hold back the tokenizer's EOS token.

        A model may have more stop tokens than that one (``generation_config.json``).

        Args:
            n: 1 to ``MAX_INT`` output tokens.
            tokenizer: any Hugging Face tokenizer, that of the model.

        Raises:
            SpecError: if the tokenizer has no EOS token.
        """
        return cls(n, (eos_token_id_of(tokenizer, advice="construct it with stop_token_ids"),))
