"""The fields of a ``GenerationConfig`` that ban or delay tokens."""

import math
from collections.abc import Sequence
from typing import Any

from ...spec import BannedSequencesSpec, BannedTokensSpec, MinTokensSpec
from ..own_fields import OwnFields, same_as


def eos_token_ids_of(generation_config: Any) -> list[int]:
    """List the end-of-sequence tokens of a ``GenerationConfig``."""
    eos = generation_config.eos_token_id
    return eos if isinstance(eos, list) else [] if eos is None else [eos]


def own_fields(
    generation_config: Any, eos_token_ids: Sequence[int], prompt_length: int
) -> OwnFields:
    """Convert the fields to specs that mean the same.

    Two fields are left out: ``forced_eos_token_id``, whose index depends on the length that
    ``generate`` settles on, and a finite ``sequence_bias``, which does not certainly ban a token.

    Args:
        generation_config: a ``GenerationConfig``.
        eos_token_ids: its end-of-sequence tokens.
        prompt_length: number of tokens of the prompts, padding included, as ``min_length`` counts.
    """
    get, eos = generation_config.__dict__.get, tuple(eos_token_ids)
    words = map(tuple, get("bad_words_ids") or ())
    bias = get("sequence_bias") or {}
    # A configuration from JSON has pairs.
    pairs = bias.items() if isinstance(bias, dict) else bias
    banned = tuple(tuple(word) for word, value in pairs if value == -math.inf)
    alone = {(each,) for each in eos}
    return {
        "min_new_tokens": same_as(MinTokensSpec, n=get("min_new_tokens"), stop_token_ids=eos),
        "min_length": same_as(
            MinTokensSpec, n=(get("min_length") or 0) - prompt_length, stop_token_ids=eos
        ),
        "bad_words_ids": same_as(  # which does not ban EOS alone
            BannedSequencesSpec, sequences=tuple(word for word in words if word not in alone)
        ),
        "sequence_bias": same_as(BannedSequencesSpec, sequences=banned),
        "suppress_tokens": same_as(BannedTokensSpec, token_ids=get("suppress_tokens")),
        "begin_suppress_tokens": same_as(
            MinTokensSpec, n=1, stop_token_ids=get("begin_suppress_tokens")
        ),
    }
