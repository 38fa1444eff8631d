"""``allowed_tokens``: one state, which leaves some tokens."""

from collections.abc import Iterable, Sequence

import numpy as np

from ....spec import AllowedTokensSpec
from ..automaton import Edit
from ..automaton.arrays import distinct, token_array
from ..parts import Part
from .banned_tokens import ADDING, adding
from .base import Context, Merge, merge

_ALLOW = np.array([Edit.ALLOW], np.int8)

merge.register(AllowedTokensSpec, lambda spec: Merge(_compile))


def _compile(specs: Sequence[AllowedTokensSpec], _: Context) -> Iterable[Part]:
    """Allow the first list, and ban the tokens of it that another list does not contain."""
    first = specs[0].token_ids
    yield ADDING.of_tokens(first, edit=_ALLOW)
    if len(specs) > 1:
        lists = [distinct(token_array(spec.token_ids)) for spec in specs]
        is_banned = np.zeros(len(lists[0]), np.bool_)
        for other in lists[1:]:
            is_banned |= ~np.isin(lists[0], other, assume_unique=True)
        if is_banned.any():
            yield adding(lists[0][is_banned])
