"""What a request to TensorRT-LLM bans or delays by fields of its own.

The engine's sampler applies them when the processors have been called
(``tensorrt_llm/_torch/pyexecutor/sampler/token_ban.py`` and ``embedding_bias.py``), so that a
contradiction which is not refused here is decided for the field.
"""

import math
from collections.abc import Sequence
from typing import Any

from ...spec import (
    BannedSequencesSpec,
    BannedTokensSpec,
    LogitsProcessorSpec,
    MinTokensSpec,
)
from ..own_fields import same_as


def own_fields(sampling_params: Any) -> dict[str, LogitsProcessorSpec]:
    """The fields of a request as the specs that mean the same.

    Not looked at: ``bad`` before the engine has made tokens of it, ``min_tokens`` where there is no
    ``end_id`` yet, and a finite ``embedding_bias``, which bans nothing for certain.

    Args:
        sampling_params: TensorRT-LLM's.
    """
    end_id = getattr(sampling_params, "end_id", None)
    banned = getattr(sampling_params, "bad_token_ids", None) or ()
    words = getattr(sampling_params, "_bad_word_ids", None) or ()
    bias = getattr(sampling_params, "embedding_bias", None)
    fields = {
        "min_tokens": same_as(
            MinTokensSpec,
            n=getattr(sampling_params, "min_tokens", None),
            stop_token_ids=() if end_id is None else (end_id,),
        ),
        "bad_token_ids": same_as(BannedTokensSpec, token_ids=tuple(banned)),
        "bad": same_as(BannedSequencesSpec, sequences=tuple(map(tuple, words))),
        "embedding_bias": same_as(BannedTokensSpec, token_ids=_banned_by(bias)),
    }
    return {name: spec for name, spec in fields.items() if spec is not None}


def _banned_by(bias: Any) -> Sequence[int]:
    """The tokens with a bias of minus infinity; of a tensor ``[vocabulary]``."""
    if bias is None:
        return ()
    return (bias == -math.inf).nonzero().flatten().tolist()
