"""Specs in vLLM's per-request parameters."""

from typing import Any, Protocol, TypeVar

from ...spec import SpecError, Stage
from ...spec.texts import Given
from ..attachment import Attachment
from .backend import BACKEND
from .native import GRAMMARS, sampling_fields
from .own_fields import own_fields

ATTACHMENT = Attachment(BACKEND, sampling_fields, GRAMMARS, own_fields)


class HasExtraArgs(Protocol):
    """``vllm.SamplingParams``, or an object that passes its ``extra_args`` on to one.

    Native kinds need vLLM's fields for them, under the same names.
    """

    extra_args: dict[str, Any] | None


Params = TypeVar("Params", bound=HasExtraArgs)


def attach(
    sampling_params: Params,
    specs: Given,
    *,
    stage: Stage = Stage.AGGREGATED,
    generation_only: bool = True,
    continued: int = 0,
) -> Params:
    """Make ``specs`` the specs of a request that goes to a worker in ``stage``.

    A worker that does not generate gets no specs. Earlier specs of the request are replaced; other
    keys of ``extra_args`` are not changed. Native kinds (``grammar``, ``sampling``) become the
    parameters' own ``structured_outputs``, ``temperature`` and so on. Attaching other specs later
    does not reset those fields.

    Args:
        sampling_params: the request's parameters, changed in place and returned.
        specs: one or several, also as JSON (see ``extra_body``), with texts for the engine's
            tokenizer; an empty sequence removes earlier specs. With a
            ``PythonProcessorSpec``, they are live objects, which only an engine in this process
            admits.
        stage: the worker's task for this request.
        generation_only: ``False`` sends the specs to prefill workers too; see ``Payload``.
        continued: the number of the prompt's last tokens that count as output; see ``Payload``.

    Raises:
        SpecError: as ``encode`` does, in any stage. If the specs act, also if one conflicts with a
            field of ``sampling_params`` (a field at its default is not set), if a field is missing,
            or if vLLM is not installed for a ``grammar``. Nothing has been changed then.
        Exception: vLLM's own, for sampling parameters that vLLM refuses together.
    """
    if not hasattr(sampling_params, "extra_args"):
        raise SpecError(f"Expected vLLM's SamplingParams, got {type(sampling_params).__name__}")
    with ATTACHMENT.attaching(
        sampling_params, specs, stage, generation_only, continued
    ) as attached:
        for name, value in attached.fields.items():
            setattr(sampling_params, name, value)
        if attached.fields:
            # A cached property: the caller may have read it before the temperature changed.
            getattr(sampling_params, "__dict__", {}).pop("sampling_type", None)
        # A new dict: callers share a dict among requests.
        sampling_params.extra_args = attached.put_into(sampling_params.extra_args) or None
    return sampling_params


def stop_token_of(sampling_params: Any) -> int | None:
    """Return a token that makes vLLM end the request, if there is one."""
    stops = sampling_params.stop_token_ids or ()
    if not sampling_params.ignore_eos:
        stops = sampling_params.all_stop_token_ids
    return min(stops, default=None)
