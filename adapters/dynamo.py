"""Dynamo: attach specs to what an ``LLMEngine`` generates with, on the workers that generate.

Dynamo 1.6.1 declares neutral specs (``dynamo/common/backend/engine.py``), and no engine of it
realizes them. Here is the missing half, for engines that are vLLM's: specs become part of a
request's ``SamplingParams``, and ``logitport.adapters.vllm`` realizes them inside the engine.

Importing this module imports neither Dynamo nor vLLM; a client that only writes an ``annotation``
needs neither.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..spec import VERSION, LogitsProcessorSpec, Payload, SpecError, Stage, decode, encode
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
    """Dynamo's ``LogitsProcessorSpec``: what an engine declares for its requests."""

    @property
    def entries(self) -> Sequence[Any]:
        """Dynamo's ``ForcedTokenSequenceSpec``; any other cannot reach vLLM's processes."""
        ...

    @property
    def generation_only(self) -> bool:
        """Whether workers that do not generate are sent none."""
        ...


def annotation(
    specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec], *, generation_only: bool = True
) -> str:
    """Specs as a client of Dynamo's frontend sends them: ``nvext.annotations`` of the request.

    ``extra_body={"nvext": {"annotations": [annotation(spec)]}}``, with the OpenAI client. Of what
    a chat or completion request may bring, annotations are what the frontend hands to the workers
    as it is.

    Args:
        specs: one spec, or several.
        generation_only: see ``Payload``.

    Raises:
        SpecError: as ``encode`` does.
    """
    return _PREFIX + encode(specs, generation_only=generation_only)


def requested(request: Mapping[str, Any]) -> Payload | None:
    """What a request brings to ``LLMEngine.generate`` in its annotations.

    Args:
        request: Dynamo's ``GenerateRequest``.

    Returns:
        The specs; ``None`` if it brings none.

    Raises:
        SpecError: if they are wrong, or there are two annotations with specs.
    """
    found = [text for text in request.get("annotations") or () if text.startswith(_PREFIX)]
    if len(found) > 1:
        raise SpecError(f"Expected one annotation {_PREFIX}..., got {len(found)}")
    return decode(found[0].removeprefix(_PREFIX)) if found else None


def from_dynamo(spec: DynamoSpec) -> tuple[LogitsProcessorSpec, ...]:
    """The entries of Dynamo's ``LogitsProcessorSpec`` as specs of ours.

    Raises:
        SpecError: for an entry that cannot be serialized (``PythonProcessorSpec`` holds a live
            factory), or says what a spec of ours may not.
    """
    from dynamo.common.backend.engine import (  # pyright: ignore
        serialize_logits_processor_entries,
    )

    entries: list[dict[str, Any]] = []
    for i, entry in enumerate(spec.entries):
        try:
            entries += serialize_logits_processor_entries([entry])
        except TypeError as error:
            raise SpecError(str(error), f"$[{i}]") from None
    return decode(entries).specs if entries else ()


def attach(
    sampling_params: Params,
    specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec] | DynamoSpec,
    *,
    disaggregation_mode: "DisaggregationMode",
    generation_only: bool = True,
) -> Params:
    """Make ``specs`` the specs of a request, if the worker is one that generates.

    Args:
        sampling_params: vLLM's, changed in place.
        specs: one or several of ours; or what Dynamo's ``logits_processor_spec()`` returns.
        disaggregation_mode: what the worker does for the request.
        generation_only: ``False`` attaches them on prefill workers too. Dynamo's spec says it
            itself.

    Returns:
        ``sampling_params``.

    Raises:
        SpecError: as ``from_dynamo`` does, and ``logitport.adapters.vllm.attach``.
    """
    if isinstance(specs, DynamoSpec):
        specs, generation_only = from_dynamo(specs), specs.generation_only
    stage = Stage(getattr(disaggregation_mode, "value", disaggregation_mode))
    return attach_to_vllm(sampling_params, specs, stage=stage, generation_only=generation_only)


class LogitsProcessors:
    """Mixin for an ``LLMEngine`` that runs vLLM; it goes before the engine's other bases.

    ``start`` calls ``declare_stage``, before there is a vLLM, and ``generate`` calls
    ``activate_logits_processors`` with what it is about to give to vLLM. A request is subject to
    the specs that it brings; one that brings none, to what the engine declares
    (``LLMEngine.logits_processor_spec``, which is asked for every request: keep what it returns).

    Attributes:
        disaggregation_mode: what the worker does, as in its ``WorkerConfig``.
    """

    disaggregation_mode: "DisaggregationMode"

    if TYPE_CHECKING:  # LLMEngine has it

        async def logits_processor_spec(self) -> DynamoSpec | None: ...

    def declare_stage(self) -> None:
        """Tell vLLM's processes, which come later, what this worker does.

        Their configuration need not say it. What acts there by itself, the environment hook for
        example, acts where a reply is generated.
        """
        os.environ[STAGE_VARIABLE] = Stage(self.disaggregation_mode.value)

    async def activate_logits_processors(
        self, sampling_params: Params, request: Mapping[str, Any]
    ) -> Params:
        """Attach what acts on a request.

        Args:
            sampling_params: vLLM's, with all that the request says otherwise; changed in place.
            request: Dynamo's ``GenerateRequest``.

        Returns:
            ``sampling_params``.

        Raises:
            InvalidArgument: Dynamo's, which its frontend answers with HTTP 400 and the message; for
                specs that are wrong, or that the rest of the request contradicts.
            RuntimeError: if the engine declares what cannot be attached to any request.
        """
        from dynamo.llm.exceptions import InvalidArgument

        try:
            payload = requested(request) or await self._declared()
            if payload is None:
                return sampling_params
            return attach(
                sampling_params,
                payload.specs,
                disaggregation_mode=self.disaggregation_mode,
                generation_only=payload.generation_only,
            )
        except SpecError as error:
            raise InvalidArgument(f"{KEY}: {error}") from None

    async def _declared(self) -> Payload | None:
        declared = await self.logits_processor_spec()
        if declared is None or not declared.entries:
            return None
        try:
            return Payload(VERSION, from_dynamo(declared), declared.generation_only)  # pyright: ignore
        except SpecError as error:  # not the client's fault
            raise RuntimeError(f"logits_processor_spec(): {error}") from None
