"""The fields of a request to TensorRT-LLM that ban or delay tokens.

The engine's sampler applies them after the processors
(``tensorrt_llm/_torch/pyexecutor/sampler/token_ban.py`` and ``embedding_bias.py``). If a
contradiction is not refused here, the field therefore wins.
"""

import math
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

    def get(name: str) -> Any:
        return getattr(sampling_params, name, None)

    end_id, bias = get("end_id"), get("embedding_bias")  # a tensor, [vocabulary]
    eos = () if end_id is None else (end_id,)
    banned = () if bias is None else (bias == -math.inf).nonzero().flatten().tolist()
    words = tuple(map(tuple, get("_bad_word_ids") or ()))
    return {
        "min_tokens": same_as(MinTokensSpec, n=get("min_tokens"), stop_token_ids=eos),
        "bad_token_ids": same_as(BannedTokensSpec, token_ids=tuple(get("bad_token_ids") or ())),
        "bad": same_as(BannedSequencesSpec, sequences=words),
        "embedding_bias": same_as(BannedTokensSpec, token_ids=banned),
    }
