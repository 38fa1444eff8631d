"""Receipts: what acted on a request comes back, and a client can tell when nothing did."""

import asyncio
import hashlib
import json
import re
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from logitport import spec as s
from logitport.adapters import (
    KEY,
    Backend,
    Policy,
    Receipt,
    ReceiptError,
    SpecMiddleware,
    admit,
    extra_body,
    receipt,
)
from logitport.adapters.gateway.receipt import HEADER, Stamp, digest_of
from logitport.adapters.vllm.backend import BACKEND
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from prometheus_client import REGISTRY
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from tests.support.families import FAMILIES, tokenizer_of
from tests.support.pages import text

CHAT = "/v1/chat/completions"
SPEC = s.ForcedTokenSequenceSpec((1, 2, 3))
BAN = s.BannedTokensSpec((5,))
EXPECTED = {"kinds": ["forced_sequence"], "digest": digest_of(s.encode(SPEC)), "stage": "agg"}
ANSWER = {"id": "1", "choices": [{"message": {"content": '{"a": 1}'}}]}
OBJECT = '"object":"chat.completion.chunk"'
CHUNKS = [f'{{"id":"{i}",{OBJECT},"choices":[]}}' for i in (1, 2)] + ["[DONE]"]


# Besides a JSON object, answers that have no room for a field.
ANSWERS = {
    "whole": JSONResponse(ANSWER),
    "list": JSONResponse([ANSWER, ANSWER]),
    "behind": JSONResponse(
        {"logitport": EXPECTED, **ANSWER}, headers={HEADER: json.dumps(EXPECTED)}
    ),
    "empty": JSONResponse({}),
    "text": Response('{"a": 1}', media_type="text/plain"),
    "compressed": Response(
        b'{"x', headers={"content-encoding": "x"}, media_type="application/json"
    ),
    "nothing": Response(b"", media_type="application/json"),
    "error": JSONResponse({"error": 1}, 500),
}


async def whole(request: Request) -> Response:
    await request.body()
    return ANSWERS[request.path_params.get("kind", "whole")]


async def streamed(request: Request) -> Response:
    await request.body()

    async def chunks() -> Any:
        yield ": a comment\n\n"
        for chunk in CHUNKS:
            yield f"event: message\ndata: {chunk}\n\n"

    return StreamingResponse(chunks(), media_type="text/event-stream")


class Middleware(SpecMiddleware):
    """With the policy of an engine."""

    behind, size = BACKEND, 100

    def backend(self, scope: Any) -> Backend:
        return self.behind

    def check_payload(self, scope: Any, fields: Any, owner: Any, payload: Any) -> Any:
        return admit(self.behind, payload, self.size)[0]

    def may_lose(self, scope: Any, payload: str) -> tuple[str, ...]:
        return admit(self.behind, payload, self.size)[1].may_lose


whole_app = Starlette(routes=[Route("/{path:path}", whole, methods=["POST"])])


def ask(
    path: str, body: Any = None, *, policy: Policy | None = None, method: str = "POST"
) -> httpx.Response:
    routes = [
        Route("/stream" + CHAT, streamed, methods=["POST"]),
        Route("/closed/logitport", JSONResponse({"error": "no key"}, 401)),
        Route("/{kind}/v1/completions", whole, methods=["POST"]),
        Route("/{path:path}", whole, methods=["POST"]),
    ]
    app = Starlette(routes=routes)
    made = type("Made", (Middleware,), {"behind": replace(BACKEND, policy=policy)})
    app.add_middleware(made, engine="vllm", is_server=True)
    return TestClient(app).request(method, path, json=body)


@pytest.mark.parametrize("carrier", ["field", "schema"])
def test_whole(carrier: Any):
    reply = ask(CHAT, extra_body("vllm", SPEC, carrier=carrier))
    assert json.loads(reply.headers[HEADER]) == EXPECTED
    assert reply.json() == {"logitport": EXPECTED, **ANSWER}
    assert int(reply.headers["content-length"]) == len(reply.content)
    for each in (reply, reply.json(), ChatCompletion.model_construct(**reply.json())):
        assert receipt(each, SPEC) == Receipt(("forced_sequence",), EXPECTED["digest"], "agg")


