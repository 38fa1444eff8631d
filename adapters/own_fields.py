"""A request's own fields beside its specs: what cannot both be obeyed is refused.

Engines have fields that ban, allow or delay tokens by themselves (``min_tokens``, ``bad_words``,
``allowed_token_ids``, ...). An adapter gives each as the spec that means the same, and the rules
that hold among specs hold between the two.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..spec import LogitsProcessorSpec, SpecError
from ..spec.conflicts import check_conflicts

OwnFields = Mapping[str, LogitsProcessorSpec]
"""The spec that means the same as a field, by the field's name."""


def check_own_fields(specs: Sequence[LogitsProcessorSpec], own_fields: OwnFields) -> None:
    """Check that specs and a request's own fields can both be obeyed.

    Each field is held to the specs by itself: what two fields say against each other is the
    engine's to refuse.

    Args:
        specs: of the request.
        own_fields: the request's.

    Raises:
        SpecError: for a contradiction that is certain. Message and path name the spec and the
            field.
    """
    for name, spec in own_fields.items():
        try:
            check_conflicts((*specs, spec))
        except SpecError as error:
            field = rf"\$\.specs\[{len(specs)}\]"
            message = re.sub(f"`{field}`", f"the request's `{name}`", error.message)
            raise SpecError(message, re.sub(f"{field}.*", name, error.path)) from None


def same_as(kind: type[LogitsProcessorSpec], **fields: Any) -> LogitsProcessorSpec | None:
    """A spec that means the same as a field, or none where a spec cannot say so much.

    Args:
        kind: class of the spec.
        fields: of the spec.
    """
    try:
        return kind(**fields)
    except SpecError:  # more than a spec may hold: the engine's own order decides, see the docs
        return None
