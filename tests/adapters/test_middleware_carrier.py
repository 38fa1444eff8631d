"""The carrier that passes gateways: a payload in the JSON Schema of ``response_format``."""

import json
from typing import Any

import pytest
from logitport.adapters import extra_body, receipt
from logitport.adapters.gateway.key import KEY
from logitport.adapters.gateway.receipt import digest_of
from logitport.spec import (
    ForcedTokenSequenceSpec,
    GrammarSpec,
    LogitBiasSpec,
    PythonProcessorSpec,
    SamplingSpec,
    SpecError,
    Stage,
    StandIn,
    ThinkingBudgetSpec,
    decode,
    encode,
)

from tests.support.curl import commands, page, request_of
from tests.support.servers import BAD, CHAT, GENERATE, GOOD, OTHER, native, post

COMPLETIONS = "/v1/completions"
KEYWORD = "x-logitport"
SPEC = ForcedTokenSequenceSpec((1, 2, 3))
PLACES = {"vllm": "vllm_xargs", "sglang": "custom_params"}
OWN = {"type": "object", "properties": {"x": {"type": "integer"}}}


def carried(payload: Any, schema: Any = None, name: str = "mine", **more: Any) -> dict[str, Any]:
    """A body with a payload in a schema of the caller's own, or in ours."""
    if schema is None:
        schema, name = {"type": "object"}, KEYWORD
    json_schema = {"name": name, "schema": {**schema, KEYWORD: payload}}
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}, **more}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/team" + CHAT, "/invocations"])
@pytest.mark.parametrize("engine", PLACES)
def test_the_payload_moves_to_the_engines_field(engine: str, path: str, stream: bool):
    body = {"model": "m", "stream": stream, **extra_body(engine, SPEC, carrier="schema")}
    assert set(body) == {"model", "stream", "response_format"}
    reply = post(path, body, engine=engine)
    assert reply.status_code == 200
    assert reply.json() == {"model": "m", "stream": stream, PLACES[engine]: {KEY: encode(SPEC)}}
    assert int(reply.headers["x-length"]) == len(reply.content)


def test_without_logitport_the_answer_shows_the_loss():
    (form,) = extra_body("vllm", SPEC, carrier="schema").values()
    schema = form["json_schema"]["schema"]
    assert schema["properties"] == {"logitport": {"type": "string", "enum": ["missing"]}}
    assert schema["required"] == ["logitport"]
    assert schema["additionalProperties"] is False


def test_a_schema_of_the_callers_own_stays():
    answer = post(CHAT, carried(GOOD, OWN, x=1)).json()
    own = {"type": "json_schema", "json_schema": {"name": "mine", "schema": OWN}}
    assert answer == {"response_format": own, "x": 1, "vllm_xargs": {KEY: GOOD}}


def _without_payload(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != KEYWORD}


SHORT = {"type": "json_schema", "schema": {**OWN, KEYWORD: GOOD}}
(OURS,) = extra_body("vllm", decode(GOOD).specs, carrier="schema").values()
FLAT = {"type": "json_schema", "name": KEYWORD, "schema": {**OWN, KEYWORD: GOOD}}
UNNAMED = {"type": "json_schema", "schema": OURS["json_schema"]["schema"]}
LARGE = _without_payload(UNNAMED["schema"]) | {"properties": {"x": {"enum": ["y" * (1 << 17)]}}}
# what a request has besides | what is left of it
SCHEMAS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "short form": (
        {"response_format": SHORT},
        {"response_format": {"type": "json_schema", "schema": OWN}},
    ),
    "responses": ({"text": {"format": SHORT}}, {"text": {"format": SHORT | {"schema": OWN}}}),
    "messages": (
        {"output_config": {"format": SHORT}},
        {"output_config": {"format": SHORT | {"schema": OWN}}},
    ),
    "responses, by name": ({"text": {"format": FLAT, "a": 1}}, {"text": {"a": 1}}),
    "responses, our schema": ({"text": {"format": UNNAMED}}, {"text": {}}),
    "our schema beside another rule": (
        {"structured_outputs": {"json": UNNAMED["schema"], "regex": "a"}},
        {"structured_outputs": {"json": _without_payload(UNNAMED["schema"]), "regex": "a"}},
    ),
    "a large schema of ours in form": (
        {"response_format": {"schema": LARGE | {KEYWORD: GOOD}}},
        {"response_format": {"schema": LARGE}},
    ),
    "messages, our schema": ({"output_config": {"format": UNNAMED}}, {"output_config": {}}),
    "short form, our schema": ({"response_format": UNNAMED}, {}),
    "vLLM's own": (
        {"structured_outputs": {"json": {**OWN, KEYWORD: GOOD}}},
        {"structured_outputs": {"json": OWN}},
    ),
}


