"""Specs in TensorRT-LLM's per-request parameters."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Protocol, TypeVar

from ...spec import LogitsProcessorSpec, SpecError, Stage
from ...spec.base import restore_paths
from ...spec.texts import Given
from .. import admit
from ..attachment import Attachment
from ..core import Program, check_continued, unsupported
from .backend import BACKEND
from .native import GRAMMARS, sampling_fields
from .own_fields import own_fields
from .processor import LogitportProcessor

ATTACHMENT = Attachment(BACKEND, sampling_fields, GRAMMARS, own_fields, grammar_comes_last=True)


class HasLogitsProcessor(Protocol):
    """``tensorrt_llm.SamplingParams``. Native kinds need its fields for them."""

    logits_processor: Any
    end_id: int | None
    stop_token_ids: list[int] | None
    ignore_eos: bool


Params = TypeVar("Params", bound=HasLogitsProcessor)


def attach(
    sampling_params: Params,
    specs: Given,
    *,
    stage: Stage = Stage.AGGREGATED,
    generation_only: bool = True,
    continued: int = 0,
    disable_overlap_scheduler: bool = False,
    prompt_length: int | None = None,
    vocab_size: int | None = None,
) -> Params:
    """Make ``specs`` the specs of a request that goes to a worker in ``stage``.

    A worker that does not generate gets no specs. Earlier specs of the request are replaced; other
    processors are not changed. Native kinds (``grammar``, ``sampling``) become the parameters' own
    ``guided_decoding``, ``temperature`` and so on, whatever the stage: prefill workers choose the
    first token. Attaching other specs later does not reset those fields.

    Args:
        sampling_params: the request's parameters, changed in place and returned. Several requests
            of one engine may share them.
        specs: one or several, also as JSON (see ``extra_body``), without texts; an empty sequence
            removes earlier specs.
        stage: the worker's task for this request. A decode worker takes over one output token. A
            decode worker that prefills a request itself is ``AGGREGATED`` for this request.
        generation_only: ``False`` sends the specs to prefill workers too; see ``Payload``.
        continued: the number of the prompt's last tokens that count as output; see ``Payload``.
        disable_overlap_scheduler: whether the engine was started with this option. Without it,
            specs that depend on the output are refused: they would act one step late.
        prompt_length: the number of the prompt's tokens. It is not needed if a request begins with
            its prompt and, on a decode worker, one token from another worker.
        vocab_size: the number of tokens, if token ids are to be checked here.

    Raises:
        SpecError: as ``encode`` does, in any stage; if the engine does not support a spec; if a
            spec conflicts with a field of ``sampling_params``; if a spec acts and runs code that
            may fail, and no token is known that ends the request (``end_id``). Nothing has been
            changed then.
        Exception: the engine's own, for sampling parameters that the engine refuses together.
    """
    if not hasattr(sampling_params, "logits_processor"):
        got = type(sampling_params).__name__
        raise SpecError(f"Expected TensorRT-LLM's SamplingParams, got {got}")
    is_number = isinstance(prompt_length, Integral) and not isinstance(prompt_length, bool)
    if prompt_length is not None and not (is_number and prompt_length >= 0):
        raise SpecError(f"Expected prompt_length to be a number of tokens, got {prompt_length!r}")
    if prompt_length is not None:
        check_continued(continued, prompt_length)
    stop, processor = stop_token_of(sampling_params), None
    with ATTACHMENT.attaching(
        sampling_params, specs, stage, generation_only, continued
    ) as attached:
        if (payload := attached.payload) is not None:
            assert isinstance(payload, str)  # the backend takes no live objects
            with restore_paths(attached.specs):
                _, program = admit(BACKEND, payload, vocab_size)
            has_stop, in_time = stop is not None, disable_overlap_scheduler
            _check_program(attached.specs, program, has_stop, in_time)
            processor = LogitportProcessor(payload, prompt_length, int(stage == Stage.DECODE), stop)
        for name, value in attached.fields.items():
            setattr(sampling_params, name, value)
        current = sampling_params.logits_processor
        each = current if isinstance(current, list) else [current]
        kept = [other for other in each if not isinstance(other, LogitportProcessor | None)]
        kept += [] if processor is None else [processor]
        # The TensorRT backend takes one processor, and no list.
        sampling_params.logits_processor = kept if len(kept) > 1 else next(iter(kept), None)
    return sampling_params


def _check_program(
    specs: Sequence[LogitsProcessorSpec], program: Program, has_stop: bool, is_in_time: bool
) -> None:
    """Refuse specs that the engine cannot realize as it runs."""
    if program.needs_history and not is_in_time:
        raise unsupported(
            specs,
            lambda program: program.needs_history,
            "needs the output tokens, which TensorRT-LLM's overlap scheduler passes one step late: "
            "start it with disable_overlap_scheduler=True, and pass the same here",
        )
    if program.per_request and not has_stop:
        raise SpecError(
            "Expected a token that ends the request if its plugin fails; set end_id, "
            "and ignore_eos=False"
        )


def stop_token_of(sampling_params: HasLogitsProcessor) -> int | None:
    """Return a token that makes the engine end the request, if one is known without a tokenizer.

    With ``ignore_eos`` the engine also ignores stop tokens (``executor/base_worker.py``).
    """
    if sampling_params.ignore_eos:
        return None
    if sampling_params.end_id is not None:
        return sampling_params.end_id
    return min(sampling_params.stop_token_ids or (), default=None)
