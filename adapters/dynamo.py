"""Dynamo: attach specs to the sampling parameters of an ``LLMEngine``, on generating workers.

Dynamo 1.6.1 declares neutral specs (``dynamo/common/backend/engine.py``), but none of its engines
realizes them. For engines that run vLLM, this module puts specs into a request's
``SamplingParams``, and ``logitport.adapters.vllm`` realizes them inside the engine. Importing it
imports neither Dynamo nor vLLM.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from msgspec import MsgspecError, Raw, ValidationError, json
from msgspec.structs import replace

from ..spec import VERSION, LogitsProcessorSpec, Payload, SpecError, Stage, decode, encode
from ..spec.base import PositiveCount
from ..spec.payload import as_given
from ..spec.texts import Given
from .backend import Specs, with_grammars
from .environment import STAGE_VARIABLE
from .vllm import BACKEND, KEY
from .vllm import attach as attach_to_vllm
from .vllm.params import Params

if TYPE_CHECKING:
    from dynamo.common.constants import DisaggregationMode  # pyright: ignore

__all__ = [
    "DynamoSpec",
    "LogitsProcessors",
    "annotation",
    "attach",
    "attach_requested",
    "extra_body",
    "from_dynamo",
    "has_specs",
    "requested",
]

_PREFIX = f"{KEY}:"
_MAX_TOKENS = "max_tokens"


@runtime_checkable
class DynamoSpec(Protocol):
    """Dynamo's ``LogitsProcessorSpec``, which an engine declares for its requests.

    Its entries are Dynamo's ``ForcedTokenSequenceSpec``: no other entry can reach vLLM's processes.
    """

    @property
    def entries(self) -> Sequence[Any]: ...

    @property
    def generation_only(self) -> bool: ...


def extra_body(
    specs: Given, *, max_tokens: int, generation_only: bool = True, continued: int = 0
) -> dict[str, Any]:
    """Make the fields of a chat or completion request to Dynamo's frontend, for the OpenAI client.

    ``client.chat.completions.create(..., extra_body=extra_body(spec, max_tokens=256))`` has specs,
    and at most 256 tokens in its reply. The reply goes on where it was if its worker dies.

    Args:
        specs: one or several, as for ``encode``.
        max_tokens: the request's own; do not give it elsewhere.
        generation_only: see ``Payload``.
        continued: see ``Payload``.

    Raises:
        SpecError: as ``annotation`` does.
    """
    text = annotation(
        specs, max_tokens=max_tokens, generation_only=generation_only, continued=continued
    )
    return {"max_tokens": max_tokens, "nvext": {"annotations": [text]}}


def annotation(
    specs: Given, *, max_tokens: int | None, generation_only: bool = True, continued: int = 0
) -> str:
    """Encode specs for ``nvext.annotations`` of a request to Dynamo's frontend.

    When a worker dies, the frontend adds the tokens of the reply to the prompt, lowers the
    request's ``max_tokens`` by their number, and asks another worker. From the difference to
    ``max_tokens`` here, that worker knows how much of its prompt is output.

    Args:
        specs: one or several, as for ``encode``.
        max_tokens: the same as the request's; ``extra_body`` sets both. With ``None``, specs begin
            again in the middle of a reply if its worker dies.
        generation_only: see ``Payload``.
        continued: see ``Payload``.

    Raises:
        SpecError: as ``encode`` does.
    """
    # An engine's own grammar would begin again on another worker.
    given = with_grammars(BACKEND, as_given(specs), continued=1)
    text = encode(given, generation_only=generation_only, continued=continued)
    decode(text)  # workers resolve no texts
    if max_tokens is not None and not generation_only:
        what = "A prefill worker cannot count what a reply continues: use max_tokens=None"
        raise SpecError(what, "generation_only")
    if max_tokens is not None:  # a worker that does not know the field refuses it
        text = f'{text[:-1]},"{_MAX_TOKENS}":{json.encode(max_tokens).decode()}}}'
        _split(text)
    return _PREFIX + text


def has_specs(request: Mapping[str, Any]) -> bool:
    """Whether a request has an annotation with specs."""
    return bool(_annotations(request))


def _annotations(request: Mapping[str, Any]) -> list[str]:
    given = request.get("annotations")
    if given is None:  # a body of a client, which workers with `--use-vllm-tokenizer` get
        given = (request.get("nvext") or {}).get("annotations")
    return [text for text in given or () if text.startswith(_PREFIX)]


def requested(request: Mapping[str, Any], stage: Stage = Stage.AGGREGATED) -> Payload | None:
    """Decode the specs in the annotations of Dynamo's ``GenerateRequest``, if it has any.

    Args:
        request: the request, or the client's body.
        stage: the worker's task. A prefill request always has a ``max_tokens`` of 1, from which
            nothing can be counted.

    Raises:
        SpecError: if the specs are wrong, there are two annotations with specs, or ``max_tokens``
            is missing in the request, or more than in the annotation.
    """
    found = _annotations(request)
    if len(found) > 1:
        raise SpecError(f"Expected one annotation {_PREFIX}..., got {len(found)}")
    if not found:
        return None
    text, total = _split(found[0].removeprefix(_PREFIX))
    payload = decode(text)
    if total is None or stage is Stage.PREFILL:
        return payload
    left = request.get("stop_conditions", request).get(_MAX_TOKENS)
    if left is None or left > total:
        what = f"Expected a request with the same max_tokens as its annotation, {total}"
        raise SpecError(f"{what}, got {'none' if left is None else left}", _MAX_TOKENS)
    return replace(payload, continued=payload.continued + total - left)


def _split(text: str) -> tuple[str, int | None]:
    """Take ``max_tokens`` out of the JSON text of an annotation."""
    try:
        fields = json.decode(text, type=dict[str, Raw])
    except (MsgspecError, UnicodeError, RecursionError):
        return text, None  # `decode` refuses it, or it is a list
    if _MAX_TOKENS not in fields:
        return text, None
    try:
        total = json.decode(fields.pop(_MAX_TOKENS), type=PositiveCount)
    except ValidationError as error:
        raise SpecError(str(error), _MAX_TOKENS) from None
    return json.encode(fields).decode(), total


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
    continued: int = 0,
) -> Params:
    """Make ``specs`` the specs of a request, if the worker generates.

    Args:
        sampling_params: vLLM's parameters, changed in place and returned.
        specs: one or several, or the result of Dynamo's ``logits_processor_spec()``.
        disaggregation_mode: the worker's task for the request.
        generation_only: ``False`` attaches them on prefill workers too. Dynamo's spec has a value
            of its own.
        continued: see ``Payload``.

    Raises:
        SpecError: as ``from_dynamo`` does, and ``logitport.adapters.vllm.attach``.
    """
    if isinstance(specs, DynamoSpec):
        specs, generation_only = from_dynamo(specs), specs.generation_only
    return attach_to_vllm(
        sampling_params,
        specs,
        stage=_stage(disaggregation_mode),
        generation_only=generation_only,
        continued=continued,
    )


def _stage(disaggregation_mode: "DisaggregationMode") -> Stage:
    return Stage(getattr(disaggregation_mode, "value", disaggregation_mode))


def attach_requested(
    sampling_params: Params,
    request: Mapping[str, Any],
    *,
    disaggregation_mode: "DisaggregationMode",
    otherwise: Payload | None = None,
) -> Params:
    """Attach the specs of a request's annotations, or other specs if it has none.

    Raises:
        InvalidArgument: if specs are wrong, or the rest of the request contradicts them. Dynamo's
            frontend answers this error with HTTP 400 and the message.
    """
    from dynamo.llm.exceptions import InvalidArgument

    try:
        payload = requested(request, _stage(disaggregation_mode)) or otherwise
        if payload is not None:
            attach(
                sampling_params,
                payload.specs,
                disaggregation_mode=disaggregation_mode,
                generation_only=payload.generation_only,
                continued=payload.continued,
            )
    except SpecError as error:
        raise InvalidArgument(f"{KEY}: {error}") from None
    return sampling_params


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
        os.environ[STAGE_VARIABLE] = _stage(self.disaggregation_mode)

    async def activate_logits_processors(
        self, sampling_params: Params, request: Mapping[str, Any]
    ) -> Params:
        """Attach the specs that act on Dynamo's ``GenerateRequest``.

        Args:
            sampling_params: vLLM's, with all other settings; changed in place and returned.
            request: the request.

        Raises:
            InvalidArgument: as ``attach_requested`` does.
            RuntimeError: if the engine declares specs that cannot be attached to any request.
        """
        declared = None if has_specs(request) else await self._declared()
        mode = self.disaggregation_mode
        return attach_requested(
            sampling_params, request, disaggregation_mode=mode, otherwise=declared
        )

    async def _declared(self) -> Payload | None:
        declared = await self.logits_processor_spec()
        if declared is None or not declared.entries:
            return None
        try:
            return Payload(VERSION, from_dynamo(declared), declared.generation_only)  # pyright: ignore
        except SpecError as error:  # not the client's fault
            raise RuntimeError(f"logits_processor_spec(): {error}") from None
