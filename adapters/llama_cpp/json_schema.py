"""Conversion of JSON Schemas to grammars of llama.cpp.

llama-cpp-python's converter (``llama_cpp/llama_grammar.py``, 0.3.36) skips unknown keywords. This
module refuses any schema from which the converter would lose a part.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

import msgspec
from llama_cpp.llama_grammar import PRIMITIVE_RULES, json_schema_to_gbnf

from ...spec import SpecError
from ...spec.base import spec_error

MAX_PARTS = 4096
"""The limit on the parts of a schema; each ``$ref`` counts the parts that it refers to again."""

MAX_REPEATED = 256
"""The limit on counted characters or items: the grammar nests a part for each."""

_Repeated = Annotated[int, msgspec.Meta(ge=0, le=MAX_REPEATED)]


class _Keywords(TypedDict, total=False):
    """The JSON types of keywords' values."""

    type: str | list[str]
    properties: dict[str, Any]
    required: list[str]
    anyOf: list[Any]
    enum: list[Any]
    prefixItems: list[Any]
    minItems: _Repeated
    maxItems: _Repeated
    minLength: _Repeated
    maxLength: _Repeated


_ANNOTATIONS = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "default", "examples", "$defs"}
)
_SHAPES: list[set[str]] = [
    {"anyOf"},
    {"const", "type"},
    {"enum", "type"},
    {"type", "properties", "required", "additionalProperties"},
    {"type", "items", "minItems", "maxItems"},
    {"type", "prefixItems"},
    {"type", "minLength", "maxLength"},
]
"""The keywords that the converter obeys together, annotations aside."""

_TYPES = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}
"""JSON's types, and the Python types that a parser returns for them."""


def gbnf(schema: Mapping[str, Any]) -> str:
    """Convert a schema to a grammar of the JSON texts that it describes, or of a part of them.

    Objects have only the named properties, unless ``additionalProperties`` allows others.

    Raises:
        SpecError: if llama-cpp-python's converter would lose a part of the schema.
    """
    plain: Any = msgspec.to_builtins(schema)
    try:
        checked = _Checker(plain).checked(plain, ("json_schema",))
        text = json_schema_to_gbnf(json.dumps(checked))
    except SpecError:
        raise
    except (AssertionError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise SpecError(f"llama_cpp rejects this schema: {error}", "json_schema") from error
    for rule in text.splitlines():
        name, _, content = rule.partition(" ::= ")
        if name in PRIMITIVE_RULES and content != PRIMITIVE_RULES[name].content:
            what = f"the converter takes a property for its own `{name}`"
            raise SpecError(f"llama_cpp rejects this schema: {what}", "json_schema")
    # In JSON, control characters are escaped.
    return text.replace(r'[^"\\]', r'[^"\\\x7F\x00-\x1F]')


_Path = tuple[str | int, ...]


class _Checker:
    """Makes a checked copy of a schema, in which each reference is replaced by its target."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._parts = 0

    def checked(self, schema: Any, path: _Path, inside: tuple[str, ...] = ()) -> dict[str, Any]:
        """Check and copy the part at ``path``, to which the references ``inside`` have led."""
        if not isinstance(schema, dict):
            raise SpecError("llama_cpp supports only schemas that are objects", *path)
        self._parts += 1
        if self._parts > MAX_PARTS:
            what = "with each `$ref` replaced by what it names"
            raise SpecError(f"Expected a schema of at most {MAX_PARTS} parts, {what}", *path)
        given = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
        if given.keys() == {"$ref"}:
            return self._referred(given["$ref"], path, inside)
        if not given or not any(given.keys() <= shape for shape in _SHAPES):
            keys = ", ".join(f"`{key}`" for key in given) or "no keyword"
            raise SpecError(f"llama_cpp does not support a schema with {keys}", *path)
        try:
            msgspec.convert(given, _Keywords)
        except msgspec.ValidationError as error:
            raise spec_error(error).at(*path) from None
        _check_values(given, path)
        _check_properties(given, path)
        _check_counts(given, path)
        return {key: self._inner(key, given[key], (*path, key), inside) for key in given}

    def _inner(self, key: str, value: Any, path: _Path, inside: tuple[str, ...]) -> Any:
        if key == "properties":
            parts = value.items()
            return {name: self.checked(part, (*path, name), inside) for name, part in parts}
        if key in ("anyOf", "prefixItems"):
            return [self.checked(part, (*path, i), inside) for i, part in enumerate(value)]
        if key == "items" or (key == "additionalProperties" and not isinstance(value, bool)):
            return self.checked(value, path, inside)
        return value

    def _referred(self, reference: Any, path: _Path, inside: tuple[str, ...]) -> dict[str, Any]:
        if reference in inside:
            raise SpecError("llama_cpp does not support schemas that contain themselves", *path)
        target = self._root
        try:
            if not reference.startswith("#/"):
                raise KeyError(reference)
            for name in reference.split("/")[1:]:
                target = target[name.replace("~1", "/").replace("~0", "~")]
        except (AttributeError, KeyError, TypeError):
            raise SpecError(
                f"Expected a `$ref` into the schema, got {reference!r}", *path
            ) from None
        return self.checked(target, path, (*inside, reference))


def _check_values(given: dict[str, Any], path: _Path) -> None:
    types = given.get("type", [])
    if isinstance(types, str):
        types = [types]
    elif types and given.keys() != {"type"}:
        raise SpecError("llama_cpp does not support several types with other keywords", *path)
    for name in types:
        if name not in _TYPES:
            raise SpecError(f"Expected one of {', '.join(_TYPES)}, got {name!r}", *path)
    for key in ("anyOf", "enum", "prefixItems", "type"):
        if given.get(key) == []:
            raise SpecError("Expected something to choose from", *path, key)
    values = [given["const"]] if "const" in given else given.get("enum", [])
    for value in values:
        _check_text(value, path)
        if "type" in given and type(value) not in _TYPES[given["type"]]:
            raise SpecError(f"Expected a value of type {given['type']}, got {value!r}", *path)


def _check_text(value: Any, path: _Path) -> None:
    """Refuse a text that the converter does not escape as GBNF needs it."""
    text = json.dumps(value, ensure_ascii=False)
    if re.search(r"[\\\U00010000-\U0010FFFF]", text):
        raise SpecError(f"llama_cpp does not support the text {text} in a schema", *path)


def _check_properties(given: dict[str, Any], path: _Path) -> None:
    names, required = list(given.get("properties", ())), set(given.get("required", ()))
    for name in names:
        if name in ("", "*"):
            raise SpecError(f"llama_cpp does not support properties with the name {name!r}", *path)
        _check_text(name, path)
    if unknown := required.difference(names):
        raise SpecError(f"llama_cpp cannot require {sorted(unknown)}, not in `properties`", *path)
    if sorted(names, key=lambda name: name not in required) != names:
        raise SpecError("llama_cpp writes required properties first; name them first", *path)
    if names and given.get("additionalProperties", False) is not False:
        # An additional property might have the name of a listed property.
        raise SpecError("llama_cpp does not support `additionalProperties` with others", *path)


def _check_counts(given: dict[str, Any], path: _Path) -> None:
    for least, most in (("minItems", "maxItems"), ("minLength", "maxLength")):
        counts = [given[key] for key in (least, most) if key in given]
        if counts != sorted(counts):
            raise SpecError(f"Expected {least} <= {most}", *path)
        if counts and least == "minItems" and "items" not in given:
            raise SpecError("llama_cpp cannot count items without `items`", *path)