@pytest.mark.parametrize("family", ["think", "kimi-vl"])
@pytest.mark.parametrize("carrier", ["field", "schema"])
def test_of_the_models_tags(carrier: Any, family: str, monkeypatch: pytest.MonkeyPatch):
    """The server says which tags it has found; a text beyond ASCII passes a header, too."""
    tokenizer, sent = tokenizer_of(family), {"kind": "thinking_budget", "budget": 3}
    monkeypatch.setattr(Middleware, "behind", BACKEND.for_tokenizer(tokenizer, 400))
    monkeypatch.setattr(Middleware, "size", 400)
    app = Middleware(whole_app, "vllm", is_server=True)
    for tags, expected in (
        ({"tags": "model"}, (*FAMILIES[family].start, *FAMILIES[family].end)),
        ({"start_text": "a", "end_text": "tags"}, ()),
    ):
        specs = {**sent, **tags}
        body = extra_body("vllm", specs, carrier=carrier)
        reply = TestClient(app).post(CHAT, json=body)
        for each in (reply, reply.json()):
            assert receipt(each, specs).tags == expected


@pytest.mark.parametrize("carrier", ["field", "schema"])
def test_of_a_reply_that_goes_on(carrier: Any):
    reply = ask(CHAT, extra_body("vllm", SPEC, carrier=carrier, continued=7))
    assert receipt(reply, SPEC, continued=7).continued == 7
    with pytest.raises(ReceiptError, match="; it is for `continued` 7, and not 0"):
        receipt(reply, SPEC)


def test_of_the_first_chunk_alone():
    reply = ask("/stream" + CHAT, extra_body("vllm", SPEC))
    assert json.loads(reply.headers[HEADER]) == EXPECTED
    lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    assert json.loads(lines[0]) == {"logitport": EXPECTED, **json.loads(CHUNKS[0])}
    assert lines[1:] == CHUNKS[1:]
    assert reply.text.startswith(": a comment\n\nevent: message\n")
    chunk = ChatCompletionChunk.model_construct(**json.loads(lines[0]))
    assert receipt(chunk, SPEC).stage == "agg"


def test_a_receipt_of_the_server_behind_stays():
    reply = ask("/behind/v1/completions", extra_body("vllm", SPEC))
    assert reply.headers.get_list(HEADER) == [json.dumps(EXPECTED)]
    assert reply.json() == {"logitport": EXPECTED, **ANSWER}


@pytest.mark.parametrize("carrier", ["field", "schema"])
def test_a_gateway_checks_and_changes_nothing(carrier: Any):
    """It does not know what the server behind does, and there may be another gateway before it."""
    received: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        received.append((await receive())["body"])
        await JSONResponse(ANSWER)(scope, receive, send)

    gateway = TestClient(SpecMiddleware(app))  # type: ignore[arg-type]
    body = extra_body("vllm", SPEC, carrier=carrier)
    reply = gateway.post(CHAT, json=body)
    assert [json.loads(each) for each in received] == [body]
    assert (reply.json(), HEADER in reply.headers) == (ANSWER, False)
    with pytest.raises(ReceiptError, match="no receipt"):
        receipt(reply, SPEC, carrier=carrier)
    assert gateway.post("/health", json=body).status_code == 400
    assert gateway.get("/v1/logitport").json() == ANSWER


TEXTS = '[{"kind":"choice","texts":["yes","no"]}]'
CANONICAL = '{"generation_only":true,"specs":[{"kind":"choice","texts":["yes","no"]}],"version":1}'


@pytest.mark.parametrize(
    "body",
    [
        extra_body("vllm", json.loads(TEXTS))["vllm_xargs"],
        {KEY: TEXTS},
        {KEY: json.loads(TEXTS)},
        {KEY: {"version": 1, "specs": json.loads(TEXTS)}},
        {KEY: f'{{ "specs": {TEXTS.replace("yes", chr(92) + "u0079es")},\n"version": 1}}'},
        {KEY: {"specs": [{"texts": ["yes", "no"], "kind": "choice"}], "version": 1}},
        {KEY: json.loads(CANONICAL)},
    ],
)
def test_a_proxy_may_write_the_payload_anew(body: Any, monkeypatch: pytest.MonkeyPatch):
    """As the README sends it, a JSON list in the body; in another form or order."""
    for name in ("check_payload", "may_lose"):
        monkeypatch.setattr(Middleware, name, getattr(SpecMiddleware, name))
    reply = ask(CHAT, {"vllm_xargs": body})
    assert receipt(reply, json.loads(TEXTS)).kinds == ("choice",)
    digest = hashlib.sha256(CANONICAL.encode()).hexdigest()[:32]
    assert reply.json()["logitport"]["digest"] == digest
    with pytest.raises(ReceiptError, match=f"other specs: the digest is '{digest}'"):
        receipt(reply, {"kind": "choice", "texts": ["no", "yes"]})


