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
from tests.support.servers import BAD, CHAT, GENERATE, GOOD, OTHER, native, post, refusal

KEYWORD = "x-logitport"
SPEC = ForcedTokenSequenceSpec((1, 2, 3))
PLACES = {"vllm": "vllm_xargs", "sglang": "custom_params"}
OWN = {"type": "object", "properties": {"x": {"type": "integer"}}}


def asking(schema: Any, name: str = "mine") -> dict[str, Any]:
    """A body that asks for an answer by a schema."""
    json_schema = {"name": name, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


def carried(payload: Any, **more: Any) -> dict[str, Any]:
    """A body with a payload in a schema of ours."""
    return asking({"type": "object", KEYWORD: payload}, KEYWORD) | more


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/team" + CHAT, "/invocations"])
@pytest.mark.parametrize("engine", PLACES)
def test_the_payload_moves_to_the_engines_field(engine: str, path: str):
    body = {"model": "m", **extra_body(engine, SPEC, carrier="schema")}
    assert set(body) == {"model", "response_format"}
    reply = post(path, body, engine=engine)
    assert reply.json() == {"model": "m", PLACES[engine]: {KEY: encode(SPEC)}}
    assert int(reply.headers["x-length"]) == len(reply.content)


def test_without_logitport_the_answer_shows_the_loss():
    (form,) = extra_body("vllm", SPEC, carrier="schema").values()
    schema = form["json_schema"]["schema"]
    assert schema["properties"] == {"logitport": {"type": "string", "enum": ["missing"]}}
    assert schema["required"] == ["logitport"]
    assert schema["additionalProperties"] is False


def without_payload(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != KEYWORD}


WITH_PAYLOAD = {**OWN, KEYWORD: GOOD}
SHORT = {"type": "json_schema", "schema": WITH_PAYLOAD}
LEFT = SHORT | {"schema": OWN}
(OURS,) = extra_body("vllm", decode(GOOD).specs, carrier="schema").values()
MISSING = OURS["json_schema"]["schema"]
UNNAMED = {"type": "json_schema", "schema": MISSING}
LARGE = without_payload(MISSING) | {"properties": {"x": {"enum": ["y" * (1 << 17)]}}}
SENT = {"vllm_xargs": {KEY: GOOD}}
# what a request has besides | what is left of it
SCHEMAS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the caller's own": (asking(WITH_PAYLOAD) | {"x": 1}, asking(OWN) | {"x": 1}),
    "short form": ({"response_format": SHORT}, {"response_format": LEFT}),
    "responses": ({"text": {"format": SHORT}}, {"text": {"format": LEFT}}),
    "messages": ({"output_config": {"format": SHORT}}, {"output_config": {"format": LEFT}}),
    "responses, by name": (
        {"text": {"format": SHORT | {"name": KEYWORD}, "a": 1}},
        {"text": {"a": 1}},
    ),
    "responses, our schema": ({"text": {"format": UNNAMED}}, {}),
    "messages, our schema": ({"output_config": {"format": UNNAMED}}, {}),
    "messages, our schema beside an effort": (
        {"output_config": {"format": UNNAMED, "effort": "low"}},
        {"output_config": {"effort": "low"}},
    ),
    "short form, our schema": ({"response_format": UNNAMED}, {}),
    "our schema beside another rule": (
        {"structured_outputs": {"json": MISSING, "regex": "a"}},
        {"structured_outputs": {"json": without_payload(MISSING), "regex": "a"}},
    ),
    "a large schema of ours in form": (
        {"response_format": {"schema": LARGE | {KEYWORD: GOOD}}},
        {"response_format": {"schema": LARGE}},
    ),
    "vLLM's own": (
        {"structured_outputs": {"json": WITH_PAYLOAD}},
        {"structured_outputs": {"json": OWN}},
    ),
    "beside the engine's field": (
        carried(GOOD, vllm_xargs={"seed": 1}),
        {"vllm_xargs": {"seed": 1, KEY: GOOD}},
    ),
    "beside null": (carried(GOOD, vllm_xargs=None), {}),
    "beside itself": (carried(GOOD, vllm_xargs={KEY: GOOD}), {}),
    "beside itself as an object": (carried(GOOD, vllm_xargs={KEY: json.loads(GOOD)}), {}),
    "beside itself with other white space": (
        carried(GOOD, vllm_xargs={KEY: json.dumps(json.loads(GOOD), indent=1)}),
        {},
    ),
}


@pytest.mark.parametrize(("body", "left"), SCHEMAS.values(), ids=SCHEMAS.keys())
def test_a_payload_in_any_schema(body: dict[str, Any], left: dict[str, Any]):
    assert post("/v1/responses", body).json() == SENT | left


@pytest.mark.parametrize("written", [json.loads(GOOD), json.loads(GOOD)["specs"]])
def test_an_object_becomes_text(written: Any):
    payload = post(CHAT, carried(written)).json()["vllm_xargs"][KEY]
    assert isinstance(payload, str)
    assert decode(payload) == decode(GOOD)


