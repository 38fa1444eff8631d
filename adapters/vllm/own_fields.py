"""What a request to vLLM bans, allows or delays by fields of its own."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from ...spec import (
    AllowedTokensSpec,
    BannedSequencesSpec,
    LogitsProcessorSpec,
    MinTokensSpec,
)
from ..own_fields import same_as


def own_fields(
    sampling_params: Any, eos_token_ids: Iterable[int] = (), tokenizer: Any = None
) -> dict[str, LogitsProcessorSpec]:
    """The fields of a request as the specs that mean the same.

    ``logit_bias`` is none of them: it is added to the logits as a bias of ours is, and bans nothing
    for certain.

    Args:
        sampling_params: vLLM's, or what has its fields; it need not have them.
        eos_token_ids: the model's end-of-sequence tokens, which ``min_tokens`` holds back.
        tokenizer: the engine's, for ``bad_words``; without one they are not looked at.
    """
    fields: dict[str, LogitsProcessorSpec | None] = {}
    minimum = getattr(sampling_params, "min_tokens", None)
    stops = {*_token_ids(sampling_params, "stop_token_ids"), *eos_token_ids}
    if minimum and stops:
        fields["min_tokens"] = same_as(MinTokensSpec, n=minimum, stop_token_ids=tuple(stops))
    if allowed := _token_ids(sampling_params, "allowed_token_ids"):
        fields["allowed_token_ids"] = same_as(AllowedTokensSpec, token_ids=allowed)
    if sequences := _bad_words(getattr(sampling_params, "bad_words", None), tokenizer):
        fields["bad_words"] = same_as(BannedSequencesSpec, sequences=sequences)
    return {name: spec for name, spec in fields.items() if spec is not None}


def _token_ids(sampling_params: Any, name: str) -> tuple[int, ...]:
    """The token ids of a field; a client may have sent anything there, which vLLM refuses."""
    value = getattr(sampling_params, name, None)
    if not isinstance(value, list | tuple):
        return ()
    return tuple(item for item in cast("Sequence[object]", value) if type(item) is int)


def _bad_words(words: Sequence[str] | None, tokenizer: Any) -> tuple[tuple[int, ...], ...]:
    """The token sequences that vLLM bans for some words."""
    if not words or tokenizer is None:
        return ()
    from vllm import SamplingParams

    try:
        params = SamplingParams(bad_words=list(words))
        params.update_from_tokenizer(tokenizer)
    except (TypeError, ValueError):  # vLLM refuses them
        return ()
    return tuple(tuple(sequence) for sequence in params.bad_words_token_ids or ())
