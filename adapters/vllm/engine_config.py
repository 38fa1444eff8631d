"""What an engine's configuration says about the work that reaches it."""

import sys
from typing import TYPE_CHECKING

from ...spec import Stage, Tokenizer

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_STAGE_OF_KV_ROLE = {"kv_producer": Stage.PREFILL, "kv_consumer": Stage.DECODE}


def stage_of(vllm_config: "VllmConfig") -> Stage:
    """The engine's stage, from its role in KV transfer.

    An engine that is both (``kv_both``) or has no KV transfer generates.
    """
    transfer = vllm_config.kv_transfer_config
    return _STAGE_OF_KV_ROLE.get(str(transfer and transfer.kv_role), Stage.AGGREGATED)


def load_tokenizer(vllm_config: "VllmConfig") -> Tokenizer:
    """The engine's tokenizer, also where the engine itself was told not to load one."""
    from vllm.tokenizers import get_tokenizer

    model = vllm_config.model_config
    return get_tokenizer(
        model.tokenizer,
        tokenizer_mode=model.tokenizer_mode,
        revision=model.tokenizer_revision,
        trust_remote_code=model.trust_remote_code,
    )


def admitting_engine_config() -> "VllmConfig | None":
    """The configuration of the engine that is admitting a request, from within ``validate_params``.

    vLLM calls ``validate_params`` on the class and passes the parameters alone
    (``vllm/v1/engine/input_processor.py``), so a process with several engines leaves no other way
    to know the vocabulary than to ask the caller: the nearest method whose object has a
    ``vllm_config``. ``None`` when there is none; the worker checks again in any case.
    """
    frame = sys._getframe(1)
    for _ in range(8):
        if (frame := frame.f_back) is None:
            break
        config = getattr(frame.f_locals.get("self"), "vllm_config", None)
        if config is not None:
            return config
    return None
