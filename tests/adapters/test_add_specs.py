"""Specs that a gateway adds to a client's."""

import json
from contextlib import suppress
from typing import Any

import pytest
from logitport import spec as s
from logitport.adapters import add_specs, extra_body

DRY = {"kind": "dry", "multiplier": 1}
BAN = {"kind": "banned_text", "texts": ["Acme"]}
COOL = {"kind": "sampling", "temperature": 0.5}
GRAMMAR = {"kind": "grammar", "regex": "a+"}
FORCED = {"kind": "forced_sequence", "token_ids": [1]}
WHOLE = {"version": 1, "specs": [DRY]}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


def body_of(*specs: Any, engine: str = "vllm", **fields: Any) -> dict[str, Any]:
    """What ``extra_body`` makes."""
    return extra_body(engine, specs, **fields)


# engine | the client's body | specs to add | arguments | the new body
BODIES: list[tuple[str, dict[str, Any], Any, dict[str, Any], dict[str, Any]]] = [
    ("vllm", {}, BAN, {}, body_of(BAN)),
    ("vllm", {"vllm_xargs": {"logitport": [DRY]}}, BAN, {}, body_of(DRY, BAN)),
    (
        "vllm",
        {"vllm_xargs": {"logitport": {"version": 1, "specs": [DRY]}}},
        [BAN],
        {},
        body_of(DRY, BAN),
    ),
    ("vllm", body_of(DRY), [BAN, COOL], {}, body_of(DRY, BAN, COOL)),
    ("vllm", {"temperature": 0.5}, COOL, {}, {"temperature": 0.5}),
    ("vllm", {"temperature": None}, COOL, {}, {"temperature": 0.5}),
    (
        "vllm",
        {"response_format": {"type": "text"}},
        GRAMMAR,
        {},
        {**body_of(GRAMMAR), "response_format": {"type": "text"}},
    ),
    ("sglang", {"regex": "a+"}, GRAMMAR, {}, {"regex": "a+"}),
    ("vllm", {"n": 2, "vllm_xargs": {"a": 1}}, [], {}, {"n": 2, "vllm_xargs": {"a": 1}}),
    ("vllm", body_of(DRY, continued=3), BAN, {}, body_of(DRY, BAN, continued=3)),
    ("vllm", body_of(DRY, carrier="schema"), BAN, {}, body_of(DRY, BAN)),
    ("vllm", body_of(DRY), BAN, {"carrier": "schema"}, body_of(DRY, BAN, carrier="schema")),
    ("sglang", {}, BAN, {}, body_of(BAN, engine="sglang")),
    ("sglang", body_of(DRY, engine="sglang"), BAN, {}, body_of(DRY, BAN, engine="sglang")),
]


@pytest.mark.parametrize(("engine", "body", "specs", "arguments", "expected"), BODIES)
def test_bodies(engine: str, body: Any, specs: Any, arguments: Any, expected: Any):
    before = json.dumps(body)
    made = add_specs(body, engine, specs, **arguments)
    made = {name: value for name, value in made.items() if value != {}}
    assert made == expected
    assert json.dumps(body) == before


def test_the_answer_has_the_clients_schema():
    made = add_specs({"response_format": SCHEMA}, "vllm", BAN, carrier="schema")
    schema = made["response_format"]["json_schema"]["schema"]
    assert schema.pop("x-logitport") == s.encode([BAN])  # pyright: ignore[reportArgumentType]
    assert made == {"response_format": SCHEMA}


# a client's body | specs to add | the message | where
REFUSED: list[tuple[dict[str, Any], Any, str, str]] = [
    (
        {"temperature": 1},
        COOL,
        "The request has another value here than the specs to add",
        "temperature",
    ),
    ({"vllm_xargs": [1]}, DRY, "The request has another value", "vllm_xargs"),
    ({"response_format": SCHEMA}, GRAMMAR, "Conflicts with a grammar to add", "response_format"),
    ({"regex": "b"}, GRAMMAR, "Conflicts with a grammar to add", "regex"),
    ({"sampling_params": {}}, BAN, "Expected the body of a chat or completion", "sampling_params"),
    ({"text": "Hi"}, BAN, "Expected the body of a chat or completion", "text"),
    ({"input_ids": [1]}, BAN, "Expected the body of a chat or completion", "input_ids"),
    (body_of(DRY), {"kind": "dry"}, "multiplier", "a spec to add"),
    (body_of(DRY), [BAN, {"kind": "banned_text", "texts": 1}], "Expected", "a spec to add.texts"),
    (body_of(DRY), [GRAMMAR, FORCED], "Conflicts with a spec to add", "a spec to add"),
    ({"vllm_xargs": {"logitport": [{"kind": "dri"}]}}, [], "dry", "$[0].kind"),
    ({"vllm_xargs": {"logitport": "{"}}, DRY, "", "$"),
    ({"vllm_xargs": {"logitport": "7"}}, DRY, "", "$"),
    ({"vllm_xargs": {"logitport": [{"kind": "dry"}]}}, DRY, "multiplier", "$[0]"),
    (
        body_of(FORCED),
        GRAMMAR,
        "a grammar",
        "$.specs[0]",
    ),
    (body_of(DRY) | body_of(DRY, carrier="schema"), BAN, "Expected specs once", "vllm_xargs"),
]


@pytest.mark.parametrize(("body", "specs", "message", "where"), REFUSED)
def test_refused(body: Any, specs: Any, message: str, where: str):
    with pytest.raises(s.SpecError) as error:
        add_specs(body, "vllm", specs)
    assert message in error.value.message
    assert where in str(error.value.path)


@pytest.mark.parametrize(
    "place",
    ["%s", '{"vllm_xargs": {"logitport": [%s]}}', '{"response_format": {"schema": %s}}'],
)
def test_a_body_that_is_nested_deeply(place: str):
    """As deep as Python's parser takes it."""
    for depth in range(100, 1000, 100):
        body = {"a": json.loads(place % ("[" * depth + "]" * depth))}
        body = body["a"] if isinstance(body["a"], dict) else body
        with suppress(s.SpecError):
            assert add_specs(body, "vllm", BAN)["vllm_xargs"]
    with pytest.raises(s.SpecError):
        add_specs(body, "vllm", BAN)