@pytest.mark.parametrize(("body", "left"), SCHEMAS.values(), ids=SCHEMAS.keys())
def test_a_payload_in_any_schema(body: dict[str, Any], left: dict[str, Any]):
    assert post("/v1/responses", body).json() == left | {"vllm_xargs": {KEY: GOOD}}


def test_what_is_in_the_engines_field_stays():
    answer = post(CHAT, carried(GOOD, vllm_xargs={"seed": 1})).json()
    assert answer == {"vllm_xargs": {"seed": 1, KEY: GOOD}}
    assert post(CHAT, carried(GOOD, vllm_xargs=None)).json() == {"vllm_xargs": {KEY: GOOD}}


@pytest.mark.parametrize("written", [json.loads(GOOD), json.loads(GOOD)["specs"]])
def test_an_object_becomes_text(written: Any):
    payload = post(CHAT, carried(written)).json()["vllm_xargs"][KEY]
    assert isinstance(payload, str)
    assert decode(payload) == decode(GOOD)


@pytest.mark.parametrize("other", [GOOD, json.loads(GOOD), json.dumps(json.loads(GOOD), indent=1)])
def test_two_carriers_with_the_same(other: Any):
    answer = post(CHAT, carried(GOOD, vllm_xargs={KEY: other})).json()
    assert answer == {"vllm_xargs": {KEY: GOOD}}


# route | body | engine | what the message has
REFUSED: dict[str, tuple[str, dict[str, Any], str, tuple[str, ...]]] = {
    "two carriers that differ": (
        CHAT,
        carried(GOOD, vllm_xargs={KEY: OTHER}),
        "vllm",
        (
            "Expected one payload, got another at `vllm_xargs.logitport`",
            "at `response_format.json_schema.schema.x-logitport`",
        ),
    ),
    "two schemas that differ": (
        CHAT,
        carried(GOOD, text={"format": {"schema": {KEYWORD: OTHER}}}),
        "vllm",
        ("Expected one payload", "at `text.format.schema.x-logitport`"),
    ),
    "a field that is no object": (CHAT, carried(GOOD, vllm_xargs=3), "vllm", ("an object",)),
    "bad": (CHAT, carried(BAD), "vllm", ("mind_reader",)),
    "null": (CHAT, carried(None), "vllm", ("NoneType",)),
    "misspelt": (
        CHAT,
        {"response_format": {"json_schema": {"schema": {"x-logit-port": GOOD}}}},
        "vllm",
        ("Expected the key `x-logitport`, got 'x-logit-port'",),
    ),
    "without x": (
        CHAT,
        {"response_format": {"json_schema": {"schema": {KEY: GOOD}}}},
        "vllm",
        ("Expected the key `x-logitport`, got 'logitport'",),
    ),
    "on a route that takes none": ("/v1/score", carried(GOOD), "sglang", ("takes no specs",)),
    "on a route of tokens": (
        GENERATE,
        carried(GOOD),
        "vllm",
        ("in `sampling_params.extra_args.logitport`",),
    ),
    "on SGLang's own route": (
        "/generate",
        carried(GOOD) | native(None),
        "sglang",
        ("in `sampling_params.custom_params.logitport`",),
    ),
    **{
        f"not read, in {name}": (
            CHAT,
            {name: value},
            "vllm",
            (f"Expected `{KEYWORD}` in", f"`{name}`"),
        )
        for name, value in {
            "response_format": {"json_schema": {KEYWORD: GOOD, "schema": OWN}},
            "text": {"format": {"schema": {"$defs": {"a": {KEYWORD: GOOD}}}}},
            "output_config": {"format": {"schema": {"allOf": [{KEYWORD: GOOD}]}}},
            "structured_outputs": {"json": json.dumps({KEYWORD: GOOD})},
            "tools": [{"type": "function", "function": {"parameters": {KEYWORD: GOOD}}}],
            "functions": [{"parameters": {"properties": {"a": {KEYWORD: {}}}}}],
            "json_schema": json.dumps({"properties": {"a": {KEYWORD: None}}}),
            "structural_tag": {"structures": [{"schema": json.dumps({KEYWORD: GOOD})}]},
        }.items()
    },
    "not read, in sampling parameters": (
        "/generate",
        {"sampling_params": {"json_schema": json.dumps({KEYWORD: GOOD})}},
        "sglang",
        (f"Expected `{KEYWORD}` in the schema itself",),
    ),
    "as a client would have passed it on": (
        CHAT,
        {"extra_body": carried(GOOD)},
        "vllm",
        ("at `extra_body.response_format.json_schema.schema.x-logitport`",),
    ),
}


