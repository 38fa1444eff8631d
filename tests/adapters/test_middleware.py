"""The middleware: what it refuses, what it lets through untouched, and in whose words."""

import asyncio
import json
import logging
import threading
from dataclasses import replace
from itertools import islice, permutations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from logitport.adapters import Policy, SpecMiddleware, metrics
from logitport.adapters.backend import backend
from logitport.adapters.gateway import exchange, json_body, middleware
from logitport.adapters.gateway.key import KEY, check_spelling
from logitport.spec import BannedTokensSpec, SpecError, decode
from logitport.spec.limits import MAX_BODY_BYTES
from prometheus_client import REGISTRY

from tests.support.servers import (
    BAD,
    CHAT,
    GENERATE,
    GOOD,
    answered,
    echo,
    post,
    refusal,
    xargs,
)
from tests.support.transcripts import check, transcripts
from tests.tools.fuzz import bodies

FULL_WIDTH = "".join(chr(ord(letter) + 0xFEE0) for letter in KEY)
SIMILAR = {"".join(each): 1 for each in islice(permutations(KEY), 0, 360_000, 3_600)}
# body | what the message has
LARGE_BODIES: dict[str, tuple[dict[str, Any], str]] = {
    "many similar keys": ({"x": SIMILAR}, "Expected fewer names"),
    "many more": ({"x": {f"tripot{i}": i for i in range(20_000)}}, "Expected fewer names"),
    "many objects": (xargs(GOOD, sampling_params=[{}] * 70_000), "at most 32768 objects"),
}


@transcripts("requests")
def test_transcript(file: Path, request: pytest.FixtureRequest):
    check(file, answered, request)


@pytest.mark.parametrize(("body", "part"), LARGE_BODIES.values(), ids=LARGE_BODIES)
def test_too_much_to_look_through(body: dict[str, Any], part: str):
    assert part in refusal(CHAT, body)


PAYLOAD = {KEY: GOOD}
IN_MESSAGES: list[tuple[Any, str]] = [
    ({"role": "user", **PAYLOAD}, ""),
    ({"role": "user", "vllm_xargs": PAYLOAD}, ".vllm_xargs"),
    ({"role": "user", "content": [{"type": "text"}, PAYLOAD]}, ".content[1]"),
    ({"role": "user", "content": [{"vllm_xargs": PAYLOAD}]}, ".content[0].vllm_xargs"),
]


@pytest.mark.parametrize(("message", "where"), IN_MESSAGES)
def test_specs_in_a_message_are_refused(message: Any, where: str):
    says = refusal(CHAT, {"messages": [message]})
    assert "Expected specs for /v1/chat/completions in `vllm_xargs.logitport`" in says
    assert f"messages[0]{where}.logitport" in says
    assert post(CHAT, {"messages": [{"role": "user", "content": GOOD}]}).status_code == 200


def test_refused_in_openais_form():
    error = post(CHAT, xargs(BAD)).json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("BadRequestError", KEY, 400)


def test_refused_in_anthropics_form():
    reply = post("/v1/messages", xargs(BAD))
    assert reply.status_code == 400
    assert reply.json()["type"] == "error"
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert "mind_reader" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"vllm_xargs": {"logitport": "',
        b"[" * 100_000,
        json.dumps({f"k{i}": i for i in range(70_000)}).encode(),
    ],
    ids=["nothing", "half of it", "nested", "many fields"],
)
def test_passed_untouched(body: bytes):
    reply = post(CHAT, body)
    assert (reply.status_code, reply.content) == (200, body)


SPEC = {"kind": "choice", "texts": ["a", "b"]}


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
    "specs under no key": ({"vllm_xargs": {"specs": json.dumps([SPEC])}}, 413),
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


