"""The carrier that passes gateways: a payload in the JSON Schema of ``response_format``."""

import json
from typing import Any

import pytest
from logitport import spec as s
from logitport.adapters import extra_body, receipt
from logitport.adapters.gateway.key import KEY
from logitport.adapters.gateway.receipt import digest_of

from tests.support.curl import commands, page, request_of
from tests.support.servers import BAD, CHAT, GOOD, post, refusal

KEYWORD = "x-logitport"
SPEC = s.ForcedTokenSequenceSpec((1, 2, 3))
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
    assert reply.json() == {"model": "m", PLACES[engine]: {KEY: s.encode(SPEC)}}
    assert int(reply.headers["x-length"]) == len(reply.content)


def test_without_logitport_the_answer_shows_the_loss():
    (form,) = extra_body("vllm", SPEC, carrier="schema").values()
    schema = form["json_schema"]["schema"]
    assert schema["properties"] == {"logitport": {"type": "string", "enum": ["missing"]}}
    assert schema["required"] == ["logitport"]
    assert schema["additionalProperties"] is False


def test_a_large_schema_of_our_form_is_the_callers():
    (form,) = extra_body("vllm", s.decode(GOOD).specs, carrier="schema").values()
    large = form["json_schema"]["schema"] | {"properties": {"x": {"enum": ["y" * (1 << 17)]}}}
    left = {name: value for name, value in large.items() if name != KEYWORD}
    reply = post(CHAT, {"response_format": {"schema": large}})
    assert reply.json() == {"vllm_xargs": {KEY: GOOD}, "response_format": {"schema": left}}


@pytest.mark.parametrize("written", [json.loads(GOOD), json.loads(GOOD)["specs"]])
def test_an_object_becomes_text(written: Any):
    payload = post(CHAT, carried(written)).json()["vllm_xargs"][KEY]
    assert isinstance(payload, str)
    assert s.decode(payload) == s.decode(GOOD)


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


THINKING = s.ThinkingBudgetSpec(5, (8,), (9,))


@pytest.mark.parametrize("engine", PLACES)
def test_native_kinds_beside(engine: str):
    specs = [THINKING, s.SamplingSpec(temperature=0.5), s.GrammarSpec(json_schema=OWN)]
    body = extra_body(engine, specs, carrier="schema")
    answer = post(CHAT, body, engine=engine).json()
    assert answer["temperature"] == 0.5
    assert answer[PLACES[engine]] == {KEY: s.encode(THINKING)}
    assert answer["response_format"]["json_schema"]["schema"] == OWN
    assert KEYWORD not in json.dumps(extra_body(engine, specs[1:], carrier="schema"))


@pytest.mark.parametrize("spec", [s.SamplingSpec(top_k=5), s.GrammarSpec(regex="a+")])
@pytest.mark.parametrize("engine", PLACES)
def test_what_a_gateway_would_drop_is_refused(engine: str, spec: Any):
    with pytest.raises(s.SpecError, match=r"needs the field .* at `\$\.specs\[1\]`"):
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
        ([TEXTS, s.LogitBiasSpec({7: 2})], [TEXTS, {"kind": "logit_bias", "bias": {"7": 2.0}}]),
        ([s.SamplingSpec(temperature=0.5), TEXTS], [TEXTS]),
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
            assert is_wrong or s.decode(reply.json()["vllm_xargs"][KEY], s.StandIn())
            if is_wrong:
                assert f"```json\n{reply.text}\n```" in page()
    assert len(answers) == 3


def test_objects_of_the_wire_do_not_act_on_prefill():
    assert extra_body("vllm", TEXTS, stage=s.Stage.PREFILL) == {}


def test_objects_of_the_wire_are_checked():
    """As by ``specs_of``, whose tests have what is refused."""
    with pytest.raises(s.SpecError, match=r"at `\$\.specs\[0\]\.texts\[1\]`"):
        extra_body("vllm", {"kind": "choice", "texts": ["yes", ""]})


def test_no_such_carrier():
    with pytest.raises(s.SpecError, match="Expected the carrier field or schema, got 'header'"):
        extra_body("vllm", SPEC, carrier="header")  # pyright: ignore
