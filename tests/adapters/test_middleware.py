"""The middleware: what it refuses, what it lets through untouched, and in whose words."""

import asyncio
import json
import threading
from itertools import islice, permutations
from typing import Any

import pytest
from logitport.adapters import SpecMiddleware
from logitport.adapters.gateway.key import KEY, check_spelling
from logitport.spec import SpecError, decode
from logitport.spec.limits import MAX_BODY_BYTES

from tests.support.servers import (
    BAD,
    CHAT,
    GENERATE,
    GOOD,
    OTHER,
    echo,
    native,
    post,
    refusal,
    xargs,
)
from tests.tools.fuzz import bodies

TEXTS = '[{"kind":"choice","texts":["a","b"]},{"kind":"allowed_tokens","token_ids":[1]}]'
BESIDE_MANY = xargs(GOOD, sampling_params=[{}] * 70_000)
NEWER = '{"version":2,"specs":[]}'
HERE = "in `vllm_xargs.logitport` - at `"
SPEC = {"kind": "choice", "texts": ["a", "b"]}
BARE = "Expected specs in `vllm_xargs.logitport` - at `"
SPELT = "Expected the key `logitport`, got "
FULL_WIDTH = "".join(chr(ord(letter) + 0xFEE0) for letter in KEY)
SIMILAR = {"".join(each): 1 for each in islice(permutations(KEY), 0, 360_000, 3_600)}
FEWER = "Expected fewer"
AS_TEXT = json.dumps([SPEC])
THERE = "Expected specs for /inference/v1/generate in `sampling_params.extra_args.logitport`"
NO_ROUTE = "/v1/systemone takes no specs; these routes do: /inference/v1/generate, /invocations, "


def of_tokens(payload: Any) -> dict[str, Any]:
    return {"sampling_params": {"extra_args": {KEY: payload}}}


OURS: dict[str, Any] = {KEY: GOOD}
PASSED_ON: dict[str, Any] = {"extra_body": {"vllm_xargs": OURS}}
ANNOTATED = {"annotations": ["a", f"{KEY}:{GOOD}"]}
# route | body | what the message has
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "unknown kind": (CHAT, xargs(BAD), "Invalid value 'mind_reader'; "),
    "newer version": ("/v1/completions", xargs(NEWER), "2 is newer than 1"),
    "not JSON": ("/v1/responses", xargs("Hello"), "not valid JSON"),
    "a number": ("/v1/chat/completions/batch", xargs(7), "int"),
    "null": (CHAT, xargs(None), "got `null`"),
    "behind a prefix": ("/team" + CHAT, xargs(BAD), "mind_reader"),
    "a slash at the end": (CHAT + "/", xargs(BAD), "mind_reader"),
    "to be rendered": (CHAT + "/render", xargs(BAD), "- at `$.specs[0].kind`"),
    "tokens in, tokens out": (GENERATE, of_tokens(BAD), "mind_reader"),
    "in another route's place": (GENERATE, xargs(GOOD, sampling_params={}), THERE),
    "in another engine's place": (CHAT, {"custom_params": OURS}, f"{HERE}custom_params.logitport`"),
    "in the body itself": (CHAT, OURS, f"{HERE}logitport`"),
    "as a client passes it on": (CHAT, PASSED_ON, f"{HERE}extra_body.vllm_xargs.logitport`"),
    "on a route that takes none": ("/v1/systemone", xargs(GOOD), NO_ROUTE),
    "misspelt": (CHAT, xargs(GOOD, "logit_port"), f"{SPELT}'logit_port' - at `vllm_xargs`"),
    "misspelt at the top": (CHAT, {"logit-port": GOOD}, f"{SPELT}'logit-port' - at `the request`"),
    "misspelt in another field": (CHAT, {"metadata": {"logitprot": GOOD}}, "at `metadata`"),
    "without the key": (CHAT, {"vllm_xargs": SPEC}, f"{BARE}vllm_xargs.kind`"),
    "a payload without the key": (CHAT, {"vllm_xargs": {"specs": [SPEC]}}, "at `vllm_xargs.specs`"),
    "a spec as fields": (CHAT, SPEC, f"{BARE}kind`"),
    "in a misspelt field": (CHAT, {"vllm_xarg": OURS}, f"{HERE}vllm_xarg.logitport`"),
    "in a field that begins with a dot": (CHAT, {".vllm_xargs": OURS}, "`vllm_xargs"),
    "as text without the key": (
        CHAT,
        {"vllm_xargs": {"specs": AS_TEXT}},
        f"{BARE}vllm_xargs.specs`",
    ),
    "a payload as text": (CHAT, {"vllm_xargs": {"payload": GOOD}}, f"{BARE}vllm_xargs.payload`"),
    "on a route without specs": (
        "/api/chat",
        {"options": {"vllm_xargs": {"specs": [SPEC]}}},
        "This route takes no specs - at `options.vllm_xargs.specs`",
    ),
    "as an object": (CHAT, {"vllm_xargs": {"payload": {"specs": [SPEC]}}}, "vllm_xargs.payload`"),
    "in a message": (
        CHAT,
        {"messages": [{"role": "system"}, {"role": "user", KEY: GOOD}]},
        f"{HERE}messages[1].logitport`",
    ),
    "misspelt in a message": (CHAT, {"messages": [{"logit_port": 1}]}, "at `messages[0]`"),
    "in full-width letters": (CHAT, xargs(GOOD, FULL_WIDTH), f"{SPELT}'{FULL_WIDTH}'"),
    "under many similar keys": (CHAT, {"x": SIMILAR}, f"{FEWER} names"),
    "under many more": (CHAT, {"x": {f"tripot{i}": i for i in range(20_000)}}, f"{FEWER} names"),
    "beside too many objects": (CHAT, BESIDE_MANY, "Expected at most 32768 objects"),
    "an annotation for Dynamo": (CHAT, {"nvext": ANNOTATED}, f"{HERE}nvext.annotations`"),
    "an object that is bad": (CHAT, xargs(json.loads(BAD)), "mind_reader"),
    "entries that are bad": (CHAT, xargs([{"kind": "mind_reader"}]), "`$[0].kind`"),
    "in a list": (CHAT, {"vllm_xargs": [OURS]}, "at `vllm_xargs[0].logitport`"),
}