@pytest.mark.parametrize(("path", "body", "engine", "parts"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(path: str, body: Any, engine: str, parts: tuple[str, ...]):
    reply = post(path, body, engine=engine)
    assert reply.status_code == 400
    for part in parts:
        assert part in reply.json()["error"]["message"]


def test_no_way_of_writing_hides_it():
    body = json.dumps(carried(BAD)).replace("{", '{"y": "\\ud800", ', 1)
    for text in (body, body.replace(KEYWORD, "x-\\u006cogitport")):
        assert "mind_reader" in post(CHAT, text.encode()).json()["error"]["message"]


@pytest.mark.parametrize("name", ["messages", "text", "prompt", "regex"])
def test_what_is_no_schema_is_not_looked_at(name: str):
    body = {name: json.dumps({KEYWORD: GOOD})}
    assert post(CHAT, body).json() == body


def test_no_way_of_writing_hides_one_that_is_not_read():
    within = json.dumps(own := {KEYWORD: 1})
    escaped = within.replace(KEYWORD, "x-\\u006Cogitport")
    for value in (own, {"a": ["x" * 65_530, own]}, within, escaped):
        body = json.dumps({"tools": [value]})
        hidden = body.replace(KEYWORD, "x-\\u006cogitport")
        for text in (body, hidden, hidden.replace('\\"', "\\u0022").replace(":", " : ")):
            assert KEYWORD in post(CHAT, text.encode()).json()["error"]["message"]


def test_prompts_and_other_words_are_no_keywords():
    for body in (
        {"text": [json.dumps({KEYWORD: 1})]},
        {"tools": [{"a": [KEYWORD, f"{KEYWORD}:"]}]},
    ):
        assert post(CHAT, body).json() == body


def test_another_schema_passes_untouched():
    body = {"response_format": {"type": "json_schema", "json_schema": {"schema": OWN}}}
    text = json.dumps(body).encode()
    assert post(CHAT, text).content == text
    body = {"response_format": "json", "text": {"format": 3}, "structured_outputs": {"json": "{}"}}
    text = json.dumps(body).encode()
    assert post(CHAT, text).content == text


THINKING = ThinkingBudgetSpec(5, (8,), (9,))


@pytest.mark.parametrize("engine", PLACES)
def test_native_kinds_beside(engine: str):
    specs = [THINKING, SamplingSpec(temperature=0.5), GrammarSpec(json_schema=OWN)]
    body = extra_body(engine, specs, carrier="schema")
    answer = post(CHAT, body, engine=engine).json()
    assert answer["temperature"] == 0.5
    assert answer[PLACES[engine]] == {KEY: encode(THINKING)}
    assert answer["response_format"]["json_schema"]["schema"] == OWN
    assert KEYWORD not in json.dumps(extra_body(engine, specs[1:], carrier="schema"))


@pytest.mark.parametrize("spec", [SamplingSpec(top_k=5), GrammarSpec(regex="a+")])
@pytest.mark.parametrize("engine", PLACES)
def test_what_a_gateway_would_drop_is_refused(engine: str, spec: Any):
    with pytest.raises(SpecError, match=r"needs the field .* at `\$\.specs\[1\]`"):
        extra_body(engine, [THINKING, spec], carrier="schema")


TEXTS = {"kind": "choice", "texts": ["yes", "no"]}
IDS = {"kind": "banned_tokens", "token_ids": [5]}


# specs | the payload's specs
@pytest.mark.parametrize(
    ("specs", "sent"),
    [
        (TEXTS, [TEXTS]),
        ([TEXTS], [TEXTS]),
        ((IDS, TEXTS), [IDS, TEXTS]),
        ([TEXTS, LogitBiasSpec({7: 2})], [TEXTS, {"kind": "logit_bias", "bias": {"7": 2.0}}]),
        ([SamplingSpec(temperature=0.5), TEXTS], [TEXTS]),
        ([{"kind": "sampling", "temperature": 0.5}, IDS], [IDS]),
    ],
)
@pytest.mark.parametrize("carrier", ["field", "schema"])
@pytest.mark.parametrize("engine", PLACES)
def test_objects_of_the_wire(engine: str, carrier: Any, specs: Any, sent: Any):
    """A client without the tokenizer sends texts, which reach the engine as they are."""
    body = extra_body(engine, specs, carrier=carrier, generation_only=False)
    answer = post(CHAT, body, engine=engine).json()
    expected = {"version": 1, "specs": sent, "generation_only": False}
    (payload,) = answer[PLACES[engine]].values()
    assert json.loads(payload) == expected
    assert ("temperature" in answer) is (specs is not TEXTS and len(specs) > len(sent))
    found = {"kinds": ["choice"], "digest": digest_of(payload), "stage": "agg"}
    assert receipt({KEY: found}, specs, generation_only=False).digest == found["digest"]


@pytest.mark.parametrize(("engine", "index"), [("vllm", 0), ("sglang", 1)])
def test_the_requests_of_the_page(engine: str, index: int):
    """docs/http.md has them by curl, for clients without a tokenizer."""
    path, asked = request_of(commands()[index])
    payload = post(path, asked, engine=engine).json()[PLACES[engine]][KEY]
    assert json.loads(payload) == [TEXTS]


def test_the_other_requests_of_the_page():
    """They are taken, with the payload where vLLM looks for it, but for the wrong one."""
    answers: dict[str, Any] = {}
    for command in commands()[2:]:
        path, asked = request_of(command)
        if asked is not None:
            answers[command] = reply = post(path, asked, engine="vllm")
            is_wrong = "-1" in command
            assert reply.status_code == (400 if is_wrong else 200)
            assert is_wrong or decode(reply.json()["vllm_xargs"][KEY], StandIn())
            if is_wrong:
                assert f"```json\n{reply.text}\n```" in page()
    assert len(answers) == 3


def test_objects_of_the_wire_do_not_act_on_prefill():
    assert extra_body("vllm", TEXTS, stage=Stage.PREFILL) == {}


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ({"kind": "choice", "texts": ["yes", ""]}, r"at `\$\.specs\[0\]\.texts\[1\]`"),
        (
            [SPEC, {"kind": "choice", "text": "yes"}],
            r"unknown field `text`; did you mean texts\? - at `\$\.specs\[1\]`",
        ),
        ({}, r"required field `kind` - at `\$\.specs\[0\]`"),
        ([IDS, {"kind": "?"}], r"at `\$\.specs\[1\]\.kind`"),
        ([IDS, 5], r"at `\$\.specs\[1\]`"),
        ({"kind": "choice", "texts": ["x" * 3000]}, "at most 2048 bytes"),
        ([IDS] * 17, "Expected (1 to|at most) 16 specs"),
        ([IDS, PythonProcessorSpec(list)], r"cannot be serialized.*at `\$\.specs\[1\]`"),
    ],
)
def test_objects_of_the_wire_are_checked(specs: Any, message: str):
    with pytest.raises(SpecError, match=message):
        extra_body("vllm", specs)
    with pytest.raises(SpecError, match=message):
        encode(specs)


def test_no_such_carrier():
    with pytest.raises(SpecError, match="Expected the carrier field or schema, got 'header'"):
        extra_body("vllm", SPEC, carrier="header")  # pyright: ignore
