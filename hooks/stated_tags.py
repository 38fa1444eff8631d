"""The thinking tags of a server's model, as its operator states them."""

from typing import Annotated, Any

import msgspec

from ..spec import THINKING_FAMILIES, SpecError, ThinkingFamily
from ..spec.limits import MAX_PATTERN, MAX_TAGS
from ..spec.suggestions import instead_of

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PATTERN)]
_Texts = Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1, max_length=MAX_TAGS)]


class StatedTags(msgspec.Struct, forbid_unknown_fields=True):
    """Thinking tags as text; see ``ThinkingFamily``."""

    start: _Text | _Texts
    end: _Text | _Texts
    then: Annotated[str, msgspec.Meta(max_length=MAX_PATTERN)] = ""


def stated_tags(value: Any) -> ThinkingFamily:
    """Make the tags of the name of a family, or of ``{"start": "[", "end": "]"}``.

    Raises:
        SpecError: if there is no such family.
        msgspec.ValidationError: for other values.
    """
    families = {family.name: family for family in THINKING_FAMILIES}
    if isinstance(value, str):
        if value in families:
            return families[value]
        raise SpecError(f"There is no family {value!r}; {instead_of(value, families)}")
    given = msgspec.convert(value, StatedTags)
    start, end = ((each,) if isinstance(each, str) else each for each in (given.start, given.end))
    return ThinkingFamily("stated", "", start, end, given.then)
