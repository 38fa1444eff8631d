"""The middleware: what it refuses, what it lets through untouched, and in whose words."""

import asyncio
import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logitport.adapters import SpecMiddleware
from logitport.adapters.gateway.key import KEY, check_spelling
from logitport.spec import SpecError, decode

from tests.support.servers import BAD, CHAT, GENERATE, GOOD, OTHER, echo, native, post, xargs
from tests.tools.fuzz import bodies

TEXTS = '[{"kind":"choice","texts":["a","b"]},{"kind":"allowed_tokens","token_ids":[1]}]'
NO_TEXTS = '[{"kind":"choice","texts":"a"}]'
NEWER = '{"version":2,"specs":[]}'


# route | body | what the message has
REFUSED: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "unknown kind": (CHAT, xargs(BAD), ("mind_reader", "`$.specs[0].kind`")),
    "streamed": (CHAT, xargs(BAD, stream=True), ("mind_reader",)),
    "newer version": ("/v1/completions", xargs(NEWER), ("2 is newer than 1",)),
    "not JSON": ("/v1/responses", xargs("Hello"), ("not valid JSON",)),
    "a number": ("/v1/chat/completions/batch", xargs(7), ("int",)),
    "null": (CHAT, xargs(None), ("NoneType",)),
    "behind a prefix": ("/team" + CHAT, xargs(BAD), ("mind_reader",)),
    "a slash at the end": (CHAT + "/", xargs(BAD), ("mind_reader",)),
    "to be rendered": (CHAT + "/render", xargs(BAD), ("mind_reader",)),
    "tokens in, tokens out": (
        GENERATE,
        {"sampling_params": {"extra_args": {KEY: BAD}}},
        ("mind_reader",),
    ),
    "in another route's place": (
        GENERATE,
        xargs(GOOD, sampling_params={}),
        ("Expected specs for /inference/v1/generate in `sampling_params.extra_args.logitport`",),
    ),
    "in another engine's place": (
        CHAT,
        {"custom_params": {KEY: GOOD}},
        ("in `vllm_xargs.logitport`", "at `custom_params.logitport`"),
    ),
    "texts without a list": (CHAT, xargs(NO_TEXTS), ("Expected `array`", "$[0].texts")),
    "in the body itself": (CHAT, {KEY: GOOD}, ("in `vllm_xargs.logitport`", "at `logitport`")),
    "as a client would have passed it on": (
        CHAT,
        {"extra_body": {"vllm_xargs": {KEY: GOOD}}},
        ("in `vllm_xargs.logitport`", "at `extra_body.vllm_xargs.logitport`"),
    ),
    "on a route that takes none": (
        "/v1/systemone",
        xargs(GOOD),
        ("/v1/systemone takes no specs", "/v1/completions"),
    ),
    "misspelt": (CHAT, xargs(GOOD, "logit_port"), ("`logitport`", "'logit_port'", "vllm_xargs")),
    "misspelt at the top": (CHAT, {"logit-port": GOOD}, ("'logit-port'", "the request")),
    "misspelt in another field": (CHAT, {"metadata": {"logitprot": GOOD}}, ("at `metadata`",)),
    "in a misspelt field": (
        CHAT,
        {"vllm_xarg": {KEY: GOOD}},
        ("in `vllm_xargs.logitport`", "at `vllm_xarg.logitport`"),
    ),
    "in a field that begins with a dot": (CHAT, {".vllm_xargs": {KEY: GOOD}}, ("`vllm_xargs",)),
    "among too many fields": (
        CHAT,
        {**{f"k{i}": i for i in range(70_000)}, **xargs(GOOD)},
        ("logitport: Expected at most 32768 fields",),
    ),
    "in an object of too many fields": (
        CHAT,
        {"metadata": {f"k{i}": i for i in range(70_000)}, **xargs(GOOD)},
        ("logitport: Expected at most 32768 fields", "at `metadata`"),
    ),
    "beside too many objects": (
        CHAT,
        {"sampling_params": [{}] * 70_000, **xargs(GOOD)},
        ("logitport: Expected at most 32768 objects", "at `sampling_params`"),
    ),
    "an annotation for Dynamo": (
        CHAT,
        {"nvext": {"annotations": ["a", f"{KEY}:{GOOD}"]}},
        ("in `vllm_xargs.logitport`", "at `nvext.annotations`"),
    ),
    "an object that is bad": (CHAT, xargs(json.loads(BAD)), ("mind_reader",)),
    "entries that are bad": (
        CHAT,
        xargs([{"kind": "mind_reader"}]),
        ("mind_reader", "`$[0].kind`"),
    ),
    "in a list": (CHAT, {"vllm_xargs": [{KEY: GOOD}]}, ("at `vllm_xargs[0].logitport`",)),
    "in a list, often": (CHAT, {"vllm_xargs": [{KEY: GOOD}] * 500}, ("at `vllm_xargs[0]",)),
}


