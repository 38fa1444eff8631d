"""What a request to SGLang bans or delays by fields of its own."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ...spec import BannedTokensSpec, LogitsProcessorSpec, MinTokensSpec
from ..own_fields import same_as


def own_fields(
    sampling_params: Mapping[str, Any], eos_token_ids: Iterable[int] = ()
) -> dict[str, LogitsProcessorSpec]:
    """The fields of a request that ban or delay tokens, as the specs that mean the same.

    A finite ``logit_bias`` is none of them: it is added to the logits as a bias of ours is, and
    bans nothing for certain. What SGLang refuses by itself is left to it.

    Args:
        sampling_params: the request's.
        eos_token_ids: the model's end-of-sequence tokens, which ``min_new_tokens`` holds back.
    """
    stops = {*_token_ids(sampling_params.get("stop_token_ids")), *eos_token_ids}
    bias = sampling_params.get("logit_bias")
    items = bias.items() if isinstance(bias, Mapping) else ()
    fields = {
        "min_new_tokens": same_as(
            MinTokensSpec,
            n=sampling_params.get("min_new_tokens"),
            stop_token_ids=tuple(stops),
        ),
        "logit_bias": same_as(
            BannedTokensSpec,
            token_ids=tuple(int(token) for token, value in items if value == -math.inf),
        ),
    }
    return {name: spec for name, spec in fields.items() if spec is not None}


def _token_ids(given: Any) -> list[int]:
    """Those of ``stop_token_ids``; SGLang passes over ``None`` among them."""
    given = given if isinstance(given, list | tuple | set | frozenset) else ()
    return [token for token in given if isinstance(token, int)]
