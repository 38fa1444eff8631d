"""JSON Schemas (draft 2020-12) that validators compile as they are, ajv in its strict mode too."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from .payload import VERSION, Payload
from .texts import add_text_fields

SPEC = {"$ref": "#/$defs/Spec"}
"""A spec of any kind, which ``json_schema`` defines."""


def json_schema() -> dict[str, Any]:
    """Make the JSON Schema of the wire format: of a payload, or its list of specs alone.

    Examples:
        >>> json_schema()["$id"]
        'urn:logitport:wire:1'
    """
    made: dict[str, Any] = msgspec.json.schema(Payload)["$defs"]
    made["Payload"]["properties"]["generation_only"]["default"] = True
    add_text_fields(made)
    specs = made["Payload"]["properties"]["specs"]
    made["Spec"] = specs["items"]
    specs["items"] = made["Phase"]["properties"]["specs"]["items"] = SPEC
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:logitport:wire:{VERSION}",
        "if": {"type": "array"},
        "then": specs,
        "else": {"$ref": "#/$defs/Payload"},
        "$defs": made,
    }
    return strict(schema)


def strict(schema: Any) -> Any:
    """Replace OpenAPI's ``discriminator``, and an ``enum`` of one by ``const``.

    With ``oneOf``, one wrong field is an error of each alternative. Here, an unknown tag is one
    error, and a known tag selects the definition whose errors count.
    """
    if isinstance(schema, list):
        return [strict(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = cast("dict[str, Any]", schema)
    if "discriminator" in fields:
        return _by_tag(**fields["discriminator"])
    if len(fields.get("enum", ())) == 1:
        fields = {"const": fields["enum"][0], **fields}
        del fields["enum"]
    if "required" in fields and "properties" not in fields:  # ajv wants both
        fields = {**fields, "properties": dict.fromkeys(fields["required"], True)}
    return {name: strict(value) for name, value in fields.items()}


# With the names of OpenAPI's object.
def _by_tag(propertyName: str, mapping: Mapping[str, str]) -> dict[str, Any]:  # noqa: N803
    def tagged(schema: dict[str, Any]) -> dict[str, Any]:
        return {"required": [propertyName], "properties": {propertyName: schema}}

    cases = [{"if": tagged({"const": tag}), "then": {"$ref": mapping[tag]}} for tag in mapping]
    return {"type": "object", **tagged({"enum": [*mapping]}), "allOf": cases}
