"""Specs that a gateway adds to those that a client has sent."""

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, cast

from ...spec import GrammarSpec, SpecError, StandIn, decode
from ...spec.errors import Name
from ...spec.payload import as_given, specs_of
from ...spec.texts import Given
from ..backend import backend
from .extra_body import Carrier, extra_body
from .json_body import Fields, inner
from .key import KEY
from .schema_carrier import KEYWORD, take_payloads

_OF_OTHERS = {"sampling_params": object, "input_ids": object, "text": str | list}
"""Fields of engines' own routes, whose bodies have specs elsewhere, and the types of their values.
"""

_GRAMMARS = (
    *("response_format", "structured_outputs"),
    *("json_schema", "regex", "ebnf", "structural_tag"),
)
"""The fields of chats and completions, over all engines, that ask for a grammar."""


def add_specs(
    body: Mapping[str, Any], engine: str, specs: Given, *, carrier: Carrier = "field"
) -> dict[str, Any]:
    """Add specs to the JSON body of a chat or completion, after those that it has.

    It compares fields of the body that native kinds set, grammars, and what the specs themselves
    say. What needs the model's tokens is for the engine to compare.

    For a gateway, which knows what its tenants' requests need. It also is how specs come into a
    body that has none; and with no specs to add, it checks those of the client.

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
            read, for a body of another route, and for a field of the body that a native kind would
            set to another value. A path names a client's spec by its index, and no added one.
    """
    try:
        fields: Fields = deepcopy(dict(body))
    except RecursionError:
        raise SpecError("Expected a body that is not nested so deeply") from None
    for name, kinds in _OF_OTHERS.items():
        if name in fields and isinstance(fields[name], kinds):
            what = "Expected the body of a chat or completion, got that of an engine's own route"
            raise SpecError.of_field(what, name)
    place = str(backend(engine).routes.get("/v1/chat/completions"))
    sent = [payload for _, payload in take_payloads(fields, frozenset({KEYWORD}))]
    holder = inner(fields, place)
    if holder is not None and KEY in holder:
        sent.append(holder.pop(KEY))
    if len(sent) > 1:
        raise SpecError.of_field(f"Expected specs once, in `{place}.{KEY}` or in a schema", place)
    given, own, settings = as_given(specs), list[Any](), dict[str, Any]()
    if sent:
        payload = decode(sent[0], StandIn())
        content: Any = json.loads(sent[0]) if isinstance(sent[0], str) else sent[0]
        own = [*as_given(content if isinstance(content, list) else content["specs"])]
        settings = {"generation_only": payload.generation_only, "continued": payload.continued}
    try:
        added = extra_body(engine, [*own, *given], carrier=carrier, **settings)
    except SpecError as error:
        added_one = Name("a spec to add")
        raise error.specs_at(
            lambda i: ("specs", i) if i < len(own) else (added_one,)
        ) from error.__cause__
    grammars = [each for each in specs_of(given, StandIn()) if isinstance(each, GrammarSpec)]
    for name in _GRAMMARS if grammars else ():
        asked = fields.get(name)
        if asked and asked != added.get(name) and (inner(fields, name) or {}).get("type") != "text":
            raise SpecError.of_field("Conflicts with a grammar to add", name)
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
            what = "The request has another value here than the specs to add"
            raise SpecError.of_field(what, ".".join((*path, name)))
        else:
            fields[name] = value
