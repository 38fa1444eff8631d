"""Specs on their way through vLLM's per-request parameters."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from ...spec import LogitsProcessorSpec, SpecError, Stage
from ...spec.base import several
from ..back_end import payload_for
from ..counters import count
from ..own_fields import check_own_fields
from .back_end import BACK_END, KEY
from .native import lowered, set_fields
from .own_fields import own_fields


class HasExtraArgs(Protocol):
    """``vllm.SamplingParams``, or anything that carries its ``extra_args`` to one.

    Native kinds need the fields that vLLM has for them, under the same names.
    """

    extra_args: dict[str, Any] | None


Params = TypeVar("Params", bound=HasExtraArgs)


def attach(
    sampling_params: Params,
    specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec],
    *,
    stage: Stage = Stage.AGGREGATED,
    generation_only: bool = True,
) -> Params:
    """Make ``specs`` the specs of a request that goes to a worker in ``stage``.

    A worker that does not generate is sent none. Whatever specs the parameters carried before are
    replaced, so attaching twice is attaching once; other keys of ``extra_args`` are left alone.

    Native kinds (``grammar``, ``sampling``) become the parameters' own ``structured_outputs``,
    ``temperature`` and so on, and are no part of the payload. Where the request already says
    something else there, that is an error; a field at its default counts as one that says
    nothing. What has once been set so is the request's own: attaching other specs later does not
    take it off.

    Args:
        sampling_params: the request's parameters, changed in place.
        specs: one or several; none takes them off. With a ``PythonProcessorSpec`` among them they
            are attached as live objects, which only an engine in this very process admits.
        stage: what the worker does for this request.
        generation_only: ``False`` sends the specs to prefill workers too; see ``Payload``.

    Returns:
        ``sampling_params``.

    Raises:
        SpecError: as ``encode`` does, whatever the stage; where the specs act, also if one
            conflicts with a field of ``sampling_params``, or it lacks a field, or a ``grammar`` is
            attached where vLLM is not installed. Nothing has been changed then.
        Exception: vLLM's own, for sampling parameters that it refuses together.
    """
    specs, stage = several(specs), Stage(stage)
    if not hasattr(sampling_params, "extra_args"):
        raise SpecError(f"Expected vLLM's SamplingParams, got {type(sampling_params).__name__}")
    # A new dict: callers share one among requests.
    extra_args = dict(sampling_params.extra_args or {})
    extra_args.pop(KEY, None)
    fields: dict[str, Any] = {}
    acts = stage.takes_specs(generation_only)
    if specs:
        payload = payload_for(BACK_END, specs, stage, generation_only)
        if acts:
            check_own_fields(specs, own_fields(sampling_params))
            fields = lowered(sampling_params, specs)
        if payload is not None:
            extra_args[KEY] = payload
    set_fields(sampling_params, fields)
    sampling_params.extra_args = extra_args or None
    if specs:
        count("attached" if acts else "gated", stage)
    return sampling_params


def stop_token_of(sampling_params: Any) -> int | None:
    """A token that makes vLLM end the request, if there is one."""
    stops = sampling_params.stop_token_ids or ()
    if not sampling_params.ignore_eos:
        stops = sampling_params.all_stop_token_ids
    return min(stops, default=None)
