"""Dynamo: attach specs to the sampling parameters of an ``LLMEngine``, on generating workers.

Dynamo 1.6.1 declares neutral specs (``dynamo/common/backend/engine.py``), but none of its engines
realizes them. For engines that run vLLM, this module puts specs into a request's
``SamplingParams``, and ``logitport.adapters.vllm`` realizes them inside the engine. Importing it
imports neither Dynamo nor vLLM.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..spec import VERSION, LogitsProcessorSpec, Payload, SpecError, Stage, decode, encode
from .backend import Specs
from .environment import STAGE_VARIABLE
from .vllm import KEY
from .vllm import attach as attach_to_vllm
from .vllm.params import Params

if TYPE_CHECKING:
    from dynamo.common.constants import DisaggregationMode  # pyright: ignore

__all__ = ["DynamoSpec", "LogitsProcessors", "annotation", "attach", "from_dynamo", "requested"]

_PREFIX = f"{KEY}:"


@runtime_checkable
class DynamoSpec(Protocol):
    """Dynamo's ``LogitsProcessorSpec``, which an engine declares for its requests.

    Its entries are Dynamo's ``ForcedTokenSequenceSpec``: no other entry can reach vLLM's processes.
    """

    @property
    def entries(self) -> Sequence[Any]: ...

    @property
    def generation_only(self) -> bool: ...


def annotation(specs: Specs, *, generation_only: bool = True) -> str:
    """Encode specs for ``nvext.annotations`` of a request to Dynamo's frontend.

    With the OpenAI client: ``extra_body={"nvext": {"annotations": [annotation(spec)]}}``. The
    frontend passes the annotations of a chat or completion request to the workers unchanged.

    Raises:
        SpecError: as ``encode`` does.
    """
    return _PREFIX + encode(specs, generation_only=generation_only)


def requested(request: Mapping[str, Any]) -> Payload | None:
    """Decode the specs in the annotations of Dynamo's ``GenerateRequest``, if it has any.

    Raises:
        SpecError: if the specs are wrong, or there are two annotations with specs.
    """
    found = [text for text in request.get("annotations") or () if text.startswith(_PREFIX)]
    if len(found) > 1:
        raise SpecError(f"Expected one annotation {_PREFIX}..., got {len(found)}")
    return decode(found[0].removeprefix(_PREFIX)) if found else None


def from_dynamo(spec: DynamoSpec) -> tuple[LogitsProcessorSpec, ...]:
    """Convert the entries of Dynamo's ``LogitsProcessorSpec`` to logitport's specs.

    Raises:
        SpecError: for an entry that cannot be serialized (``PythonProcessorSpec`` holds a live
            factory), or that is not valid as a spec of logitport.
    """
    from dynamo.common.backend.engine import (  # pyright: ignore
        serialize_logits_processor_entries,
    )

    entries: list[dict[str, Any]] = []
    for i, entry in enumerate(spec.entries):
        try:
            entries += serialize_logits_processor_entries([entry])
        except TypeError as error:
            raise SpecError(str(error), i) from None
    return decode(entries).specs if entries else ()


def attach(
    sampling_params: Params,
    specs: Specs | DynamoSpec,
    *,
    disaggregation_mode: "DisaggregationMode",
    generation_only: bool = True,
) -> Params:
    """Make ``specs`` the specs of a request, if the worker generates.

    Args:
        sampling_params: vLLM's parameters, changed in place and returned.
        specs: one or several, or the result of Dynamo's ``logits_processor_spec()``.
        disaggregation_mode: the worker's task for the request.
        generation_only: ``False`` attaches them on prefill workers too. Dynamo's spec has a value
            of its own.

    Raises:
        SpecError: as ``from_dynamo`` does, and ``logitport.adapters.vllm.attach``.
    """
    if isinstance(specs, DynamoSpec):
        specs, generation_only = from_dynamo(specs), specs.generation_only
    stage = Stage(getattr(disaggregation_mode, "value", disaggregation_mode))
    return attach_to_vllm(sampling_params, specs, stage=stage, generation_only=generation_only)


class LogitsProcessors:
    """A mixin for an ``LLMEngine`` that runs vLLM. It goes before the engine's other bases.

    ``start`` calls ``declare_stage`` before it creates vLLM, and ``generate`` calls
    ``activate_logits_processors`` with the parameters for vLLM. On a request without specs of its
    own, the specs of ``LLMEngine.logits_processor_spec`` act. It is called for every request: cache
    its result.

    Attributes:
        disaggregation_mode: the worker's task, as in its ``WorkerConfig``.
    """

    disaggregation_mode: "DisaggregationMode"

    if TYPE_CHECKING:  # LLMEngine has it

        async def logits_processor_spec(self) -> DynamoSpec | None: ...

    def declare_stage(self) -> None:
        """Pass this worker's stage to vLLM's processes, whose configuration may not contain it."""
        os.environ[STAGE_VARIABLE] = Stage(self.disaggregation_mode.value)

    async def activate_logits_processors(
        self, sampling_params: Params, request: Mapping[str, Any]
    ) -> Params:
        """Attach the specs that act on Dynamo's ``GenerateRequest``.

        Args:
            sampling_params: vLLM's, with all other settings; changed in place and returned.
            request: the request.

        Raises:
            InvalidArgument: if specs are wrong, or the rest of the request contradicts them.
                Dynamo's frontend answers this error with HTTP 400 and the message.
            RuntimeError: if the engine declares specs that cannot be attached to any request.
        """
        from dynamo.llm.exceptions import InvalidArgument

        try:
            payload = requested(request) or await self._declared()
            if payload is not None:
                attach(
                    sampling_params,
                    payload.specs,
                    disaggregation_mode=self.disaggregation_mode,
                    generation_only=payload.generation_only,
                )
        except SpecError as error:
            raise InvalidArgument(f"{KEY}: {error}") from None
        return sampling_params

    async def _declared(self) -> Payload | None:
        declared = await self.logits_processor_spec()
        if declared is None or not declared.entries:
            return None
        try:
            return Payload(VERSION, from_dynamo(declared), declared.generation_only)  # pyright: ignore
        except SpecError as error:  # not the client's fault
            raise RuntimeError(f"logits_processor_spec(): {error}") from None
