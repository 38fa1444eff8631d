"""``allowed_tokens``: one state, which leaves some tokens."""

from collections.abc import Iterable

import numpy as np

from ....spec import AllowedTokensSpec
from ..automaton import Edit
from .banned_tokens import ADDING
from .base import Part, compile_spec

_ALLOW = np.array([Edit.ALLOW], np.int8)


@compile_spec.register
def _compile(spec: AllowedTokensSpec) -> Iterable[Part]:
    yield ADDING.of_tokens(spec.token_ids, edit=_ALLOW)
