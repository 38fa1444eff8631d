"""Specs on their way through vLLM's per-request parameters."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from ...spec import VERSION, LivePayload, LogitsProcessorSpec, PythonProcessorSpec, Stage, encode

KEY = "logitport"
"""Where the payload is in ``SamplingParams.extra_args``, and in ``vllm_xargs`` over HTTP."""


class HasExtraArgs(Protocol):
    """``vllm.SamplingParams``, or anything that carries its ``extra_args`` to one."""

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

    Args:
        sampling_params: the request's parameters, changed in place.
        specs: one or several; none takes them off. With a ``PythonProcessorSpec`` among them they
            are attached as live objects, which only an engine in this very process admits.
        stage: what the worker does for this request.
        generation_only: ``False`` sends the specs to prefill workers too; see ``Payload``.

    Returns:
        ``sampling_params``.

    Raises:
        SpecError: as ``encode`` does, whatever the stage.
    """
    # A new dict: callers share one among requests.
    extra_args = dict(sampling_params.extra_args or {})
    extra_args.pop(KEY, None)
    specs = (specs,) if isinstance(specs, LogitsProcessorSpec) else specs
    if len(specs):
        if any(isinstance(spec, PythonProcessorSpec) for spec in specs):
            payload = LivePayload(VERSION, tuple(specs), generation_only)  # pyright: ignore
        else:
            payload = encode(specs, generation_only=generation_only)
        if stage.generates or not generation_only:
            extra_args[KEY] = payload
    sampling_params.extra_args = extra_args or None
    return sampling_params