def test_a_receipt_of_an_older_server():
    sent = s.encode(BAN, generation_only=False)
    older = {**EXPECTED, "digest": hashlib.sha256(sent.encode()).hexdigest()[:32]}
    assert receipt({KEY: older}, BAN, generation_only=False).stage == "agg"


def test_a_receipt_of_a_newer_server():
    newer = {**EXPECTED, "a_later_field": {"x": [1]}}
    assert receipt({KEY: newer}, SPEC) == receipt({KEY: EXPECTED}, SPEC)


@pytest.mark.parametrize("page", ["README.md", "docs/http.md", "adapters/gateway/receipt.py"])
def test_the_digest_of_the_documentation(page: str):
    found = re.findall(r"""kinds.{1,12}choice.{1,40}digest\W+(\w+)""", text(page), re.DOTALL)
    assert found == [digest_of(TEXTS)]


def test_of_several_prompts():
    reply = ask("/list/v1/completions", extra_body("vllm", SPEC))
    assert reply.json() == [{"logitport": EXPECTED, **ANSWER}, ANSWER]
    assert receipt(reply.json(), SPEC).kinds == ("forced_sequence",)


@pytest.mark.parametrize("with_specs", [1, 2])
def test_of_a_list_where_some_prompts_have_no_specs(with_specs: int):
    """There is none: it would be about all prompts."""
    specs: dict[str, Any] = {"extra_args": {"logitport": s.encode(SPEC)}}
    each = [specs, specs] if with_specs == 2 else [{}, specs]
    reply = ask("/inference/v1/generate", {"sampling_params": each})
    assert reply.status_code == 200
    assert ("x-logitport" in reply.headers) is (with_specs == 2)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("empty", "{}"), ("text", '{"a": 1}'), ("compressed", '{"x'), ("nothing", "")],
)
def test_the_header_alone(kind: str, text: str):
    reply = ask(f"/{kind}/v1/completions", extra_body("vllm", SPEC))
    assert json.loads(reply.headers[HEADER]) == EXPECTED
    assert reply.content == text.encode()


def test_none_with_an_error_or_without_specs():
    for reply in (
        ask("/error/v1/completions", extra_body("vllm", SPEC)),
        ask(CHAT, {"model": "m"}),
        ask("/v1/chat/completions/render", extra_body("vllm", SPEC)),
    ):
        assert HEADER not in reply.headers
        assert "logitport" not in reply.text


PRESETS = {"calm": (BAN, SPEC), "other": (BAN,)}

END = s.TriggerSpec((7,), (5,))


# policy | specs | kinds | what else the receipt has
@pytest.mark.parametrize(
    ("policy", "specs", "kinds", "more"),
    [
        (Policy((SPEC,)), BAN, ["banned_tokens"], {}),
        (Policy((SPEC,), "add"), BAN, ["forced_sequence", "banned_tokens"], {"default": True}),
        (
            *(Policy(presets=PRESETS), s.PluginSpec("calm")),
            *(["banned_tokens", "forced_sequence"], {"presets": ["calm"]}),
        ),
        (
            Policy(),
            (END, s.MinTokensSpec(9, (5,))),
            ["trigger", "min_tokens"],
            {"may_lose": ["min_tokens"]},
        ),
        (
            *(Policy((END,), "add"), s.TriggerSpec((8, 7), (6,))),
            *(["trigger"], {"default": True, "may_lose": ["trigger"]}),
        ),
        (Policy(required="news"), BAN, ["banned_tokens"], {"mark": "news"}),
        (Policy(), s.WatermarkSpec("own"), ["watermark"], {"mark": "own"}),
        (Policy(required="news", unmarked=frozenset({"grammar"})), BAN, ["banned_tokens"], {}),
    ],
)
def test_what_the_server_fills_in(policy: Policy, specs: Any, kinds: list[str], more: Any):
    reply = ask(CHAT, extra_body("vllm", specs), policy=policy)
    found = reply.json()["logitport"]
    own = {"digest": digest_of(s.encode(specs)), "stage": "agg", "policy": policy.digest}
    assert found == {"kinds": kinds, **own, **more}
    labels = {"digest": policy.digest}
    assert REGISTRY.get_sample_value("logitport_policy", labels) == 1
    assert receipt(reply, specs).default is more.get("default", False)