LIMIT = 4096
PARTS: dict[str, tuple[str, bool]] = {  # what a body beyond the limit has | whether it is refused
    "specs": (f'"vllm_xargs": {{"{KEY}": []}}', True),
    "an escaped name": ('"\\u006cogitport": []', True),
    "a misspelt name": ('"logit_port": []', True),
    "a name before white space": (f'"{KEY}" {" " * (LIMIT - 16)} : []', True),
    "specs under no key": ('"a": {"kind": "dry", "multiplier": 1}', True),
    "words": (f'"content": "{KEY} logitport"', False),
}


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (exchange, json_body, middleware):
        monkeypatch.setattr(module, "MAX_BODY_BYTES", LIMIT)


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize(("encoding", "width"), [("utf-8", 1), ("utf-16", 2)])
@pytest.mark.parametrize(("has", "is_refused"), PARTS.values(), ids=PARTS)
def test_a_body_beyond_the_limit_is_searched_in_parts(
    has: str, is_refused: bool, encoding: str, width: int
):
    """Wherever one part ends, and the next begins."""
    for filler in range(LIMIT // width - 60, LIMIT // width + 40, 7):
        body = f'{{"x": "é{"x" * filler}", {has}, "y": "{"y" * 2 * LIMIT}"}}'.encode(encoding)
        pieces = [body[i : i + 77] for i in range(0, len(body), 77)]
        received, sent, most = asyncio.run(_received(_messages(pieces)))
        assert most <= LIMIT + 77
        if is_refused:
            assert [message.get("status") for message in sent] == [413, None]
        else:
            assert not sent
            assert b"".join(message["body"] for message in received) == body


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize(
    ("path", "content_type", "is_read"),
    [
        ("/v1/audio/transcriptions", "multipart/form-data; boundary=x", False),
        ("/v1/audio/transcriptions", "audio/wav", False),
        ("/v1/audio/transcriptions", "application/json", True),
        ("/v1/audio/transcriptions", "Application/Vnd.Some+JSON", True),
        ("/v1/audio/transcriptions", None, True),
        (CHAT, "multipart/form-data", True),
    ],
)
def test_what_is_no_json_by_its_content_type_passes_unread(
    path: str, content_type: str | None, is_read: bool
):
    """A route that takes specs is never left unread: some servers parse any content type."""
    pieces = [f'{{"{KEY}": '.encode(), b"[]", b"}"]
    headers = [] if content_type is None else [(b"Content-Type", content_type.encode())]
    received, sent, _ = asyncio.run(_received(_messages(pieces), path, headers))
    if is_read:
        assert [message.get("status") for message in sent] == [400, None]
    else:
        assert [message["body"] for message in received] == pieces


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
    messages = _messages([body[i : i + size] for i in range(0, len(body), size)])
    assert asyncio.run(_received(messages))[0] == _messages([body])
    assert asyncio.run(_received(messages[:-1]))[:2] == ([], [])


GONE = {"type": "http.disconnect"}


def _messages(pieces: list[bytes]) -> list[dict[str, Any]]:
    """The messages of a body that comes in pieces."""
    return [
        {"type": "http.request", "body": piece, "more_body": i < len(pieces) - 1}
        for i, piece in enumerate(pieces)
    ]


async def _received(
    messages: list[dict[str, Any]], path: str = CHAT, headers: Any = ()
) -> tuple[list[dict[str, Any]], list[Any], int]:
    """What an application receives, what is answered, and the most bytes that were kept."""
    given = iter(messages)
    received, sent, kept = list[dict[str, Any]](), list[Any](), [0]

    async def receive() -> Any:
        message = next(given, GONE)
        kept.append(kept[-1] + len(message.get("body", b"")))
        return message

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive()) != GONE:
            received.append(message)
            kept.append(kept[-1] - len(message["body"]))

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [*headers]}
    await SpecMiddleware(app)(scope, receive, send)  # type: ignore[arg-type]
    return received, sent, max(kept)


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


GUARDED = Policy(guard=(BannedTokensSpec((5,)),))


def refusals() -> float:
    labels = {"decision": "refused", "stage": "agg"}
    return REGISTRY.get_sample_value("logitport_requests_total", labels) or 0


@pytest.mark.parametrize(
    ("body", "line"),
    [({"use_beam_search": True}, "no beam search"), (xargs("?\n"), "not valid JSON")],
)
def test_a_refusal_is_logged_and_counted(caplog: pytest.LogCaptureFixture, body: Any, line: str):
    before = refusals()
    made = replace(backend("vllm"), policy=GUARDED)
    with (
        patch.object(SpecMiddleware, "backend", lambda *_: made),
        patch.object(metrics, "_REFUSALS", metrics.RefusalLog()),
        caplog.at_level(logging.INFO, "logitport"),
    ):
        assert post(CHAT, body).status_code == 400
    (logged,) = [record.message for record in caplog.records if record.name.startswith("logitport")]
    assert logged.startswith("logitport: refused a request: ")
    assert line in logged
    assert refusals() == before + 1


def test_a_client_cannot_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """The lines of a minute have a limit, and the first one after says how many there were."""
    now = 0.0
    monkeypatch.setattr(metrics, "monotonic", lambda: now)
    log = metrics.RefusalLog(per_minute=2)
    with caplog.at_level(logging.INFO, "logitport"):
        for second in (0, 30, 31, 59, 60, 61, 90):
            now = float(second)
            log.add(SpecError(f"at {second}"))
    refused = "logitport: refused a request"
    more = f"{refused}, and 2 more since the line before: at 60"
    last = f"{refused}, and 1 more since the line before: at 90"
    assert caplog.messages == [f"{refused}: at 0", f"{refused}: at 30", more, last]