@pytest.mark.parametrize(("path", "body", "part"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_400(path: str, body: dict[str, Any], part: str):
    reply = post(path, body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("BadRequestError", KEY, 400)
    assert error["message"].startswith("logitport: ")
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
    "good, tokens in": (GENERATE, of_tokens(GOOD)),
    "none": (CHAT, {"model": "m", "messages": [{"role": "user", "content": KEY}]}),
    "other keys": (CHAT, {"vllm_xargs": {"support": 1, "port": 2, "logprobs": 3, "logit": 4}}),
    "another's kind": (CHAT, {"kind": ["choice"], "vllm_xargs": {"kind": "mine", "specs": [1]}}),
    "a client's own data": (CHAT, {"metadata": SPEC}),
    "a route without specs": ("/v1/embeddings", SPEC),
    "a tool's parameter": (CHAT, {"tools": [{"function": {"parameters": {KEY: {}}}}]}),
    "no object": (CHAT, [1, 2]),
    "not JSON": (CHAT, b"Hello"),
    "nothing": (CHAT, b""),
    "half of it": (CHAT, b'{"vllm_xargs": {"logitport": "'),
    "nested": (CHAT, b"[" * 100_000),
    "the same name twice": (CHAT, b'{"x": 1, "x": {"y": 1, "y": 2}, "logprobs": 1}'),
    "many fields": (CHAT, {f"k{i}": i for i in range(70_000)}),
    "NaN": (CHAT, b'{"temperature": NaN, "vllm_xargs": {"support": 1}}'),
    "an argument that is no object": (CHAT, {"vllm_xargs": 3, "sampling_params": [1]}),
}


@pytest.mark.parametrize(("path", "body"), PASSED.values(), ids=PASSED.keys())
def test_passed_untouched(path: str, body: Any):
    reply = post(path, body)
    assert reply.status_code == 200
    assert reply.content == (body if isinstance(body, bytes) else json.dumps(body).encode())


def test_a_body_that_is_nested_too_deeply():
    body = json.dumps(xargs(GOOD, x=0)).replace(": 0", ": " + "[" * 100_000 + "]" * 100_000)
    assert "not nested so deeply" in refusal(CHAT, body.encode())


HIDDEN = json.dumps(xargs(BAD))


def after(text: str) -> str:
    """Write something before the first field of the body."""
    return "{" + text + HIDDEN[1:]


FIELDS = "".join(f'"k{i}": "{i}\\\\", ' for i in range(20_000))
# Python's parser, which servers use, reads them all.
WRITTEN: dict[str, bytes] = {
    "plainly": HIDDEN.encode(),
    "with a byte order mark": HIDDEN.encode("utf-8-sig"),
    "in UTF-16": HIDDEN.encode("utf-16"),
    "in UTF-32": HIDDEN.encode("utf-32-be"),
    "escaped": HIDDEN.replace(KEY, "\\u006cogitport").encode(),
    "with white space": b"\r\n\t " + HIDDEN.replace('": ', '" \n: ').encode(),
    "beside a lone surrogate": after('"x": "\\ud800", ').encode(),
    "beside one in a name": after('"\\udc00\\ud800": 1, ').encode(),
    "beside one in bytes": after('"x": "\ud800", ').encode(errors="surrogatepass"),
    "beside NaN": after('"x": [NaN, -Infinity], ').encode(),
    "after a deep list": after(f'"x": {"[" * 400}{"]" * 400}, ').encode(),
    "after many fields": after(FIELDS).encode(),
    "after a long list": after(f'"x": [{"[{}]," * 20_000}0], ').encode(),
    "after a long text": after(f'"x": "{"," * 20_000}{" " * 9_000}\\"\\\\", ').encode(),
}


@pytest.mark.parametrize("body", WRITTEN.values(), ids=WRITTEN.keys())
def test_no_way_of_writing_hides_a_payload(body: bytes):
    assert json.loads(body)["vllm_xargs"] == xargs(BAD)["vllm_xargs"]
    assert "mind_reader" in refusal(CHAT, body)
    good = json.loads(body)
    good["vllm_xargs"][KEY] = GOOD
    assert post(CHAT, json.dumps(good).encode()).status_code == 200


@pytest.mark.parametrize("twice", ["{}, ", "null, ", "3, "])
def test_the_same_name_twice_is_refused_beside_specs(twice: str):
    """Parsers differ in which of the two values they take."""
    for body in (after(f'"vllm_xargs": {twice}'), f'{HIDDEN[:-1]}, "vllm_xargs": {twice[:-2]}}}'):
        assert "`vllm_xargs` once in an object" in refusal(CHAT, body.encode())


# Python's parser reads each as the value before the colon, and the server has to read it again.
SURVIVES = (
    '{"z":12345678901234567890123,"a":-0.0,"e":1e+300,"f":0.1,"n":[NaN,-Infinity],'
    '"u":"\\ud800 é \\u0000","":[{},[],null,true],"b":{"10":1,"9":2}}'
)


@pytest.mark.parametrize("written", [json.loads(GOOD), json.loads(GOOD)["specs"]])
@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_a_payload_becomes_text(path: str, written: Any):
    """vLLM takes no object there; all other values stay as they were, in their order."""
    field = '"%s":{"seed": 1,"logitport": %s}'
    field %= ("vllm_xargs" if path == CHAT else "extra_args", json.dumps(written, indent=1))
    field = field if path == CHAT else f'"sampling_params":{{"n": 1,{field}}}'
    reply = post(path, f'{{"x":{SURVIVES},{field},"y":1}}'.encode())
    assert reply.status_code == 200
    body = json.loads(reply.content)
    assert [*body] == ["x", "vllm_xargs" if path == CHAT else "sampling_params", "y"]
    assert repr(body["x"]) == repr(json.loads(SURVIVES))
    args = body["vllm_xargs"] if path == CHAT else body["sampling_params"]["extra_args"]
    assert args == {"seed": 1, KEY: args[KEY]}
    assert args[KEY] == json.dumps(written, separators=(",", ":"))
    assert decode(args[KEY]) == decode(GOOD)
    assert int(reply.headers["x-length"]) == len(reply.content)


LARGE = "x" * MAX_BODY_BYTES
# what a body beyond the limit has | its status
BEYOND: dict[str, tuple[dict[str, Any], int]] = {
    "nothing of ours": ({"messages": [{"content": "log"}], "logprobs": 1}, 200),
    "our name among words": ({"messages": [{"content": KEY}]}, 200),
    "specs": (xargs(GOOD), 413),
    "specs under a misspelt key": (xargs(GOOD, "logit_port"), 413),
    "specs under no key": ({"vllm_xargs": {"specs": AS_TEXT}}, 413),
    "specs in a schema": ({"response_format": {"schema": {"x-logitport": GOOD}}}, 413),
}


@pytest.mark.parametrize(("body", "status"), BEYOND.values(), ids=BEYOND.keys())
@pytest.mark.parametrize("first", [False, True])
def test_a_body_beyond_the_limit(body: dict[str, Any], status: int, first: bool):
    text = json.dumps({"image": LARGE} | body if first else body | {"image": LARGE}).encode()
    reply = post(CHAT, text)
    assert reply.status_code == status
    if status == 200:
        assert reply.content == text
    else:
        assert reply.json()["error"]["code"] == 413
        assert f"`max_body_bytes` ({MAX_BODY_BYTES})" in reply.json()["error"]["message"]


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
    assert [each.name.startswith(KEY) for each in threads] == [True] * 3


# route | body | part of the message; empty where it passes
SGLANG: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat": (CHAT, {"custom_params": {KEY: GOOD}}, ""),
    "another engine's place": (CHAT, xargs(GOOD), "in `custom_params.logitport`"),
    "its own": ("/generate", {"sampling_params": native(GOOD)["sampling_params"][0]}, ""),
    "several": ("/generate", native(GOOD, None, GOOD), ""),
    "one of several is bad": ("/generate", native(None, BAD), "mind_reader"),
    "several that differ": ("/generate", native(GOOD, OTHER), "the same specs"),
    "Vertex, in a prompt": (
        "/vertex_generate",
        {"instances": [{"text": "a"}, {"text": "b", **native(GOOD)}]},
        "`parameters.sampling_params.custom_params.logitport`",
    ),
    "Vertex": ("/vertex_generate", {"parameters": native(BAD)}, "mind_reader"),
    "Ollama": ("/api/generate", native(GOOD), "/api/generate takes no specs"),
    "one of several is misspelt": (
        "/generate",
        {"sampling_params": [{}, {"custom_params": {"logit_port": GOOD}}]},
        "at `sampling_params[1].custom_params`",
    ),
}


@pytest.mark.parametrize(("path", "body", "part"), SGLANG.values(), ids=SGLANG.keys())
def test_sglang_has_its_own_places(path: str, body: Any, part: str):
    if part:
        assert part in refusal(path, body, engine="sglang")
    else:
        assert post(path, body, engine="sglang").status_code == 200


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


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("PUT", 400)])
def test_only_what_has_a_body_is_looked_at(method: str, status: int):
    assert post(CHAT, xargs(BAD), method=method).status_code == status


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
    "loggitport ogitport 1ogitport logitport_spec x-logitport logitport.specs LOGITPORT logport "
    f"logipt lgoitprot {FULL_WIDTH} ⓛⓞⓖⓘⓣⓟⓞⓡⓣ"
)
OTHER_NAMES = (
    f"{KEY} logprobs top_logprobs logit_bias logits port support transport import "
    f"log_transport logits_processors portfolio plotting protocol logistic {'lo_it_po_t' * 7}"
)


@pytest.mark.parametrize("name", MISSPELT.split())
def test_misspelt(name: str):
    with pytest.raises(SpecError, match="Expected the key `logitport`"):
        check_spelling(["seed", name], "$")


def test_not_misspelt():
    check_spelling([*OTHER_NAMES.split(), "", 7, None], "$")


@pytest.mark.parametrize("number", range(4))
def test_no_body_passes_unchecked(number: int):
    counts, wrong, _ = bodies.fuzz(number, 500, 600)
    assert not wrong
    assert counts["status 200"] > 100 < counts["status 400"]
