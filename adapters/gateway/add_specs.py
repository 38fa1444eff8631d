"""Specs that a gateway adds to those that a client has sent."""

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, cast

from ...spec import SpecError, StandIn, decode
from ...spec.payload import as_given
from ...spec.texts import Given
from ..backend import backend
from .extra_body import Carrier, extra_body
from .json_body import Fields, inner
from .key import KEY
from .schema_carrier import KEYWORD, take_payloads


def add_specs(
    body: Mapping[str, Any], engine: str, specs: Given, *, carrier: Carrier = "field"
) -> dict[str, Any]:
    """Add specs to the JSON body of a chat or completion, after those that it has.

    For a gateway, which knows what its tenants' requests need. It also is how specs come into a
    body that has none. The engine checks all specs together, too, but here the gateway can refuse
    what a client has sent beside its own.

    Examples:
        >>> import json
        >>> body = {"prompt": "Hi", "vllm_xargs": {"logitport": '[{"kind":"dry","multiplier":1}]'}}
        >>> sent = add_specs(body, "vllm", {"kind": "banned_text", "texts": ["Acme"]})
        >>> [each["kind"] for each in json.loads(sent["vllm_xargs"]["logitport"])["specs"]]
        ['dry', 'banned_text']

    Args:
        body: the body, which stays as it is.
        engine: as for ``extra_body``.
        specs: as for ``extra_body``.
        carrier: as for ``extra_body``; it carries the client's specs, too.

    Returns:
        The new body.

    Raises:
        SpecError: as ``extra_body`` does, for all specs together; for a payload that cannot be
            read, and for a field of the body that a native kind would set to another value.
    """
    fields: Fields = deepcopy(dict(body))
    place = str(backend(engine).routes.get("/v1/chat/completions"))
    sent = [payload for _, payload in take_payloads(fields, frozenset({KEYWORD}))]
    holder = inner(fields, place)
    if holder is not None and KEY in holder:
        sent.append(holder.pop(KEY))
    if len(sent) > 1:
        raise SpecError.of_field(f"Expected specs once, in `{place}.{KEY}` or in a schema", place)
    every, settings = [*as_given(specs)], dict[str, Any]()
    if sent:
        payload = decode(sent[0], StandIn())
        content: Any = json.loads(sent[0]) if isinstance(sent[0], str) else sent[0]
        own: Any = content if isinstance(content, list) else content["specs"]
        every = [*as_given(own), *every]
        settings = {"generation_only": payload.generation_only, "continued": payload.continued}
    added = extra_body(engine, every, carrier=carrier, **settings)
    schema = inner(fields, "response_format", "json_schema", "schema")
    if carrier == "schema" and schema is not None and "response_format" in added:
        asked = added.pop("response_format")["json_schema"]["schema"]
        if KEYWORD not in asked:
            raise SpecError.of_field("Two schemas for one answer", "response_format")
        schema[KEYWORD] = asked[KEYWORD]
    _merge(fields, added, ())
    return fields


def _merge(fields: Fields, added: Mapping[str, Any], path: tuple[str, ...]) -> None:
    """Set fields.

    Raises:
        SpecError: for one that has another value.
    """
    for name, value in added.items():
        own = fields.get(name)
        if isinstance(own, dict) and isinstance(value, Mapping):
            _merge(cast("Fields", own), cast("Mapping[str, Any]", value), (*path, name))
        elif own is not None and own != value:
            where = ".".join((*path, name))
            what = f"The request has {own!r:.50}, and the specs to add have {value!r:.50}"
            raise SpecError.of_field(what, where)
        else:
            fields[name] = value