@pytest.mark.parametrize(("path", "body", "parts"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_400(path: str, body: dict[str, Any], parts: tuple[str, ...]):
    reply = post(path, body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("BadRequestError", KEY, 400)
    assert error["message"].startswith("logitport: ")
    for part in parts:
        assert part in error["message"]


def test_refused_in_anthropics_form():
    reply = post("/v1/messages", xargs(BAD))
    assert reply.status_code == 400
    assert reply.json()["type"] == "error"
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert "mind_reader" in reply.json()["error"]["message"]


PASSED: dict[str, tuple[str, Any]] = {
    "good": (CHAT, xargs(GOOD)),
    "texts, which the server tokenizes": (CHAT, xargs(TEXTS)),
    "good, streamed": ("/stream/v1/completions", xargs(GOOD, stream=True)),
    "good, tokens in": (GENERATE, {"sampling_params": {"extra_args": {KEY: GOOD}}}),
    "none": (CHAT, {"model": "m", "messages": [{"role": "user", "content": KEY}]}),
    "other keys": (CHAT, {"vllm_xargs": {"support": 1, "port": 2, "logprobs": 3, "logit": 4}}),
    "a tool's parameter": (CHAT, {"tools": [{"function": {"parameters": {KEY: {}}}}]}),
    "no object": (CHAT, [1, 2]),
    "not JSON": (CHAT, b"Hello"),
    "nothing": (CHAT, b""),
    "half of it": (CHAT, b'{"vllm_xargs": {"logitport": "'),
    "nested": (CHAT, b"[" * 100_000),
    "NaN": (CHAT, b'{"temperature": NaN, "vllm_xargs": {"support": 1}}'),
    "an argument that is no object": (CHAT, {"vllm_xargs": 3, "sampling_params": [1]}),
}


@pytest.mark.parametrize(("path", "body"), PASSED.values(), ids=PASSED.keys())
def test_passed_untouched(path: str, body: Any):
    reply = post(path, body)
    assert reply.status_code == 200
    assert reply.content == (body if isinstance(body, bytes) else json.dumps(body).encode())


HIDDEN = json.dumps(xargs(BAD))
# Python's parser, which servers use, reads them all.
WRITTEN: dict[str, bytes] = {
    "plainly": HIDDEN.encode(),
    "with a byte order mark": HIDDEN.encode("utf-8-sig"),
    "in UTF-16": HIDDEN.encode("utf-16"),
    "in UTF-32": HIDDEN.encode("utf-32-be"),
    "escaped": HIDDEN.replace(KEY, "\\u006cogitport").encode(),
    "with white space": b"\r\n\t " + HIDDEN.replace('": ', '" \n: ').encode(),
    "beside a lone surrogate": HIDDEN.replace("{", '{"x": "\\ud800", ', 1).encode(),
    "beside one in a name": HIDDEN.replace("{", '{"\\udc00\\ud800": 1, ', 1).encode(),
    "beside one in bytes": HIDDEN.replace("{", '{"x": "\ud800", ', 1).encode(
        errors="surrogatepass"
    ),
    "beside NaN": HIDDEN.replace("{", '{"x": [NaN, -Infinity], ', 1).encode(),
    "after itself": HIDDEN.replace("{", '{"vllm_xargs": {}, ', 1).encode(),
    "after a deep list": HIDDEN.replace("{", f'{{"x": {"[" * 400}{"]" * 400}, ', 1).encode(),
    "after many fields": HIDDEN.replace(
        "{", "{" + "".join(f'"k{i}": "{i}\\\\", ' for i in range(20_000)), 1
    ).encode(),
    "after a long list": HIDDEN.replace("{", f'{{"x": [{"[{}]," * 20_000}0], ', 1).encode(),
    "after a long text": HIDDEN.replace(
        "{", f'{{"x": "{"," * 20_000}{" " * 9_000}\\"\\\\", ', 1
    ).encode(),
}


@pytest.mark.parametrize("body", WRITTEN.values(), ids=WRITTEN.keys())
def test_no_way_of_writing_hides_a_payload(body: bytes):
    assert json.loads(body)["vllm_xargs"] == xargs(BAD)["vllm_xargs"]
    reply = post(CHAT, body)
    assert reply.status_code == 400
    assert "mind_reader" in reply.json()["error"]["message"]
    good = json.loads(body)
    good["vllm_xargs"][KEY] = GOOD
    assert post(CHAT, json.dumps(good).encode()).status_code == 200


@pytest.mark.parametrize("written", [json.loads(GOOD), json.loads(GOOD)["specs"]])
@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_a_payload_becomes_text(path: str, written: Any):
    """vLLM takes no object there; the rest of the body stays as it was, to the last byte."""
    text = json.dumps(written, indent=1)
    start, end = b'{"x":1.0e0,', b'"y":[ "\\u0041" ]}'
    inner, outer = ("vllm_xargs", "") if path == CHAT else ("extra_args", "sampling_params")
    field = f'"{inner}":{{"seed": 1,"logitport": %s}}'
    field = f'"{outer}":{{"n": 1,{field}}}' if outer else field
    reply = post(path, start + (field % text).encode() + b"," + end)
    assert reply.status_code == 200
    assert reply.content.startswith(start)
    assert reply.content.endswith(end)
    body = json.loads(reply.content)
    args = body["vllm_xargs"] if path == CHAT else body["sampling_params"]["extra_args"]
    assert args == {"seed": 1, KEY: text}
    assert decode(args[KEY]) == decode(GOOD)
    assert int(reply.headers["x-length"]) == len(reply.content)


@pytest.mark.parametrize("filler", ["", "[]," * 10_000], ids=["small", "large"])
def test_the_event_loop_is_free_while_a_payload_is_checked(
    monkeypatch: pytest.MonkeyPatch, filler: str
):
    threads: list[threading.Thread] = []
    monkeypatch.setattr(
        SpecMiddleware, "check_payload", lambda *_: threads.append(threading.current_thread())
    )
    payloads = ",".join([json.dumps({"custom_params": {KEY: GOOD}})] * 3)
    body = f'{{"x": [{filler}0], "sampling_params": [{payloads}]}}'.encode()
    assert post("/generate", body, engine="sglang").status_code == 200
    assert len(threads) == 3
    assert threading.main_thread() not in threads


# route | body | method | part of the message, or None where it passes
SGLANG: dict[str, tuple[str, dict[str, Any], str, str | None]] = {
    "chat": (CHAT, {"custom_params": {KEY: GOOD}}, "POST", None),
    "another engine's place": (CHAT, xargs(GOOD), "POST", "in `custom_params.logitport`"),
    "its own": ("/generate", {"sampling_params": native(GOOD)["sampling_params"][0]}, "POST", None),
    "several": ("/generate", native(GOOD, None, GOOD), "POST", None),
    "one of several is bad": ("/generate", native(None, BAD), "POST", "mind_reader"),
    "several that differ": ("/generate", native(GOOD, OTHER), "POST", "the same specs"),
    "put": ("/generate", native(BAD), "PUT", "mind_reader"),
    "Vertex, in a prompt": (
        "/vertex_generate",
        {"instances": [{"text": "a"}, {"text": "b", **native(GOOD)}]},
        "POST",
        "`parameters.sampling_params.custom_params.logitport`",
    ),
    "Vertex": ("/vertex_generate", {"parameters": native(BAD)}, "POST", "mind_reader"),
    "Ollama": ("/api/generate", native(GOOD), "POST", "/api/generate takes no specs"),
    "one of several is misspelt": (
        "/generate",
        {"sampling_params": [{}, {"custom_params": {"logit_port": GOOD}}]},
        "POST",
        "at `sampling_params[1].custom_params`",
    ),
}


@pytest.mark.parametrize(("path", "body", "method", "part"), SGLANG.values(), ids=SGLANG.keys())
def test_sglang_has_its_own_places(path: str, body: Any, method: str, part: str | None):
    reply = post(path, body, engine="sglang", method=method)
    if part is None:
        assert reply.status_code == 200
    else:
        assert reply.status_code == 400
        assert part in reply.json()["error"]["message"]


def test_the_application_decides_who_may_ask():
    assert post("/closed/v1/completions", xargs(BAD)).status_code == 401


def test_the_application_keeps_its_headers_and_its_faults():
    reply = post("/fastapi/v1/completions", xargs(BAD), headers={"origin": "http://a.page"})
    assert reply.status_code == 400
    assert reply.headers["access-control-allow-origin"] == "*"
    assert int(reply.headers["content-length"]) == len(reply.content)
    with pytest.raises(RuntimeError, match="own fault"):
        post("/breaks/v1/completions", xargs(GOOD))
    assert post("/breaks/v1/completions", xargs(BAD)).status_code == 400


def test_what_has_no_body_is_not_looked_at():
    assert post(CHAT, xargs(BAD), method="GET").status_code == 200


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_a_body_may_come_in_pieces_and_the_client_may_leave(pieces: int):
    body = json.dumps(xargs(GOOD)).encode()
    size = -(-len(body) // pieces)
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": body[i : i + size], "more_body": True}
        for i in range(0, len(body), size)
    ]
    messages[-1]["more_body"] = False
    assert asyncio.run(_received([*messages, GONE]))[:2] == [
        {"type": "http.request", "body": body, "more_body": False},
        GONE,
    ]
    left = [*messages[:-1], GONE]
    assert asyncio.run(_received(left))[0] == GONE


GONE = {"type": "http.disconnect"}


async def _received(messages: list[dict[str, Any]]) -> list[Any]:
    """What an application receives that asks twice."""
    given = iter(messages)
    received: list[Any] = []

    async def receive() -> Any:
        return next(given, GONE)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        received.extend([await receive(), await receive()])

    async def send(message: Any) -> None:
        raise AssertionError("nothing is sent")

    scope = {"type": "http", "method": "POST", "path": CHAT}
    await SpecMiddleware(app)(scope, receive, send)  # type: ignore[arg-type]
    return received


def test_what_is_no_http_passes():
    passed: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["type"])

    async def nothing(*_: Any) -> Any: ...

    for kind in ("lifespan", "websocket"):
        asyncio.run(SpecMiddleware(app)({"type": kind}, nothing, nothing))  # type: ignore[arg-type]
    assert passed == ["lifespan", "websocket"]


@pytest.mark.parametrize("engine", ["transformers", "no_such_engine"])
def test_an_engine_without_a_server(engine: str):
    with pytest.raises(SpecError):
        SpecMiddleware(echo, engine)  # type: ignore[arg-type]


MISSPELT = (
    "logit_port LogitPort logits-port logitsports logitprot logiport lgoitport logitportt "
    "loggitport ogitport 1ogitport logitport_spec x-logitport logitport.specs LOGITPORT logport"
)
OTHER_NAMES = (
    f"{KEY} logprobs top_logprobs logit_bias logits port support transport import log_port_10 "
    f"logistic {'lo_it_po_t' * 7}"
)


@pytest.mark.parametrize("name", MISSPELT.split())
def test_misspelt(name: str):
    with pytest.raises(SpecError, match="Expected the key `logitport`"):
        check_spelling(["seed", name], "$")


def test_not_misspelt():
    check_spelling([*OTHER_NAMES.split(), "", 7, None], "$")


@pytest.mark.parametrize("number", range(4))
def test_no_body_passes_unchecked(number: int):
    counts, wrong, _ = bodies.fuzz(number, 500, 60)
    assert not wrong
    assert counts["status 200"] > 100 < counts["status 400"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [KEY, "vllm_xargs", "sampling_params", "extra_args", "logit_port", "x"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(JSON, st.sampled_from([CHAT, GENERATE, "/v1/systemone"]))
def test_nothing_that_a_client_sends_is_a_500(body: Any, path: str):
    assert post(path, body).status_code in (200, 400)
