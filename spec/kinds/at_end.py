"""``at_end``: say something where the reply would end."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from ..base import LogitsProcessorSpec, TokenIds, check_different, check_pattern
from ..errors import SpecError
from ..tokenization import Tokenizer, eos_token_id_of, text_fields, token_ids_of

_Temperature = Annotated[float, msgspec.Meta(ge=0, le=100)]


class AtEndSpec(LogitsProcessorSpec, frozen=True, omit_defaults=True, tag="at_end"):
    """Where the reply would end, ``token_ids`` come first: a footer, a source, an answer's label.

    The first token gets the probability of ``stop_token_ids``, and these have none. When it comes,
    the other tokens are forced, and then the first of ``stop_token_ids``. So replies are as long,
    and say the same, as without the spec. Where another spec forces or lists an end, the text comes
    in its place, and nothing that others force comes between its tokens.

    Until then, the first token has no use of its own. Choose one that replies do not contain: a
    blank line may be in any of them.

    The end tokens that a spec does not name, stop texts and ``max_tokens`` end a reply without the
    text.

    The ``ForceLastPhraseLogitsProcessor`` of NVIDIA's logits-processor-zoo begins where EOS is the
    likeliest token, so that sampled replies end elsewhere.

    Examples:
        >>> from logitport.adapters.reference import edit
        >>> spec = AtEndSpec((5, 6), stop_token_ids=(0,))
        >>> [edit(spec, (), output) for output in ((7,), (7, 5), (7, 5, 6))]
        [Move(first=5, ends=(0,), temperature=1.0), Force(token=6), Force(token=0)]

    Args:
        token_ids: 1 to ``MAX_TOKEN_IDS`` token ids, none of them in ``stop_token_ids``.
        stop_token_ids: all 1 to ``MAX_PATTERN`` different tokens that end the model's replies.
        temperature: the request's temperature, 0 to 100, by which the probabilities of several end
            tokens add up. With one end token, any temperature is exact, and this is not used.

    Raises:
        SpecError: if a field is out of bounds, or the text has an end token.
    """

    TEXTS = text_fields(text="token_ids", stop_tokens="stop_token_ids")

    token_ids: TokenIds
    stop_token_ids: TokenIds
    temperature: _Temperature = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pattern(self.stop_token_ids, "stop_token_ids")
        check_different(self.stop_token_ids, "stop_token_ids")
        for i, token in enumerate(self.token_ids):
            if token in self.stop_token_ids:
                what = f"Token {token} ends the reply: the text would stop there"
                raise SpecError(what, "token_ids", i)

    @classmethod
    def from_text(
        cls,
        text: str,
        tokenizer: Tokenizer,
        *,
        stop_token_ids: Sequence[int] = (),
        temperature: float = 1.0,
    ) -> "AtEndSpec":
        """Say ``text``, tokenized without special tokens.

        Args:
            text: what to say, with a leading space where one belongs.
            tokenizer: any Hugging Face tokenizer, that of the model.
            stop_token_ids: the tokens that end the model's replies; by default, the tokenizer's EOS
                token. A model may have more (``generation_config.json``).
            temperature: the request's, if there are several end tokens.

        Raises:
            SpecError: if the text makes no tokens, or the tokenizer has no EOS token; if the first
                token is white space, which could then come nowhere else in the reply.
        """
        advice = "pass stop_token_ids"
        ends = tuple(stop_token_ids) or (eos_token_id_of(tokenizer, advice=advice),)
        return cls(token_ids_of(text, tokenizer, takes_first=True), ends, temperature)

    @property
    def breaks_grammar(self) -> bool:
        return True
