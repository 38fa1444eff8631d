"""The carrier that passes gateways: a keyword of the JSON Schema in ``response_format``.

A gateway that rebuilds requests of the fields it knows drops an engine's own fields. It passes a
schema on as it is. A server without logitport ignores the keyword and obeys the schema, which
makes the loss visible: the answer is ``{"logitport":"missing"}``.
"""

from collections.abc import Iterator, Mapping, Set
from typing import Any

from ...spec import SpecError, StandIn, decode
from .json_body import Fields, encode, inner, keys_in
from .key import KEY, check_spelling

KEYWORD = f"x-{KEY}"
"""The keyword of the schema that has the payload, and the name of a format that has nothing else.

A format of another name and schema is the caller's own: it stays, without the keyword.
"""

_MISSING = {
    "type": "object",
    "properties": {KEY: {"type": "string", "enum": ["missing"]}},
    "required": [KEY],
    "additionalProperties": False,
}

_FORMAT = "response_format"

_SCHEMAS = {
    (_FORMAT, "json_schema", "schema"): 1,
    (_FORMAT, "schema"): 1,  # SGLang's short form
    ("text", "format", "schema"): 2,  # of /v1/responses
    ("output_config", "format", "schema"): 2,  # of /v1/messages
    ("structured_outputs", "json"): 0,  # vLLM's
}
"""The paths at which a request may have a schema, and how many of the names lead to the format that
asks for it, if that is one. ``extra_body`` uses the first."""

_AROUND_SCHEMAS = frozenset(path[0] for path in _SCHEMAS).union(
    ("tools", "functions", "json_schema", "structural_tag")
)
"""The fields that have schemas anywhere in them, as objects or as texts."""


def format_with(payload: str | None, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Make a ``response_format`` with a payload.

    Args:
        payload: the payload's text, if there is one.
        schema: the schema of the answer; ``None`` if its form is free.
    """
    name, schema = (KEYWORD, _MISSING) if schema is None else (f"{KEY}_schema", schema)
    keyword = {} if payload is None else {KEYWORD: payload}
    json_schema = {"name": name, "schema": {**schema, **keyword}}
    return {"type": "json_schema", "json_schema": json_schema}


def take_payloads(fields: Fields, keys: Set[str]) -> Iterator[tuple[str, Any]]:
    """Remove the payloads from the schemas of a request; yield the path and value of each.

    A format that asks for our schema is removed, and an object that had nothing else.

    Args:
        fields: an object of the request.
        keys: the names in the request that are the keyword, or nearly.

    Raises:
        SpecError: for a misspelt keyword.
    """
    formats: list[tuple[str, ...]] = []
    for path, names_of_format in _SCHEMAS.items():
        if (schema := inner(fields, *path)) is None:
            continue
        where = ".".join(path)
        check_spelling(keys & schema.keys(), where, KEYWORD)
        if KEYWORD in schema:
            payload = schema.pop(KEYWORD)
            around = inner(fields, *path[:-1])
            is_named = around is not None and around.get("name") == KEYWORD
            if names_of_format and (is_named or schema == _MISSING):
                formats.append(path[:names_of_format])
            yield f"{where}.{KEYWORD}", payload
    for *around, name in formats:
        format_of = inner(fields, *around)
        if format_of is not None and format_of.pop(name, None) and around and not format_of:
            del fields[around[0]]


def put_payload(fields: Fields, name: str, payload: Any, where: str) -> None:
    """Put a payload that came in a schema into the engine's own field.

    Raises:
        SpecError: if the field is no object, or has another payload.
    """
    field = inner(fields, name)
    if field is None:
        if fields.get(name) is not None:
            raise SpecError.of_field(f"Expected an object, beside `{where}`", name)
        field = fields[name] = {}
    if KEY in field:
        other, texts = field[KEY], StandIn()
        if payload != other and decode(payload, texts) != decode(other, texts):
            what = f"Expected one payload, got another at `{name}.{KEY}`"
            raise SpecError.of_field(what, where)
    field[KEY] = payload


def check_strays(fields: Fields, keys: Set[str]) -> None:
    """Refuse the keyword where it is not read: deeper in a schema, in a tool's, in one as text.

    Args:
        fields: an object of the request, of which ``take_payloads`` has taken what is read.
        keys: as for ``take_payloads``.

    Raises:
        SpecError: with the field.
    """
    for name in _AROUND_SCHEMAS.intersection(fields) if KEYWORD in keys else ():
        if name == "text" and not isinstance(fields[name], dict):  # prompts
            continue
        if KEYWORD in (keys_in(encode(fields[name]), frozenset()) or ()):
            *others, last = (".".join(path) for path in _SCHEMAS)
            what = f"Expected `{KEYWORD}` in the schema itself, at {', '.join(others)} or {last}"
            raise SpecError.of_field(what, name)
