"""Specs on their way through SGLang's per-request parameters."""

from collections.abc import Mapping
from typing import Any

from ...spec import SpecError, Stage
from ...spec.texts import Given
from ..attachment import Attachment
from .backend import BACKEND, PROCESSOR
from .native import GRAMMARS, sampling_fields
from .own_fields import own_fields

ATTACHMENT = Attachment(BACKEND, sampling_fields, GRAMMARS, own_fields)

check_request = ATTACHMENT.check

Request = dict[str, Any]
"""The arguments of ``Engine.generate`` for one prompt, or the body of a ``POST /generate``."""


def attach(
    request: Request,
    specs: Given,
    *,
    stage: Stage = Stage.AGGREGATED,
    generation_only: bool = True,
    continued: int = 0,
) -> Request:
    """Make ``specs`` the specs of a request that goes to a worker in ``stage``.

    A worker that does not generate gets no specs. Earlier specs of the request are replaced; other
    keys of ``custom_params`` are not changed. Native kinds (``grammar``, ``sampling``) become
    fields of ``sampling_params`` in any stage: SGLang's prefill workers choose the first token.
    Attaching other specs later does not reset those fields.

    Args:
        request: changed in place and returned; its ``sampling_params`` are copied.
        specs: one or several, also as JSON (see ``extra_body``), with texts for the engine's
            tokenizer; an empty sequence removes earlier specs.
        stage: the worker's task for this request.
        generation_only: ``False`` sends the specs to prefill workers too; see ``Payload``.
        continued: the number of the prompt's last tokens that count as output; see ``Payload``.

    Raises:
        SpecError: as ``encode`` does, in any stage; if a spec conflicts with a field of the
            request, or the request is the body of a chat. Nothing has been changed then.
    """
    if not isinstance(request, dict):
        raise SpecError(f"Expected the arguments of a request, got {type(request).__name__}")
    if "messages" in request:
        raise SpecError("A chat takes no sampling_params: send extra_body('sglang', specs) with it")
    sampling_params = _copied(request.get("sampling_params"), "sampling_params")
    custom_params = _copied(sampling_params.pop("custom_params", None), "custom_params")
    processor = request.get("custom_logit_processor")
    if processor == PROCESSOR:
        processor = None
    with ATTACHMENT.attaching(
        sampling_params, specs, stage, generation_only, continued
    ) as attached:
        if attached.payload is not None:
            if processor is not None:
                raise SpecError("The request has a custom_logit_processor, and SGLang takes one")
            processor = PROCESSOR
        sampling_params |= attached.fields
        if custom_params := attached.put_into(custom_params):
            sampling_params["custom_params"] = custom_params
        request["sampling_params"] = sampling_params
        request["custom_logit_processor"] = processor
    return request


def _copied(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping | None):
        raise SpecError(f"Expected {name} of one request, got {type(value).__name__}")
    return dict(value or {})
