"""What an engine's configuration says about the work that reaches it."""

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