def test_a_prefill_server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Middleware, "check_payload", lambda *_: None)
    monkeypatch.setattr(Middleware, "stage", lambda *_: "prefill")
    reply = ask(CHAT, extra_body("vllm", SPEC))
    assert reply.json()["logitport"]["kinds"] == []
    with pytest.raises(ReceiptError, match="do not act at stage prefill"):
        receipt(reply, SPEC)


PASSES = "extra_body('{}', specs, carrier='schema')"
BY_SCHEMA = "`response_format.json_schema.schema.x-logitport` was lost"
OTHER = {**EXPECTED, "digest": "0" * 32}
# a response | carrier | engine | parts of the message
LOST: list[tuple[Any, Any, str, list[str]]] = [
    (ANSWER, "field", "vllm", ["`vllm_xargs.logitport` was lost", PASSES.format("vllm")]),
    (
        *(ChatCompletion.model_construct(**ANSWER), "field", "sglang"),
        ["`custom_params.logitport` was lost", PASSES.format("sglang")],
    ),
    (SimpleNamespace(headers={}), "schema", "vllm", [BY_SCHEMA, "answers with JSON"]),
    ({"logitport": OTHER}, "field", "vllm", ["for other specs", EXPECTED["digest"]]),
    ({"logitport": "obeyed"}, "field", "vllm", ["cannot be read"]),
    (httpx.Response(200, json={"logitport": 5}), "field", "vllm", ["cannot be read"]),
    (httpx.Response(200, text="data: [DONE]"), "field", "vllm", ["was lost"]),
    (httpx.Response(200, json=[]), "field", "vllm", ["was lost"]),
    (httpx.Response(200, stream=httpx.ByteStream(b"{}")), "field", "vllm", ["was lost"]),
    (httpx.Response(502, json={}), "field", "vllm", ["has the status 502, and no receipt"]),
]


@pytest.mark.parametrize(("response", "carrier", "engine", "parts"), LOST)
def test_a_client_fails_closed(response: Any, carrier: Any, engine: str, parts: list[str]):
    with pytest.raises(ReceiptError) as raised:
        receipt(response, SPEC, engine=engine, carrier=carrier)
    for part in parts:
        assert part in str(raised.value)


@pytest.mark.parametrize(
    "text", ["{}", "[{}]", 'data: {}\n\ndata: {{"a": 1}}\n\n', "event: a\r\ndata:{}\r\n\r\n"]
)
def test_of_the_body_where_the_header_was_lost(text: str):
    made = json.dumps({"logitport": EXPECTED})
    response = httpx.Response(200, text=text.format(made))
    assert receipt(response, SPEC).digest == EXPECTED["digest"]


@pytest.mark.parametrize("name", ["x-logitport", "llm_provider-x-logitport", None])
@pytest.mark.parametrize("way", ["stream", "raw response", "helper"])
def test_of_the_header_of_a_stream(name: str | None, way: str):
    """LiteLLM's proxy makes the chunks anew, without the field, and renames the header."""
    headers = {"content-type": "text/event-stream"} | ({name: json.dumps(EXPECTED)} if name else {})
    text = "".join(f"data: {chunk}\n\n" for chunk in CHUNKS)
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, text=text))
    asking = OpenAI(
        base_url="http://s/v1", api_key="-", http_client=httpx.Client(transport=transport)
    )
    chats = asking.chat.completions
    asked: dict[str, Any] = {"model": "m", "messages": [], "extra_body": extra_body("vllm", SPEC)}
    with ExitStack() as stack:
        if way == "helper":
            reply = stack.enter_context(chats.stream(**asked))
            chunks = (each.chunk for each in reply if each.type == "chunk")
        elif way == "stream":
            chunks = reply = chats.create(stream=True, **asked)
        else:
            reply = chats.with_raw_response.create(stream=True, **asked)
            chunks = reply.parse()
        if name:
            assert receipt(reply, SPEC).kinds == ("forced_sequence",)
            assert [each.id for each in chunks] == ["1", "2"]
            return
        hint = "" if way == "raw response" else "first chunk"
        with pytest.raises(ReceiptError, match=f"has no receipt.*{hint}"):
            receipt(reply, SPEC)


def test_native_kinds_have_none():
    native = s.SamplingSpec(temperature=0.5)
    assert receipt(ANSWER, native) == receipt(ANSWER, ()) == Receipt((), "", "")
    assert receipt({"logitport": EXPECTED}, native) == Receipt(**EXPECTED | {"kinds": (SPEC.kind,)})
    assert receipt({"logitport": EXPECTED}, [SPEC, native]).stage == "agg"
    with pytest.raises(ReceiptError):
        receipt(ANSWER, [SPEC, native])


