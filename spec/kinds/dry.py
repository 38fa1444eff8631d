"""``dry``: make the continuation of a repetition less likely, the more the longer it is."""

from typing import Annotated

import msgspec

from ..base import LogitsProcessorSpec, MaybeTokenIds, PositiveCount
from ..limits import MAX_BIAS

MAX_MATCH = 64
"""The most tokens of a repetition that are compared; a longer repetition counts as this long."""

MAX_MATCHES = 32
"""The most earlier occurrences of the newest tokens that count: the last ones."""

_Multiplier = Annotated[float, msgspec.Meta(gt=0, le=MAX_BIAS)]
_Base = Annotated[float, msgspec.Meta(ge=1, le=MAX_BIAS)]
_Length = Annotated[int, msgspec.Meta(ge=1, le=MAX_MATCH)]


class DrySpec(LogitsProcessorSpec, frozen=True, tag="dry"):
    """A token that would continue a repetition of at least ``allowed_length`` tokens is penalized.

    The newest tokens of prompt and output may have occurred before. For each earlier occurrence,
    the length of the match is the number of tokens that agree, back to the last breaker. If the
    length is ``allowed_length`` or more, ``multiplier * base ** (length - allowed_length)`` is
    subtracted from the logit of the token that followed there. Of several occurrences with the
    same following token, the longest match counts. Breakers are never penalized.

    The kind is like DRY ("don't repeat yourself") of llama.cpp and text-generation-webui. A match
    of more than ``MAX_MATCH`` tokens counts as one of ``MAX_MATCH``, no penalty is above
    ``MAX_BIAS``, and of the earlier occurrences of the newest ``allowed_length`` tokens the last
    ``MAX_MATCHES`` count.

    Examples:
        >>> from logitport.adapters.reference import edit
        >>> edit(DrySpec(1.0, base=2.0), (4, 5, 6, 7), (4, 5, 6))
        Add(values={7: -2.0})

    Args:
        multiplier: above 0, up to ``MAX_BIAS``: the penalty of a match of ``allowed_length``.
        base: 1 to ``MAX_BIAS``: the factor for each further token.
        allowed_length: 1 to ``MAX_MATCH`` tokens: the length of the shortest match that counts.
        range: the number of tokens to look back, up to ``MAX_INT``; ``None`` for all of prompt
            and output.
        breaker_token_ids: up to ``MAX_TOKEN_IDS`` token ids that no match contains: line breaks
            and quotes, say, or the special tokens of a chat template.

    Raises:
        SpecError: if a field is out of bounds.
    """

    multiplier: _Multiplier
    base: _Base = 1.75
    allowed_length: _Length = 2
    range: PositiveCount | None = None
    breaker_token_ids: MaybeTokenIds = ()
