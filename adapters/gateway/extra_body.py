"""The fields with which an OpenAI client sends specs to an engine's server."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from ...spec import GrammarSpec, LogitsProcessorSpec, NativeSpec, SpecError, Stage, encode
from ...spec.base import as_specs, processor_specs
from ..backend import Backend, Specs, backend
from ..native import fields_of
from .schema_carrier import format_with

Carrier = Literal["field", "schema"]
"""What carries a payload: the engine's own ``field``, or the JSON ``schema`` of the answer."""

_STANDARD = {"temperature", "top_p", "presence_penalty", "frequency_penalty"}
"""OpenAI's fields, which gateways pass on, of those that native kinds set."""


def extra_body(
    engine: str,
    specs: Specs,
    *,
    stage: Stage = Stage.AGGREGATED,
    generation_only: bool = True,
    carrier: Carrier = "field",
) -> dict[str, Any]:
    """Make the ``extra_body`` with which an OpenAI client sends specs to an engine's server.

    A gateway merges the result into the JSON body of a request; no engine need be installed.

    Some gateways drop fields that they do not know, such as an engine's own. All that were tried
    pass ``response_format``, which ``carrier="schema"`` uses. The server's ``SpecMiddleware``
    moves the payload to the engine's field. A server without logitport answers
    ``{"logitport":"missing"}``.

    Args:
        engine: the name of an installed backend that has a server.
        specs: one or several; for an empty sequence the result is empty.
        stage: the stage of the server that gets the request. A prefill server gets native kinds at
            most, if it chooses the first token.
        generation_only: see ``Payload``.
        carrier: what carries the payload through a gateway, for chats and completions.

    Raises:
        SpecError: if the backend is not installed, has no server or does not support a spec, if
            two specs conflict, or if a limit is exceeded; with ``carrier="schema"``, for a native
            kind that needs a field of the engine's own.
    """
    specs = as_specs(specs)
    asked = backend(engine)
    if asked.body is None:
        raise SpecError(f"{engine} has no server that an OpenAI client could ask")
    if carrier not in get_args(Carrier):
        raise SpecError(f"Expected the carrier {' or '.join(get_args(Carrier))}, got {carrier!r}")
    if not specs:
        return {}
    asked.check(specs)
    encode(specs, generation_only=generation_only)  # checks the specs together
    if not Stage(stage).is_active(generation_only):
        native = [spec for spec in specs if isinstance(spec, NativeSpec)]
        specs = native if asked.prefill_samples else []
    if carrier == "schema":
        return _in_schema(asked, specs, generation_only)
    return asked.body(specs, generation_only) if specs else {}


def _in_schema(
    asked: Backend, specs: Sequence[LogitsProcessorSpec], generation_only: bool
) -> dict[str, Any]:
    """Put the payload into ``response_format``, and native kinds into fields of OpenAI's."""
    assert asked.body is not None
    schema, fields = None, dict[str, Any]()
    for i, spec in enumerate(specs):
        if isinstance(spec, GrammarSpec) and spec.json_schema is not None:
            schema = fields_of(spec)["json_schema"]
        elif isinstance(spec, NativeSpec):
            own = asked.body([spec], generation_only)
            if lost := own.keys() - _STANDARD:
                what = f"{', '.join(sorted(lost))}, which carrier='schema' cannot replace"
                raise SpecError(f"`{spec.kind}` needs the field {what}", "specs", i)
            fields |= own
    carried = processor_specs(specs)
    if carried or schema is not None:
        payload = encode(carried, generation_only=generation_only) if carried else None
        fields["response_format"] = format_with(payload, schema)
    return fields
