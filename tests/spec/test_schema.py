"""The JSON Schema of the wire: what a validator says of a payload that is wrong."""

from typing import Any

import jsonschema
import pytest
from logitport.spec import WIRE_KINDS, json_schema
from logitport.spec.base import kind_of

from tests.support.kinds import VALIDATOR

CHOICE = {"kind": "choice", "texts": ["yes", "no"]}
MISSPELT = {"kind": "chioce", "texts": ["yes", "no"]}


def nested(spec: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "phases", "phases": [{"specs": [spec]}]}


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({"version": 1, "specs": [CHOICE]}, None),
        ([CHOICE], None),
        ([CHOICE, nested(CHOICE)], None),
        ([MISSPELT], "$[0].kind"),
        ({"version": 1, "specs": [CHOICE, MISSPELT]}, "$.specs[1].kind"),
        ([nested(MISSPELT)], "$[0].phases[0].specs[0].kind"),
        ([{"texts": ["yes"]}], "$[0]"),
        ([{**CHOICE, "text": "yes"}], "$[0]"),
        ([{**CHOICE, "texts": "yes"}], "$[0].texts"),
        ({"version": 2, "specs": [CHOICE]}, "$.version"),
        ([], "$"),
        (["yes"], "$[0]"),
        ({"specs": [CHOICE]}, "$"),
    ],
)
def test_one_error_where_it_is(payload: Any, path: str | None):
    found = [error.json_path for error in VALIDATOR.iter_errors(payload)]
    assert [*dict.fromkeys(found)] == ([] if path is None else [path])
    if path is not None and path.endswith(".kind"):
        assert len(found) == 1


def test_keywords_of_json_schema_alone():
    """``discriminator`` is OpenAPI's. The tests of examples/typescript compile it with ajv."""
    schema = json_schema()
    known = jsonschema.Draft202012Validator.VALIDATORS.keys()
    known |= {"$schema", "$id", "$defs", "title", "description", "default", "then", "else"}

    def check(schema: Any) -> None:
        if not isinstance(schema, dict):
            return
        assert schema.keys() <= known, schema.keys() - known
        for name, value in schema.items():
            if name in ("properties", "$defs"):
                for each in value.values():
                    check(each)
            elif name not in ("default", "const", "enum"):
                for each in value if isinstance(value, list) else [value]:
                    check(each)

    check(schema)
    assert schema["$id"] == "urn:logitport:wire:1"
    assert schema["$defs"]["Spec"]["properties"]["kind"]["enum"] == [*map(kind_of, WIRE_KINDS)]
