"""Specs on their way through SGLang's per-request parameters."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...spec import LogitsProcessorSpec, SpecError, Stage
from ...spec.base import several
from ...spec.conflicts import BREAKS_GRAMMAR
from ..back_end import payload_for
from ..counters import count
from ..own_fields import check_own_fields
from .back_end import BACK_END, KEY, PROCESSOR
from .native import GRAMMARS, sampling_fields
from .own_fields import own_fields

Request = dict[str, Any]
"""The arguments of ``Engine.generate`` for one prompt, or the body of a ``POST /generate``."""


def attach(
    request: Request,
    specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec],
    *,
    stage: Stage = Stage.AGGREGATED,
    generation_only: bool = True,
) -> Request:
    """Make ``specs`` the specs of a request that goes to a worker in ``stage``.

    A worker that does not generate is sent none. Whatever specs the request carried before are
    replaced, so attaching twice is attaching once; other keys of ``custom_params`` are left alone.

    Native kinds (``grammar``, ``sampling``) become fields of ``sampling_params``, and are no part
    of the payload, whatever the stage: SGLang's prefill workers choose the first token. What has
    once been set so is the request's own: attaching other specs later does not take it off.

    Args:
        request: changed in place; its ``sampling_params`` are copied.
        specs: one or several; none takes them off.
        stage: what the worker does for this request.
        generation_only: ``False`` sends the specs to prefill workers too; see ``Payload``.

    Returns:
        ``request``.

    Raises:
        SpecError: as ``encode`` does, whatever the stage, and if a spec conflicts with what the
            request says already, or it is the body of a chat. Nothing has been changed then.
    """
    specs, stage = several(specs), Stage(stage)
    if not isinstance(request, dict):
        raise SpecError(f"Expected the arguments of a request, got {type(request).__name__}")
    if "messages" in request:
        raise SpecError("A chat takes no sampling_params: send extra_body('sglang', specs) with it")
    sampling_params = _copied(request.get("sampling_params"), "sampling_params")
    custom_params = _copied(sampling_params.pop("custom_params", None), "custom_params")
    custom_params.pop(KEY, None)
    processor = request.get("custom_logit_processor")
    if processor == PROCESSOR:
        processor = None
    acts = stage.takes_specs(generation_only)
    if specs:
        payload = payload_for(BACK_END, specs, stage, generation_only)
        sampling_params |= _lowered(sampling_params, specs)
        if payload is not None:
            if processor is not None:
                raise SpecError("The request has a custom_logit_processor, and SGLang takes one")
            processor = PROCESSOR
            custom_params[KEY] = payload
    if custom_params:
        sampling_params["custom_params"] = custom_params
    request["sampling_params"] = sampling_params
    request["custom_logit_processor"] = processor
    if specs:
        count("attached" if acts else "gated", stage)
    return request


def _copied(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping | None):
        raise SpecError(f"Expected {name} of one request, got {type(value).__name__}")
    return dict(value or {})


def _lowered(
    sampling_params: Mapping[str, Any], specs: Sequence[LogitsProcessorSpec]
) -> dict[str, Any]:
    check_request(sampling_params, specs)
    fields = sampling_fields(specs)
    for name, (value, path) in fields.items():
        alike = GRAMMARS if name in GRAMMARS else (name,)  # one grammar excludes the others
        for other in alike:
            if sampling_params.get(other) not in (None, "", value if other == name else None):
                raise SpecError(f"Conflicts with the request, which sets {other}", path)
    return {name: value for name, (value, _) in fields.items()}


def check_request(
    sampling_params: Mapping[str, Any],
    specs: Sequence[LogitsProcessorSpec],
    eos_token_ids: Iterable[int] = (),
) -> None:
    """Refuse specs that contradict the fields which the request has besides.

    Args:
        sampling_params: the request's.
        specs: of the request.
        eos_token_ids: the model's, where they are known.

    Raises:
        SpecError: for a contradiction that is certain. Message and path name the spec and the
            field.
    """
    _check_grammar_is_followed(sampling_params, specs)
    check_own_fields(specs, own_fields(sampling_params, eos_token_ids))


def _check_grammar_is_followed(
    sampling_params: Mapping[str, Any], specs: Sequence[LogitsProcessorSpec]
) -> None:
    """Hold specs to a grammar that the request has by itself, as to a ``GrammarSpec``."""
    grammar = next((name for name in GRAMMARS if sampling_params.get(name)), None)
    for i, spec in enumerate(specs):
        if grammar and isinstance(spec, BREAKS_GRAMMAR):
            what = f"which may not take the tokens that `{spec.kind}` forces"
            raise SpecError(f"Conflicts with the request's {grammar}, {what}", f"$.specs[{i}]")