@pytest.mark.parametrize(
    ("grammar", "continued"),
    [
        ({"kind": "grammar", "json_schema": {}, "whitespace_pattern": ""}, 0),
        (s.GrammarSpec(regex="a+"), 3),
    ],
)
def test_a_grammar_that_logitport_follows_has_one(grammar: Any, continued: int):
    body = extra_body("vllm", [grammar], continued=continued)
    receipts = Receipt(("phases",), digest_of(body["vllm_xargs"][KEY]), "agg", continued=continued)
    for specs in (grammar, [grammar]):
        reply = {KEY: msgspec.to_builtins(receipts)}
        assert receipt(reply, specs, continued=continued).kinds == ("phases",)
        with pytest.raises(ReceiptError, match="lost on the way"):
            receipt(ANSWER, specs, continued=continued)


def test_a_scrape_begins_the_series_of_alerts():
    made = Policy(guard=(s.BannedTokensSpec((77,)),))
    ask("/metrics", policy=made, method="GET")
    assert REGISTRY.get_sample_value("logitport_policy", {"digest": made.digest}) == 1
    for decision in ("admitted", "refused"):
        labels = {"decision": decision, "stage": "agg"}
        assert REGISTRY.get_sample_value("logitport_requests_total", labels) is not None


@pytest.mark.parametrize("path", ["/logitport", "/v1/logitport/", "/team/logitport"])
def test_the_server_describes_itself(path: str):
    made = Policy((BAN,), "add", PRESETS, forbid=frozenset({"dry"}))
    reply = ask(path, policy=made, method="GET")
    assert reply.status_code == 200
    found = reply.json()
    assert (found["engine"], found["stage"], found["wire"]) == ("vllm", "agg", 1)
    assert {"forced_sequence", "grammar"} <= set(found["kinds"]) - {"python"} == set(found["kinds"])
    assert found["policy"] == {
        "guard": [],
        "default": ["banned_tokens"],
        "own": "add",
        "presets": ["calm", "other"],
        "forbid": ["dry"],
        "effort": {},
        "digest": made.digest,
    }
    assert found["limits"]["max_specs"] == 16
    assert found["receipts"] is True
    assert found["payload"] == ["continued", "generation_only", "specs", "version"]


def test_the_application_decides_who_may_ask():
    reply = ask("/closed/logitport", method="GET")
    assert (reply.status_code, reply.json()) == (401, {"error": "no key"})
    assert ask("/other", method="GET").status_code == 405
    assert ask("/logitport", method="DELETE").status_code == 405


@pytest.mark.parametrize(
    ("variable", "header", "route"),
    [("LOGITPORT_RECEIPT", False, 200), ("LOGITPORT_ROUTE", True, 405)],
)
def test_each_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, variable: str, header: bool, route: int
):
    monkeypatch.setenv(variable, "0")
    reply = ask(CHAT, extra_body("vllm", SPEC))
    assert (HEADER in reply.headers, "logitport" in reply.text) == (header, header)
    described = ask("/logitport", method="GET")
    assert described.status_code == route
    if route == 200:
        assert described.json()["receipts"] is False
    monkeypatch.setenv(variable, "perhaps")
    with pytest.raises(ValueError, match=f"{variable}='perhaps'"):
        ask(CHAT, {})


def test_nothing_is_kept_back():
    """Each message is sent on before the next one; a start waits for the first piece alone."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> None:
        stamp = Stamp(lambda: Receipt(("dry",), "0", "agg"), send)
        length = (b"content-length", b"12")
        headers = [(b"content-type", b"application/json; charset=utf-8"), length]
        await stamp({"type": "http.response.start", "status": 200, "headers": headers})
        assert not sent
        await stamp({"type": "http.response.body", "body": b'{"a": ', "more_body": True})
        assert len(sent) == 2
        await stamp({"type": "http.response.body", "body": b'{"b":1'})
        assert len(sent) == 3

    asyncio.run(run())
    body = b"".join(each["body"] for each in sent[1:])
    field = b'"logitport":{"kinds":["dry"],"digest":"0","stage":"agg"},'
    assert body == b"{" + field + b'"a": {"b":1'
    assert dict(sent[0]["headers"])[b"content-length"] == b"%d" % (12 + len(field))
