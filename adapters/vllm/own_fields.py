"""The fields of a request to vLLM that ban, allow or delay tokens."""

from collections.abc import Iterable, Sequence
from typing import Any

from ...spec import AllowedTokensSpec, BannedSequencesSpec, MinTokensSpec
from ..own_fields import OwnFields, same_as


def own_fields(
    sampling_params: Any, eos_token_ids: Iterable[int] = (), tokenizer: Any = None
) -> OwnFields:
    """Convert the fields of a request to specs that mean the same.

    ``logit_bias`` is left out: it is added to the logits like a ``LogitBiasSpec``, and does not
    certainly ban a token.

    Args:
        sampling_params: vLLM's parameters, or an object with any of their fields.
        eos_token_ids: the model's end-of-sequence tokens, which ``min_tokens`` holds back.
        tokenizer: the engine's tokenizer, for ``bad_words``, which are left out without it.
    """

    def get(name: str) -> Any:
        return getattr(sampling_params, name, None)

    stops = {*_token_ids(get("stop_token_ids")), *eos_token_ids}
    allowed = _token_ids(get("allowed_token_ids"))
    words = _bad_words(get("bad_words"), tokenizer)
    return {
        "min_tokens": same_as(MinTokensSpec, n=get("min_tokens"), stop_token_ids=tuple(stops)),
        "allowed_token_ids": same_as(AllowedTokensSpec, token_ids=allowed),
        "bad_words": same_as(BannedSequencesSpec, sequences=words),
    }


def _token_ids(value: Any) -> tuple[int, ...]:
    """Return the token ids in a field. vLLM refuses other values that a client may have sent."""
    items: Sequence[object] = value if isinstance(value, list | tuple) else ()
    return tuple(item for item in items if type(item) is int)


def _bad_words(words: Sequence[str] | None, tokenizer: Any) -> tuple[tuple[int, ...], ...]:
    """Return the token sequences that vLLM bans for some words."""
    if not words or tokenizer is None:
        return ()
    from vllm import SamplingParams

    try:
        params = SamplingParams(bad_words=list(words))
        params.update_from_tokenizer(tokenizer)
    except (TypeError, ValueError):  # vLLM refuses these words
        return ()
    return tuple(map(tuple, params.bad_words_token_ids or ()))