ANOTHER = "Expected one payload, got another at `vllm_xargs.logitport` - at "
FIRST = "response_format.json_schema.schema.x-logitport"
DIFFERENT = carried(GOOD, vllm_xargs={KEY: OTHER})
DIFFERENT_SCHEMAS = carried(GOOD, text={"format": {"schema": {KEYWORD: OTHER}}})
PASSED_ON = {"extra_body": carried(GOOD)}
OF_TOKENS = "in `sampling_params.extra_args.logitport`"
OWN_PLACE = "in `sampling_params.custom_params.logitport`"
# engine | route | body | what the message has
REFUSED: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "two carriers that differ": ("vllm", CHAT, DIFFERENT, f"{ANOTHER}`{FIRST}`"),
    "two schemas that differ": ("vllm", CHAT, DIFFERENT_SCHEMAS, f"{ANOTHER}`text.format.schema."),
    "a field that is no object": ("vllm", CHAT, carried(GOOD, vllm_xargs=3), "an object"),
    "bad": ("vllm", CHAT, carried(BAD), "mind_reader"),
    "null": ("vllm", CHAT, carried(None), "got `null`"),
    "misspelt": ("vllm", CHAT, asking({"x-logit-port": GOOD}), "`x-logitport`, got 'x-logit-port'"),
    "without x": ("vllm", CHAT, asking({KEY: GOOD}), "`x-logitport`, got 'logitport'"),
    "on a route that takes none": ("sglang", "/v1/score", carried(GOOD), "takes no specs"),
    "on a route of tokens": ("vllm", GENERATE, carried(GOOD), OF_TOKENS),
    "on SGLang's own route": ("sglang", "/generate", carried(GOOD) | native(None), OWN_PLACE),
    "as a client would have passed it on": ("vllm", CHAT, PASSED_ON, f"at `extra_body.{FIRST}`"),
}


@pytest.mark.parametrize(("engine", "path", "body", "part"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(engine: str, path: str, body: Any, part: str):
    assert part in refusal(path, body, engine=engine)


# the field that has the keyword, where it is not read | what is in it
STRAYS: list[tuple[str, Any]] = [
    ("response_format", {"json_schema": {KEYWORD: GOOD, "schema": OWN}}),
    ("text", {"format": {"schema": {"$defs": {"a": {KEYWORD: GOOD}}}}}),
    ("output_config", {"format": {"schema": {"allOf": [{KEYWORD: GOOD}]}}}),
    ("structured_outputs", {"json": json.dumps({KEYWORD: GOOD})}),
    ("tools", [{"type": "function", "function": {"parameters": {KEYWORD: GOOD}}}]),
    ("functions", [{"parameters": {"properties": {"a": {KEYWORD: {}}}}}]),
    ("json_schema", json.dumps({"properties": {"a": {KEYWORD: None}}})),
    ("structural_tag", {"structures": [{"schema": json.dumps({KEYWORD: GOOD})}]}),
]


@pytest.mark.parametrize(("name", "value"), STRAYS)
@pytest.mark.parametrize("within", [False, True])
def test_refused_where_it_is_not_read(name: str, value: Any, within: bool):
    body = {name: value}
    message = refusal(CHAT, {"sampling_params": body} if within else body)
    assert f"Expected `{KEYWORD}` in" in message
    assert f"`{name}`" in message


def test_no_way_of_writing_hides_it():
    body = json.dumps(carried(BAD)).replace("{", '{"y": "\\ud800", ', 1)
    for text in (body, body.replace(KEYWORD, "x-\\u006cogitport")):
        assert "mind_reader" in refusal(CHAT, text.encode())


def test_no_way_of_writing_hides_one_that_is_not_read():
    within = json.dumps(own := {KEYWORD: 1})
    escaped = within.replace(KEYWORD, "x-\\u006Cogitport")
    for value in (own, {"a": ["x" * 65_530, own]}, within, escaped):
        body = json.dumps({"tools": [value]})
        hidden = body.replace(KEYWORD, "x-\\u006cogitport")
        for text in (body, hidden, hidden.replace('\\"', "\\u0022").replace(":", " : ")):
            assert KEYWORD in refusal(CHAT, text.encode())


@pytest.mark.parametrize(
    "body",
    [
        *({name: json.dumps({KEYWORD: GOOD})} for name in ("messages", "text", "prompt", "regex")),
        {"text": [json.dumps({KEYWORD: 1})]},
        {"tools": [{"a": [KEYWORD, f"{KEYWORD}:"]}]},
        asking(OWN),
        {"response_format": "json", "text": {"format": 3}, "structured_outputs": {"json": "{}"}},
    ],
)
def test_prompts_other_words_and_other_schemas_pass_untouched(body: Any):
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
