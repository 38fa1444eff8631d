"""The fields with which an OpenAI client sends specs to an engine's server."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from ...spec import GrammarSpec, LogitsProcessorSpec, NativeSpec, SpecError, Stage, StandIn, encode
from ...spec.payload import as_given, specs_of
from ...spec.texts import Entry, Given
from ..backend import Backend, backend, with_grammars
from ..native import fields_of
from .key import KEY
from .schema_carrier import format_with

Carrier = Literal["field", "schema"]
"""What carries a payload: the engine's own ``field``, or the JSON ``schema`` of the answer."""

_STANDARD = {"temperature", "top_p", "presence_penalty", "frequency_penalty"}
"""OpenAI's fields, which gateways pass on, of those that native kinds set."""


def extra_body(
    engine: str,
    specs: Given,
    *,
    stage: Stage = Stage.AGGREGATED,
    generation_only: bool = True,
    continued: int = 0,
    carrier: Carrier = "field",
) -> dict[str, Any]:
    """Make the ``extra_body`` with which an OpenAI client sends specs to an engine's server.

    A gateway merges the result into the JSON body of a request; no engine need be installed. A
    client without the model's tokenizer passes objects as they are on the wire, with texts::

        extra_body("vllm", {"kind": "choice", "texts": ["yes", "no"]})

    Some gateways drop fields that they do not know, such as an engine's own. All that were tried
    pass ``response_format``, which ``carrier="schema"`` uses. The server's ``SpecMiddleware``
    moves the payload to the engine's field. A server without logitport answers
    ``{"logitport":"missing"}``.

    Args:
        engine: the name of an installed backend that has a server.
        specs: one or several, each a spec or an object of the wire, or a payload or its JSON text;
            for an empty sequence the result is empty.
        stage: the stage of the server that gets the request. A prefill server gets native kinds at
            most, if it chooses the first token.
        generation_only: see ``Payload``.
        continued: the number of the prompt's last tokens that count as output; see ``Payload``.
        carrier: what carries the payload through a gateway, for chats and completions.

    Raises:
        SpecError: if the backend is not installed, has no server or does not support a spec, if
            two specs conflict, or if a limit is exceeded; with ``carrier="schema"``, for a native
            kind that needs a field of the engine's own.
    """
    if engine == "dynamo":
        what = "Dynamo takes specs in `nvext.annotations`"
        raise SpecError(f"{what}: use `annotation` of logitport.adapters.dynamo, docs/dynamo.md")
    asked = backend(engine)
    given = with_grammars(asked, as_given(specs), continued)
    specs = specs_of(given, StandIn())
    if asked.body is None:
        raise SpecError(f"{engine} has no server that an OpenAI client could ask")
    if carrier not in get_args(Carrier):
        raise SpecError(f"Expected the carrier {' or '.join(get_args(Carrier))}, got {carrier!r}")
    if not specs:
        return {}
    asked.check(specs)
    encode(given, generation_only=generation_only, continued=continued)  # checks all together
    payload = payload_of(given, generation_only, continued)
    if not Stage(stage).is_active(generation_only):
        native = [spec for spec in specs if isinstance(spec, NativeSpec)]
        specs, payload = native if asked.prefill_samples else [], None
    if carrier == "schema":
        return _in_schema(asked, specs, generation_only, payload)
    body = asked.body(specs, generation_only) if specs else {}
    for field in body.values():
        if isinstance(field, dict) and KEY in field:
            field[KEY] = payload
    return body


def payload_of(
    given: Sequence[LogitsProcessorSpec | Entry], generation_only: bool, continued: int = 0
) -> str | None:
    """Encode what a request carries in a payload; ``None`` if all specs are native."""
    pairs = zip(given, specs_of(given, StandIn()), strict=True)
    carried = [each for each, spec in pairs if not isinstance(spec, NativeSpec)]
    if not carried:
        return None
    return encode(carried, generation_only=generation_only, continued=continued)


def _in_schema(
    asked: Backend,
    specs: Sequence[LogitsProcessorSpec],
    generation_only: bool,
    payload: str | None,
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
    if payload is not None or schema is not None:
        fields["response_format"] = format_with(payload, schema)
    return fields
