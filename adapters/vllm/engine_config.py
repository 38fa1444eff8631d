"""What an engine's configuration says about the work that reaches it."""

import weakref
from collections.abc import Callable
from copy import copy
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ...spec import Stage, Tokenizer
from ..environment import STAGE_VARIABLE, stage_from_environment

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig

_STAGE_OF_KV_ROLE = {"kv_producer": Stage.PREFILL, "kv_consumer": Stage.DECODE}


Fact = TypeVar("Fact")


def once_per_engine(ask: "Callable[[VllmConfig], Fact]") -> "Callable[[VllmConfig], Fact]":
    """Remember what a function has found out about an engine, as long as its configuration lives.

    A configuration cannot be hashed.
    """
    facts: dict[int, Fact] = {}

    @wraps(ask)
    def remembered(vllm_config: "VllmConfig") -> Fact:
        key = id(vllm_config)
        if key not in facts:
            facts[key] = ask(vllm_config)
            weakref.finalize(vllm_config, facts.pop, key, None)
        return facts[key]

    return remembered


class Role(NamedTuple):
    """What an engine does in its deployment.

    Attributes:
        stage: of the requests that reach it.
        source: what says so.
        is_per_request: whether a request can say that it is here for its prompt alone.
    """

    stage: Stage
    source: str
    is_per_request: bool = False

    def stage_for(self, sampling_params: "SamplingParams") -> Stage:
        """The stage of one request.

        A proxy that has engines of one role (``kv_both``) prefill and decode tells them apart by
        the request: ``do_remote_decode`` goes to the one that prefills. So vLLM's connectors see
        it too (``is_p_node`` in ``kv_connector/v1/nixl/pull_scheduler.py``).
        """
        if self.is_per_request:
            transfer = (sampling_params.extra_args or {}).get("kv_transfer_params")
            if isinstance(transfer, dict) and transfer.get("do_remote_decode"):
                return Stage.PREFILL
        return self.stage


@once_per_engine
def role_of(vllm_config: "VllmConfig") -> Role:
    """An engine's role: what ``LOGITPORT_STAGE`` says, otherwise its role in KV transfer.

    Raises:
        SpecError: if the variable names no stage.
    """
    if stage := stage_from_environment():
        return Role(stage, STAGE_VARIABLE)
    transfer = vllm_config.kv_transfer_config
    if transfer is None or transfer.kv_role is None:
        return Role(Stage.AGGREGATED, "no KV transfer")
    stage = _STAGE_OF_KV_ROLE.get(transfer.kv_role)
    source = f"kv_role={transfer.kv_role}"
    if stage is None:
        return Role(Stage.AGGREGATED, f"{source}, prefill where do_remote_decode", True)
    return Role(stage, source)


def load_tokenizer(vllm_config: "VllmConfig") -> Tokenizer:
    """The engine's tokenizer, also where the engine itself was told not to load one."""
    from vllm.tokenizers import cached_tokenizer_from_config

    model = copy(vllm_config.model_config)
    model.skip_tokenizer_init = False
    tokenizer = cached_tokenizer_from_config(model)
    assert tokenizer is not None  # as it is where it is skipped
    return tokenizer


def eos_token_ids_of(vllm_config: "VllmConfig", tokenizer: Any) -> frozenset[int]:
    """The tokens that end a reply of the model, which vLLM's ``min_tokens`` holds back.

    The tokenizer's EOS and those of the model's generation configuration
    (``SamplingParams.update_from_generation_config``).

    Args:
        vllm_config: the engine's configuration.
        tokenizer: the engine's, or ``None``.
    """
    eos_token_id = getattr(tokenizer, "eos_token_id", None)
    others = _configured_eos(vllm_config)
    return others if eos_token_id is None else others | {eos_token_id}


@once_per_engine
def _configured_eos(vllm_config: "VllmConfig") -> frozenset[int]:
    eos = vllm_config.model_config.try_get_generation_config().get("eos_token_id") or ()
    return frozenset([eos] if isinstance(eos, int) else eos)
