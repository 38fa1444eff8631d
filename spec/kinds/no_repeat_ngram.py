"""``no_repeat_ngram``: do not repeat an n-gram."""

from typing import Annotated

import msgspec

from ..base import LogitsProcessorSpec, MaybeTokenIds, PositiveCount, schema_default
from ..errors import SpecError
from ..limits import MAX_PATTERN

_Ngram = Annotated[int, msgspec.Meta(ge=1, le=MAX_PATTERN)]


class NoRepeatNgramSpec(
    LogitsProcessorSpec, frozen=True, omit_defaults=True, tag="no_repeat_ngram"
):
    """No token completes an n-gram that the window already holds.

    The window is the last ``window`` tokens of prompt and output together, or of the output alone,
    before the token that is about to be chosen. Each n-gram in it that begins with the last
    ``n - 1`` tokens has its last token banned.

    The kind is like SGLang's ``DeepseekOCRNoRepeatNGramLogitProcessor``. Without a window, it is
    like transformers' ``NoRepeatNGramLogitsProcessor``.

    Examples:
        >>> from logitport.adapters.reference import edit
        >>> edit(NoRepeatNgramSpec(2), (4, 5), (6, 4))
        Add(values={5: -1000000000.0})

    Args:
        n: length of an n-gram, 1 to ``MAX_PATTERN`` tokens; 1 bans every token of the window.
        window: ``n`` to ``MAX_INT`` tokens; ``None`` for all of prompt and output.
        allowed_token_ids: up to ``MAX_TOKEN_IDS`` token ids that may repeat: digits, say, or the
            tags of a table.
        output_only: whether the window is of the output alone: neither the prompt's n-grams nor
            n-grams that begin in the prompt count.

    Raises:
        SpecError: if a field is out of bounds.
    """

    n: _Ngram
    window: Annotated[PositiveCount | None, schema_default(None)] = msgspec.field(
        default_factory=lambda: None
    )
    allowed_token_ids: Annotated[MaybeTokenIds, schema_default(())] = msgspec.field(
        default_factory=lambda: ()
    )
    output_only: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is not None and self.window < self.n:
            raise SpecError(
                f"Expected a window of at least n={self.n} tokens, got {self.window}", "window"
            )
