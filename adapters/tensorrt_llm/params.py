"""Specs on their way through TensorRT-LLM's per-request parameters."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Protocol, TypeVar

from ...spec import LogitsProcessorSpec, SpecError, Stage
from ...spec.base import places_among, several
from ..back_end import payload_for
from ..core import admitted, refusal
from ..counters import count
from ..own_fields import check_own_fields
from .back_end import BACK_END
from .native import lowered
from .own_fields import own_fields
from .processor import LogitportProcessor


class HasLogitsProcessor(Protocol):
    """``tensorrt_llm.SamplingParams``; native kinds need the fields that it has for them."""

    logits_processor: Any
    end_id: int | None
    stop_token_ids: list[int] | None
    ignore_eos: bool


Params = TypeVar("Params", bound=HasLogitsProcessor)


def attach(
    sampling_params: Params,
    specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec],
    *,
    stage: Stage = Stage.AGGREGATED,
    generation_only: bool = True,
    disable_overlap_scheduler: bool = False,
    prompt_length: int | None = None,
    vocab_size: int | None = None,
) -> Params:
    """Make ``specs`` the specs of a request that goes to a worker in ``stage``.

    A worker that does not generate is sent none. Whatever specs the parameters carried before are
    replaced, so attaching twice is attaching once; other processors are left alone.

    Native kinds (``grammar``, ``sampling``) become the parameters' own ``guided_decoding``,
    ``temperature`` and so on, whatever the stage: prefill workers choose the first token. What has
    once been set so is the request's own: attaching other specs later does not take it off.

    Args:
        sampling_params: the request's parameters, changed in place. Several requests of one engine
            may share them.
        specs: one or several; none takes them off.
        stage: what the worker does for this request. To a decode worker one output token is handed
            over; a decode worker that prefills a request itself is ``AGGREGATED`` for it.
        generation_only: ``False`` sends the specs to prefill workers too; see ``Payload``.
        disable_overlap_scheduler: whether the engine was started with this. Otherwise specs that
            depend on the output are refused: they would act one step late.
        prompt_length: number of the prompt's tokens. Not needed where a request begins with its
            prompt, and one token from another worker if it is a decode worker's.
        vocab_size: number of tokens, if they are to be checked here.

    Returns:
        ``sampling_params``.

    Raises:
        SpecError: as ``encode`` does, whatever the stage; if the engine cannot do one of the specs,
            or it conflicts with a field of ``sampling_params`` (``min_tokens``, ``bad_token_ids``
            and the like as well as those of native kinds), or, where the specs act, runs
            code that may fail while nothing is known that ends the request (``end_id``). Nothing
            has been changed then.
        Exception: the engine's own, for sampling parameters that it refuses together.
    """
    specs, stage = several(specs), Stage(stage)
    if not hasattr(sampling_params, "logits_processor"):
        name = type(sampling_params).__name__
        raise SpecError(f"Expected TensorRT-LLM's SamplingParams, got {name}")
    acts = stage.takes_specs(generation_only)
    processor = processor_for(
        specs,
        stage=stage,
        generation_only=generation_only,
        disable_overlap_scheduler=disable_overlap_scheduler,
        prompt_length=prompt_length,
        vocab_size=vocab_size,
        stop_token_id=stop_token_of(sampling_params),
    )
    check_own_fields(specs, own_fields(sampling_params))
    fields = lowered(sampling_params, specs)
    for name, value in fields.items():
        setattr(sampling_params, name, value)
    sampling_params.logits_processor = _with(sampling_params.logits_processor, processor)
    if specs:
        count("attached" if acts else "gated", stage)
    return sampling_params


def processor_for(
    specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec],
    *,
    stage: Stage,
    generation_only: bool = True,
    disable_overlap_scheduler: bool,
    prompt_length: int | None,
    vocab_size: int | None,
    stop_token_id: int | None,
) -> LogitportProcessor | None:
    """What carries the specs of a request, or ``None`` if nothing is to act; see ``attach``."""
    specs = several(specs)
    is_number = isinstance(prompt_length, Integral) and not isinstance(prompt_length, bool)
    if prompt_length is not None and not (is_number and prompt_length >= 0):
        raise SpecError(f"Expected prompt_length to be a number of tokens, got {prompt_length!r}")
    payload = payload_for(BACK_END, specs, stage, generation_only)
    if payload is None:
        return None
    assert isinstance(payload, str)  # the back end takes no live objects
    with places_among(specs):
        _, program = admitted(BACK_END, payload, vocab_size)
    if program.needs_history and not disable_overlap_scheduler:
        raise refusal(
            specs,
            lambda program: program.needs_history,
            "needs the tokens that are out, which TensorRT-LLM's overlap scheduler shows one step "
            "late: start it with disable_overlap_scheduler=True, and say so here",
        )
    if program.per_request and stop_token_id is None:
        raise SpecError(
            "Expected a token that ends the request, if a plugin of its fails; set end_id, "
            "and ignore_eos=False"
        )
    handed_over = 1 if stage is Stage.DECODE else 0
    return LogitportProcessor(payload, prompt_length, handed_over, stop_token_id)


def stop_token_of(sampling_params: HasLogitsProcessor) -> int | None:
    """A token that makes the engine end the request, if one is known before it has a tokenizer.

    With ``ignore_eos`` the engine takes no stop tokens either (``executor/base_worker.py``).
    """
    if sampling_params.ignore_eos:
        return None
    if sampling_params.end_id is not None:
        return sampling_params.end_id
    return min(sampling_params.stop_token_ids or (), default=None)


def _with(current: Any, processor: LogitportProcessor | None) -> Any:
    """A list where there are several: the TensorRT back end takes one processor alone."""
    several = current if isinstance(current, list) else [] if current is None else [current]
    others = [each for each in several if not isinstance(each, LogitportProcessor)]
    if processor is not None:
        others.append(processor)
    return others if len(others) > 1 else next(iter(others), None)
