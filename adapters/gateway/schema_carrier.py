"""The carrier that passes gateways: a keyword of the JSON Schema in ``response_format``.

A gateway that rebuilds requests of the fields it knows drops an engine's own fields. It passes a
schema on as it is. A server without logitport ignores the keyword and obeys the schema, which
makes the loss visible: the answer is ``{"logitport":"missing"}``.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...spec import SpecError
from .json_body import Fields
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

_ESCAPE = re.compile(r"\\{1,4}u00([2-7][0-9a-fA-F])")
"""An escape that can hide a character of the keyword."""

_KEYWORD = re.compile(rf'"{KEYWORD}\\*"\s*:')

_PIECE, _OVERLAP = 1 << 16, 1 << 10
"""So many characters of a text take less than 10 ms; the keyword may lie across their end."""


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


def take_payloads(fields: Fields) -> Iterator[tuple[str, Any]]:
    """Remove the payloads from the schemas of a request; yield the path and value of each.

    A payload that is an object or array comes as its JSON text.

    Raises:
        SpecError: for a misspelt keyword.
    """
    formats: list[tuple[Fields, str]] = []  # that ask for our schema, with the objects around them
    for path, names_of_format in _SCHEMAS.items():
        objects = [fields]
        for name in path:
            if (inner := objects[-1].object(name)) is None:
                break
            objects.append(inner)
        else:
            *_, around, schema = objects
            where = ".".join(path)
            check_spelling(schema, where, KEYWORD)
            if KEYWORD in schema:
                payload = schema.text(KEYWORD) if schema.is_nested(KEYWORD) else schema[KEYWORD]
                schema.drop(KEYWORD)
                if names_of_format and (around.get("name") == KEYWORD or _is_missing(schema)):
                    formats.append((objects[names_of_format - 1], path[names_of_format - 1]))
                yield f"{where}.{KEYWORD}", payload
    for around, name in formats:
        if name in around:
            around.drop(name)


def _is_missing(schema: Fields) -> bool:
    """Whether it is our schema. A large one is not, and is not decoded."""
    if schema.keys() != _MISSING.keys() or any(len(schema.text(name)) > 256 for name in schema):
        return False
    return dict(schema) == _MISSING


def check_strays(fields: Fields) -> None:
    """Refuse the keyword where it is not read: deeper in a schema, in a tool's, in one as text.

    Args:
        fields: an object of the request, of which ``take_payloads`` has taken what is read.

    Raises:
        SpecError: with the field.
    """
    for name in _AROUND_SCHEMAS.intersection(fields):
        if name == "text" and fields.object(name) is None:  # prompts
            continue
        if _has_keyword(fields.text(name)):
            *others, last = (".".join(path) for path in _SCHEMAS)
            what = f"Expected `{KEYWORD}` in the schema itself, at {', '.join(others)} or {last}"
            raise SpecError.of_field(what, name)


def _has_keyword(text: str) -> bool:
    """Whether an object in a JSON text has the keyword, or one in a JSON text within it.

    Nothing is decoded, which may take long, and other threads run between the pieces.
    """
    for start in range(0, len(text), _PIECE):
        piece = text[start : start + _PIECE + _OVERLAP]
        if "\\u00" in piece:
            for _ in range(2):  # in a text within the text, escapes may be escaped
                piece = _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), piece)
        if KEY in piece and _KEYWORD.search(piece):
            return True
    return False
