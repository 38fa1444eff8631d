"""The fields of a request to TensorRT-LLM that ban or delay tokens.

The engine's sampler applies them after the processors
(``tensorrt_llm/_torch/pyexecutor/sampler/token_ban.py`` and ``embedding_bias.py``). If a
contradiction is not refused here, the field therefore wins.
"""

import math
from collections.abc import Sequence
from typing import Any

from ...spec import BannedSequencesSpec, BannedTokensSpec, MinTokensSpec
from ..own_fields import OwnFields, same_as


def own_fields(sampling_params: Any) -> OwnFields:
    """Convert the fields of a request to specs that mean the same.

    Three fields are left out: ``bad`` before the engine has tokenized it, ``min_tokens`` without an
    ``end_id``, and a finite ``embedding_bias``, which does not certainly ban a token.

    Args:
        sampling_params: TensorRT-LLM's ``SamplingParams``.
    """
    end_id = getattr(sampling_params, "end_id", None)
    banned = getattr(sampling_params, "bad_token_ids", None) or ()
    words = getattr(sampling_params, "_bad_word_ids", None) or ()
    bias = getattr(sampling_params, "embedding_bias", None)
    return {
        "min_tokens": same_as(
            MinTokensSpec,
            n=getattr(sampling_params, "min_tokens", None),
            stop_token_ids=() if end_id is None else (end_id,),
        ),
        "bad_token_ids": same_as(BannedTokensSpec, token_ids=tuple(banned)),
        "bad": same_as(BannedSequencesSpec, sequences=tuple(map(tuple, words))),
        "embedding_bias": same_as(BannedTokensSpec, token_ids=_banned_by(bias)),
    }


def _banned_by(bias: Any) -> Sequence[int]:
    """Find the tokens with a bias of minus infinity in a tensor ``[vocabulary]``."""
    if bias is None:
        return ()
    return (bias == -math.inf).nonzero().flatten().tolist()
