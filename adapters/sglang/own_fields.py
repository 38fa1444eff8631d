"""The fields of a request to SGLang that ban or delay tokens."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ...spec import BannedTokensSpec, MinTokensSpec
from ..first_tokens import first_tokens
from ..own_fields import OwnFields, same_as
from .native import GRAMMARS

if TYPE_CHECKING:
    from ..core import Vocabulary


def own_fields(
    sampling_params: Mapping[str, Any],
    eos_token_ids: Iterable[int] = (),
    vocabulary: "Callable[[], Vocabulary | None]" = lambda: None,
) -> OwnFields:
    """Convert the fields of a request to specs that mean the same.

    A finite ``logit_bias`` is left out: it is added to the logits like a ``LogitBiasSpec``, and
    does not certainly ban a token. Values that SGLang refuses by itself are left to SGLang.

    Args:
        sampling_params: the request's parameters.
        eos_token_ids: the model's end-of-sequence tokens, which ``min_new_tokens`` holds back.
        vocabulary: see ``first_tokens``.
    """
    get = sampling_params.get
    n, bias, given = get("min_new_tokens"), get("logit_bias"), get("stop_token_ids")
    given = given if isinstance(given, list | tuple | set | frozenset) else ()
    # SGLang ignores ``None`` among the stop tokens.
    stops = {*(token for token in given if isinstance(token, int)), *eos_token_ids}
    items = bias.items() if isinstance(bias, Mapping) else ()
    banned = tuple(int(token) for token, value in items if value == -math.inf)
    return {
        "min_new_tokens": same_as(MinTokensSpec, n=n, stop_token_ids=tuple(stops)),
        "logit_bias": same_as(BannedTokensSpec, token_ids=banned),
        **first_tokens(sampling_params, GRAMMARS, vocabulary),
    }
