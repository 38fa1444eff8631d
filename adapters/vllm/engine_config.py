"""Facts from a vLLM configuration: stage, tokenizer, EOS tokens, and whether specs have effect."""

import weakref
from collections.abc import Callable
from copy import copy
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ...spec import Stage, Tokenizer
from .. import STAGE_VARIABLE, stage_from_environment

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import ModelConfig, VllmConfig

EXACT_METHODS = "standard", "block"
"""Values of vLLM's ``rejection_sample_method`` that keep a draft token only as the edited logits
would have chosen it. ``synthetic`` keeps it regardless of the logits. ``fly`` (from 0.33 on) keeps
even a banned token if its logit is finite (``vllm/v1/worker/gpu/spec_decode``)."""

DRAFTS_UNDER_V1 = (
    "vLLM's V1 model runner loads no logits processors when it decodes speculatively: "
    "start the engine with VLLM_USE_V2_MODEL_RUNNER=1, or without a speculative config"
)
"""Why specs have no effect, and what to do."""

_STAGE_OF_KV_ROLE = {"kv_producer": Stage.PREFILL, "kv_consumer": Stage.DECODE}

Fact = TypeVar("Fact")


def once_per_engine(ask: "Callable[[VllmConfig], Fact]") -> "Callable[[VllmConfig], Fact]":
    """Cache a function of an engine's configuration, as long as the configuration lives.

    The key is the object's ``id``, because a configuration cannot be hashed.
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
    """The role of an engine in its deployment.

    Attributes:
        stage: stage of the requests that reach the engine.
        source: the setting that determines the stage, for the log.
        is_per_request: whether a field of a request can make it a prefill request.
    """

    stage: Stage
    source: str
    is_per_request: bool = False

    def stage_for(self, sampling_params: "SamplingParams") -> Stage:
        """Return the stage of one request.

        Engines with the role ``kv_both`` can prefill and decode. A proxy then marks the request
        for prefill with ``do_remote_decode``. vLLM's connectors use the same field
        (``is_p_node`` in ``kv_connector/v1/nixl/pull_scheduler.py``).
        """
        if self.is_per_request:
            transfer = (sampling_params.extra_args or {}).get("kv_transfer_params")
            if isinstance(transfer, dict) and transfer.get("do_remote_decode"):
                return Stage.PREFILL
        return self.stage


@once_per_engine
def role_of(vllm_config: "VllmConfig") -> Role:
    """Determine an engine's role from ``LOGITPORT_STAGE``, otherwise from its KV transfer.

    Raises:
        SpecError: if the variable is not a stage.
    """
    if stage := stage_from_environment():
        return Role(stage, STAGE_VARIABLE)
    transfer = vllm_config.kv_transfer_config
    if transfer is None or transfer.kv_role is None:
        return Role(Stage.AGGREGATED, "no KV transfer")
    source = f"kv_role={transfer.kv_role}"
    if stage := _STAGE_OF_KV_ROLE.get(transfer.kv_role):
        return Role(stage, source)
    return Role(Stage.AGGREGATED, f"{source}, prefill where do_remote_decode", True)


def tokenizer_of(model_config: "ModelConfig") -> Tokenizer:
    """Load the tokenizer of a model, even if its configuration skips it."""
    from vllm.tokenizers import cached_tokenizer_from_config

    model = copy(model_config)
    model.skip_tokenizer_init = False
    tokenizer = cached_tokenizer_from_config(model)
    assert tokenizer is not None  # it is None only if the tokenizer is skipped
    return tokenizer


def eos_token_ids_of(vllm_config: "VllmConfig", tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a reply of the model; vLLM's ``min_tokens`` holds them back.

    They are the EOS of the tokenizer, if there is one, and the EOS tokens of the model's generation
    configuration (``SamplingParams.update_from_generation_config``).
    """
    own: int | None = getattr(tokenizer, "eos_token_id", None)
    return _configured_eos(vllm_config) | (set() if own is None else {own})


def configured_eos(model_config: Any) -> frozenset[int]:
    """Read the EOS tokens of a model's generation configuration."""
    eos = model_config.try_get_generation_config().get("eos_token_id") or ()
    return frozenset([eos] if isinstance(eos, int) else eos)


@once_per_engine
def _configured_eos(vllm_config: "VllmConfig") -> frozenset[int]:
    return configured_eos(vllm_config.model_config)


@once_per_engine
def begins_with_grammar(vllm_config: "VllmConfig") -> bool:
    """Whether the first token of a reply is one that its grammar accepts as it stands.

    With a reasoning parser, thoughts may come first. lm-format-enforcer takes a word's token, with
    a space, for the start of a text.
    """
    config = vllm_config.structured_outputs_config
    return not config.reasoning_parser and config.backend != "lm-format-enforcer"


def why_dropped(vllm_config: "VllmConfig") -> str | None:
    """Explain why specs have no reliable effect in the engine, if that is so.

    With drafts, ``build_logitsprocs`` in ``vllm/v1/sample/logits_processor`` silently drops the
    processors of the entry-point group. The sampler of a diffusion model calls no processors
    (``DiffusionSampler`` in ``vllm/model_executor/models/diffusion_gemma.py``, from 0.32 on).
    """
    if vllm_config.speculative_config is not None and not vllm_config.use_v2_model_runner:
        return DRAFTS_UNDER_V1
    if getattr(vllm_config.model_config, "is_diffusion", False):
        return "vLLM's diffusion models choose tokens without logits processors"
    method = getattr(vllm_config.speculative_config, "rejection_sample_method", EXACT_METHODS[0])
    if method not in EXACT_METHODS:
        return (
            f"the engine keeps draft tokens that the logits rule out ({method=!s}): start it with "
            f"rejection_sample_method {' or '.join(EXACT_METHODS)}"
        )
    return None
