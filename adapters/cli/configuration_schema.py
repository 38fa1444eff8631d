"""The JSON Schema of a server's configuration, for editors."""

from typing import Any

import msgspec

from ...spec import THINKING_FAMILIES, json_schema
from ...spec.schema import SPEC, strict
from ..detection.schemes import Scheme
from ..presets import Parameter

_CONSTRUCTORS = "from_text", "from_words", "from_tokenizer", "for_tokenizer"


def configuration_schema() -> dict[str, Any]:
    """Make the JSON Schema of a configuration, as far as it needs no tokenizer."""
    wire, profiles = json_schema(), strict(msgspec.json.schema(dict[str, Scheme]))
    definitions: dict[str, Any] = {**wire["$defs"], **profiles.pop("$defs")}
    del definitions["Payload"]
    kind = definitions["Spec"]["properties"]["kind"]
    makes = {name: {"type": "object"} for name in _CONSTRUCTORS}
    definitions["Entry"] = {
        "type": "object",
        "if": {"anyOf": [{"required": [name], "properties": {name: True}} for name in makes]},
        "then": {**_object(kind=kind, **makes), "required": ["kind"], "maxProperties": 2},
        "else": SPEC,
    }
    entry = definitions["Phase"]["properties"]["specs"]["items"] = {"$ref": "#/$defs/Entry"}
    specs = {"type": "array", "items": entry}
    bound, count = {"type": "number", "minimum": 0}, {"type": "integer", "minimum": 0}
    required = _object(
        profile={"type": "string"},
        unless={"type": "array", "items": {"enum": ["grammar", "json"]}},
        bounds=_object(temperature=bound, top_k=count, top_p=bound, min_p=bound),
    )
    text: dict[str, Any] = {"type": "string", "minLength": 1}
    tag = {"anyOf": [text, {"type": "array", "items": text, "minItems": 1}]}
    stated = {**_object(start=tag, end=tag, then={"type": "string"}), "required": ["start", "end"]}
    params = strict(msgspec.json.schema(dict[str, Parameter]))
    definitions |= params.pop("$defs")
    with_values = {
        **_object(
            params=params,
            specs={"type": "array", "items": {"type": "object"}, "minItems": 1},
        ),
        "required": ["params", "specs"],
    }
    preset = {"if": {"type": "array"}, "then": {**specs, "minItems": 1}, "else": with_values}
    fields = _object(
        version={"const": 1},
        default=specs,
        own={"enum": ["replace", "add", "refuse"]},
        guard=specs,
        presets={"type": "object", "additionalProperties": preset},
        forbid={"type": "array", "items": {"type": "string"}},
        effort={"type": "object", "additionalProperties": count},
        profiles=profiles,
        require=_object(watermark={**required, "required": ["profile"]}),
        reload={"type": "boolean"},
        tags={"anyOf": [{"enum": [each.name for each in THINKING_FAMILIES]}, stated]},
    )
    names = {"$schema": wire["$schema"], "$id": "urn:logitport:configuration:1"}
    return {**names, **fields, "$defs": definitions}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}
