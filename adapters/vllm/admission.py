"""What a vLLM engine lets in: a request's payload, checked against the engine, and compiled."""

from typing import TYPE_CHECKING

from ...spec import Payload, SpecError
from ..core import Program, default_specs, refusal
from .callers import nearest
from .engine_config import load_tokenizer, once_per_engine, role_of
from .placeholders import tells_output_ids

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def check_engine(vllm_config: "VllmConfig", payload: Payload, program: Program) -> None:
    """Refuse what this engine cannot realize.

    Args:
        vllm_config: the engine's configuration.
        payload: what the request carries, if it acts here.
        program: what its specs compile to.

    Raises:
        SpecError: with what the engine would have to do differently.
    """
    if why := _why_dropped(vllm_config):
        raise SpecError(f"The request has specs, but {why}")
    if program.needs_output_ids and not tells_output_ids(vllm_config):
        raise refusal(
            payload.specs,
            lambda program: program.needs_output_ids,
            "needs the ids of the sampled tokens, which vLLM's asynchronous scheduling tells no "
            "processor that it has found by itself: start the engine with --logits-processors "
            "logitport.adapters.vllm:LogitportProcessor, or with --no-async-scheduling",
        )


def check_free(vllm_config: "VllmConfig") -> None:
    """Refuse a request without specs where there are default specs that this engine drops.

    Args:
        vllm_config: the engine's configuration.

    Raises:
        SpecError: with what the engine would have to do differently.
    """
    # Otherwise the worker's instance has loaded the default specs, or refused to start.
    if (why := _why_dropped(vllm_config)) and _has_default_specs(vllm_config):
        raise SpecError(f"Default specs are configured, but {why}")


@once_per_engine
def _has_default_specs(vllm_config: "VllmConfig") -> bool:
    return role_of(vllm_config).stage.generates and bool(
        default_specs(lambda: load_tokenizer(vllm_config))
    )


def _why_dropped(vllm_config: "VllmConfig") -> str | None:
    """Why the engine runs without the processors of the entry-point group, if it does.

    With drafts, ``build_logitsprocs`` in ``vllm/v1/sample/logits_processor`` drops them without a
    word; with processors on the command line such an engine does not start. A diffusion model
    brings a sampler of its own, which asks none (``DiffusionSampler`` in
    ``vllm/model_executor/models/diffusion_gemma.py``, from 0.32 on).
    """
    if vllm_config.speculative_config is not None and not vllm_config.use_v2_model_runner:
        return (
            "vLLM's V1 model runner loads no logits processors when it decodes speculatively: "
            "start the engine with VLLM_USE_V2_MODEL_RUNNER=1, or without a speculative config"
        )
    if getattr(vllm_config.model_config, "is_diffusion", False):
        return "vLLM's diffusion models choose tokens without logits processors"
    return None


def admitting_engine_config() -> "VllmConfig | None":
    """The configuration of the engine that is admitting a request, from within ``validate_params``.

    vLLM calls ``validate_params`` on the class and passes the parameters alone
    (``vllm/v1/engine/input_processor.py``), so a process with several engines leaves no other way
    to know the vocabulary than to ask the caller: the nearest method whose object has a
    ``vllm_config``. ``None`` when there is none; the worker checks again in any case.
    """
    return nearest("vllm_config", frames=8)
