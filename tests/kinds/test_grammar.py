import json
from dataclasses import dataclass
from typing import Any, TypedDict

import jsonschema
import msgspec
import pydantic
import pytest
from logitport.spec import BannedTextSpec, GrammarSpec, SpecError, encode, limits
from logitport.spec.kinds.grammar import MAX_GRAMMAR

from tests.support.kinds import SOME, KindTests

NO_NUL = r"Expected `str` matching regex '^[^\\x00]+$'"
MOST, SEQUENCES = MAX_GRAMMAR, limits.MAX_TOKEN_IDS
TOO_MUCH_TEXT = f"Expected `str` of length <= {MOST}"
TOO_MUCH_IN_ALL = f"Expected at most {MOST} characters in all, got {MOST + 1}"
EMPTY = "Expected `str` of length >= 1"
ONE_OF = "Expected one of json_schema, regex, ebnf, choices, structural_tag, got"
INTEGER = "Expected an integer of at most 64 bits"

TAG = {"type": "structural_tag", "format": {"type": "any_text"}}


class TestRows(KindTests):
    golden = GrammarSpec(json_schema={"type": "object", "required": ["a"], "maxProperties": 1})
    refused = (
        ({"regex": "a", "choices": ["a"]}, f"{ONE_OF} regex and choices", ""),
        ({}, f"{ONE_OF} none", ""),
        ({"json_schema": "{}"}, "Expected `object | null`, got `str`", "json_schema"),
        ({"json_schema": {"enum": [1, 1 << 63]}}, INTEGER, "json_schema.enum[1]"),
        ({"regex": ""}, EMPTY, "regex"),
        ({"regex": "a\0"}, NO_NUL, "regex"),
        ({"regex": "\0a\n"}, NO_NUL, "regex"),
        ({"ebnf": "a" * (MOST + 1)}, TOO_MUCH_TEXT, "ebnf"),
        ({"ebnf": "root: 'a'"}, "Expected rules `name ::= ...`", "ebnf"),
        ({"structural_tag": {"format": {}}}, "Expected `structural_tag`", "structural_tag.type"),
        ({"structural_tag": TAG | {"format": "a"}}, "Expected `object`", "structural_tag.format"),
        ({"structural_tag": TAG | {"triggers": [1 << 63]}}, INTEGER, "structural_tag.triggers[0]"),
        ({"choices": []}, SOME, "choices"),
        ({"choices": "ab"}, "Expected `array | null`, got `str`", "choices"),
        ({"choices": ["a", ""]}, EMPTY, "choices[1]"),
        ({"choices": ["a", "b", "a"]}, "The same as `$.choices[0]`", "choices[2]"),
        ({"choices": ["a", "b" * MOST]}, TOO_MUCH_IN_ALL, "choices"),
        (
            {"choices": [*map(str, range(SEQUENCES + 1))]},
            f"Expected at most {SEQUENCES} entries",
            "choices",
        ),
    )
    largest = (
        GrammarSpec(regex="a" * MOST),
        GrammarSpec(ebnf="::=".rjust(MOST)),
        GrammarSpec(choices=tuple(f"{i:08}" for i in range(SEQUENCES))),
    )


def test_schema_is_copied():
    schema: dict[str, Any] = {"enum": [1]}
    spec = GrammarSpec(json_schema=schema)
    schema["enum"].append(2)
    assert spec == GrammarSpec(json_schema={"enum": [1]})


class Struct(msgspec.Struct):
    name: str
    ages: list[int]


@dataclass
class Data:
    name: str
    ages: list[int]


class Typed(TypedDict):
    name: str
    ages: list[int]


class Model(pydantic.BaseModel):
    name: str
    ages: list[int]


class Nested(msgspec.Struct):
    properties: dict[str, int]
    one: Struct | None = None


def schema_of(kind: Any) -> Any:
    """Return the schema of a type as JSON has it, with lists for tuples."""
    return json.loads(msgspec.json.encode(GrammarSpec.from_type(kind).json_schema))


@pytest.mark.parametrize("kind", [Struct, Data, Typed, Model])
def test_a_type_has_its_fields_and_no_others(kind: Any):
    schema = schema_of(kind)
    jsonschema.validate({"name": "a", "ages": [1]}, schema)
    for wrong in ({"name": "a"}, {"name": 1, "ages": []}, {"name": "a", "ages": [], "more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_a_type_within_another():
    schema = schema_of(Nested)
    jsonschema.validate({"properties": {"any": 1}, "one": {"name": "a", "ages": []}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"properties": {}, "one": {"name": "a", "ages": [], "b": 1}}, schema)


def test_a_type_without_a_schema():
    with pytest.raises(SpecError, match="Expected a type that has a JSON Schema"):
        GrammarSpec.from_type(object)


def of(**properties: Any) -> Any:
    return {"json_schema": {"type": "object", "properties": properties}}


@pytest.mark.parametrize(
    ("grammar", "offered"),
    [
        ({"json_schema": {"const": "Paris"}}, '"Paris"'),
        ({"json_schema": {"enum": ["Rome", "Paris"]}}, '"Paris"'),
        ({"json_schema": {"const": {"in": [{"Paris": 1}]}}}, '"Paris"'),
        ({"json_schema": {"type": "string", "pattern": "^(in )?Paris$"}}, "Paris"),
        ({"json_schema": {"type": "object", "required": ["Paris"]}}, '"Paris"'),
        (of(Paris={}), '"Paris"'),
        (of(city={"anyOf": [{"type": "null"}, {"const": "Paris"}]}), '"Paris"'),
        (of(cities={"items": {"enum": ["Paris"]}}), '"Paris"'),
        ({"json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"const": "Paris"}}}}, '"Paris"'),
        ({"regex": r"(in )?Paris\."}, "Paris."),
        ({"ebnf": 'root ::= "in " city\ncity ::= "Rome" | "Paris"'}, "Paris"),
        ({"regex": r"[A-Z]aris"}, None),
        ({"ebnf": 'root ::= [^"] "a" ["Paris"]'}, None),
        (of(city={"type": "string", "description": "Paris", "default": "Paris"}), None),
        ({"json_schema": {"const": "in Par is"}}, None),
    ],
)
def test_beside_a_banned_text(grammar: Any, offered: str | None):
    """What begins such a text could not end it, and the engine would end the request so."""
    specs = [GrammarSpec(**grammar), BannedTextSpec(("Paris",))]
    if offered is None:
        assert encode(specs)
        return
    with pytest.raises(SpecError) as refused:
        encode(specs)
    what = f"Conflicts with `$.specs[0]`, a grammar, which offers {offered!r}"
    assert (refused.value.message, refused.value.path) == (what, "$.specs[1]")
