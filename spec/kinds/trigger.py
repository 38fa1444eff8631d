"""``trigger``: force a phrase after a trigger."""

from typing import Annotated

import msgspec

from ..base import LogitsProcessorSpec, Sizes, TokenIds, check_pattern
from ..limits import MAX_TIMES
from ..tokenization import Tokenizer, text_fields, token_ids_of

_Times = Annotated[int, msgspec.Meta(ge=1, le=MAX_TIMES)]


class TriggerSpec(LogitsProcessorSpec, frozen=True, tag="trigger"):
    """When the output ends with the trigger, the phrase follows.

    Only output tokens are matched. The phrase's own tokens never count towards the trigger, so a
    phrase that contains it does not set itself off.

    Like the ``TriggerPhraseLogitsProcessor`` of NVIDIA's logits-processor-zoo, whose trigger is
    one token, or a time.

    Examples:
        >>> from logitport.adapters.reference import edit
        >>> spec = TriggerSpec((4,), (5, 6))
        >>> [edit(spec, (), output) for output in ((), (4,), (4, 5), (4, 5, 6))]
        [None, Force(token=5), Force(token=6), None]

    Args:
        trigger_token_ids: 1 to ``MAX_PATTERN`` token ids that the model produces by itself.
        token_ids: the phrase to force after them, 1 to ``MAX_TOKEN_IDS`` token ids.
        times: how often, 1 to ``MAX_TIMES``; ``None`` for always.

    Raises:
        SpecError: if a field is out of bounds.
    """

    TEXTS = text_fields(trigger_text="trigger_token_ids", text="token_ids")

    trigger_token_ids: TokenIds
    token_ids: TokenIds
    times: _Times | None = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pattern(self.trigger_token_ids, "trigger_token_ids")

    @classmethod
    def from_text(
        cls, trigger_text: str, text: str, tokenizer: Tokenizer, *, times: int | None = 1
    ) -> "TriggerSpec":
        """Trigger and phrase as text, tokenized without special tokens.

        The trigger is matched in the tokens that the tokenizer makes of it, with a leading space
        only if it has one here.

        Args:
            trigger_text: what the model has to say.
            text: what follows.
            tokenizer: any Hugging Face tokenizer, that of the model.
            times: how often, 1 to ``MAX_TIMES``; ``None`` for always.

        Raises:
            SpecError: if a text makes no tokens.
        """
        return cls(token_ids_of(trigger_text, tokenizer), token_ids_of(text, tokenizer), times)

    def sizes(self) -> Sizes:
        return Sizes(3 * len(self.trigger_token_ids) + len(self.token_ids))

    @property
    def can_complete(self) -> bool:
        return self.times is not None

    @property
    def breaks_grammar(self) -> bool:
        return True
