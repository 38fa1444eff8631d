"""The detector as a server: its answers, hostile bodies, and many texts at once."""

import json
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from logitport.adapters.detection import Detection, detect, read_profiles
from logitport.adapters.detection.question import TextTokenizer
from logitport.adapters.detection.server import AT_ONCE, MAX_BODY, make_app
from starlette.testclient import TestClient

from tests.support.marked import marked, unmarked

KEYS = {"NEWS_KEY": "4815162342", "OLD_KEY": "2342"}
PROFILES = read_profiles(
    {
        "news": {"scheme": "vllm-gumbel", "key": {"env": "NEWS_KEY"}},
        "old": {"scheme": "vllm-gumbel", "key": {"env": "OLD_KEY"}, "width": 2},
        "second": {"scheme": "sglang-gumbel", "key": {"env": "OLD_KEY"}},
        "green": {"scheme": "kgw", "key": {"env": "OLD_KEY"}, "vocab_size": 1000},
        "other": {
            "scheme": "synthid",
            "key": {"env": "OLD_KEY"},
            "tokenizer": "sha256:" + "0" * 64,
        },
    }
)
TOKENIZER = TextTokenizer(
    "MODEL", "sha256:" + "1" * 64, lambda text: [int(word) for word in text.split()]
)
MARKED = marked(4815162342, 40)
TEXT = " ".join(map(str, MARKED))


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)


def ask(body: Any, tokenizer: TextTokenizer | None = TOKENIZER) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = TestClient(make_app(PROFILES, tokenizer)).post("/detect", content=content)
    assert not any(key in reply.text for key in KEYS.values())
    return reply


# the body | the profiles that are tried
@pytest.mark.parametrize(
    ("body", "tried"),
    [
        ({"token_ids": MARKED}, [*PROFILES]),
        ({"token_ids": MARKED, "profiles": ["old", "news"]}, ["news", "old"]),
        ({"token_ids": MARKED, "profiles": ["second"]}, ["second"]),
        ({"token_ids": MARKED, "prompt_token_ids": [1, 2, 3]}, [*PROFILES]),
        ({"text": TEXT, "profiles": ["news", "old"]}, ["news", "old"]),
        ({"text": TEXT, "tokenizer": "MODEL", "profiles": ["old", "news"]}, ["news", "old"]),
        ({"text": TEXT, "tokenizer": TOKENIZER.digest, "profiles": ["news"]}, ["news"]),
        ({"text": "", "profiles": ["old"]}, ["old"]),
    ],
)
def test_answers(body: Any, tried: Sequence[str]):
    """They are those of ``detect``, with the figures of the likeliest profile on top."""
    reply = ask(body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/json"
    tokens = MARKED if body.get("text") != "" else []
    chosen = {name: PROFILES[name] for name in tried}
    found = detect(tokens, chosen, prompt_token_ids=body.get("prompt_token_ids", ()))
    answer = reply.json()
    assert answer.pop("p_value") == found.findings[0].p_value
    assert answer.pop("score") == found.findings[0].score
    assert msgspec.convert(answer, Detection, strict=True) == found
    assert found.is_watermarked is ("news" in tried)


@pytest.mark.parametrize(("given", "threshold"), [({}, 0.001), ({"threshold": 0.5}, 0.5)])
def test_threshold(given: Any, threshold: float):
    client = TestClient(make_app(PROFILES, threshold=0.001))
    answer = client.post("/detect", json={"token_ids": [1], **given}).json()
    assert answer["threshold"] == threshold


@pytest.mark.parametrize("threshold", [0, 1, -1, 2, float("nan")])
def test_a_wrong_threshold_at_the_start(threshold: float):
    with pytest.raises(ValueError, match="Expected a threshold between 0 and 1"):
        make_app(PROFILES, threshold=threshold)


def test_other_routes():
    client = TestClient(make_app(PROFILES))
    assert client.get("/health").json() == {"status": "ok"}
    schemes = {name: each.__struct_config__.tag for name, each in PROFILES.items()}
    assert client.get("/profiles").json() == schemes
    assert client.get("/detect").status_code == 405
    assert client.get("/").status_code == 404


ONE = {"token_ids": [1]}


# the body | the path of the error | what its message has
@pytest.mark.parametrize(
    ("body", "path", "what"),
    [
        (b"", "$", "truncated"),
        (b"{", "$", "truncated"),
        (b"\xff", "$", "malformed"),
        (b'{"text": "\xff"}', "$", "UTF-8"),
        (b'{"text": "\\ud800"}', "$", ""),
        (b"[" * 100_000, "$", "object"),
        (b'{"text": ' + b"[" * 100_000, "$.text", "str"),
        (b'{"token_ids": [' + b"9" * 5000 + b"]}", "$.token_ids[0]", "out of range"),
        (b'{"token_ids": [1], "threshold": 1e999}', "$.threshold", "out of range"),
        (b'{"token_ids": [1], "threshold": NaN}', "$", "malformed"),
        (b" " * (MAX_BODY + 1), "$", "at most 4,194,304 bytes"),
        (b'{"token_ids": [' + b"1," * (1 << 20) + b"1]}", "$.token_ids", "at most 1048576"),
        (
            b'{"token_ids": [], "prompt_token_ids": [' + b"1," * (1 << 20) + b"1]}",
            "$.prompt_token_ids",
            "at most 1048576",
        ),
        (
            b'{"profiles": ["old"], "text": "' + b"1 " * (1 << 20) + b'1"}',
            "$.text",
            "costs at most 1,048,576, got 2,097,153",
        ),
        (
            b'{"profiles": ["green"], "token_ids": [' + b"1," * (1 << 14) + b"1]}",
            "$.token_ids",
            "costs at most 1,048,576, got 1,048,640",
        ),
        ([], "$", "object"),
        (None, "$", "object"),
        ({}, "$", "`text` or `token_ids`"),
        ({"text": None}, "$", "`text` or `token_ids`"),
        ({"text": TEXT, **ONE}, "$", "`text` or `token_ids`"),
        ({"text": 1}, "$.text", "str"),
        ({"text": TEXT}, "$.text", "other needs the tokenizer sha256:0000"),
        ({"token_ids": "1"}, "$.token_ids", "array"),
        ({"token_ids": [1.0]}, "$.token_ids[0]", "int"),
        ({"token_ids": [True]}, "$.token_ids[0]", "int"),
        ({"token_ids": [1, -1]}, "$.token_ids[1]", ">= 0"),
        ({"token_ids": [1 << 32]}, "$.token_ids[0]", "<= 4294967295"),
        ({**ONE, "prompt_token_ids": None}, "$.prompt_token_ids", "array"),
        ({**ONE, "prompt_token_ids": [[1]]}, "$.prompt_token_ids[0]", "int"),
        ({**ONE, "threshold": 0}, "$.threshold", "> 0"),
        ({**ONE, "threshold": 1}, "$.threshold", "< 1"),
        ({**ONE, "threshold": "0.1"}, "$.threshold", "float"),
        ({**ONE, "profiles": []}, "$.profiles", ">= 1"),
        ({**ONE, "profiles": "news"}, "$.profiles", "array"),
        ({**ONE, "profiles": ["news", "nws"]}, "$.profiles", "did you mean news?"),
        ({**ONE, "tokenizer": "gpt2"}, "$.tokenizer", TOKENIZER.digest),
        ({**ONE, "tokenizer": ""}, "$.tokenizer", TOKENIZER.digest),
        ({**ONE, "key": "1"}, "$", "`key`"),
        ({**ONE, "context_width": 4}, "$", "`context_width`"),
        ({**ONE, "a\x1b[2J": 1}, "$", "\\x1b"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_refused(body: Any, path: str, what: str):
    reply = ask(body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["path"] == path
    assert what in reply.json()["error"]["message"]
    assert len(reply.content) < 2000


@pytest.mark.parametrize("wanted", [{}, {"tokenizer": "MODEL"}])
def test_without_a_tokenizer(wanted: Any):
    reply = ask({"text": TEXT, **wanted}, None)
    assert reply.status_code == 400
    assert reply.json()["error"]["path"] == ("$.tokenizer" if wanted else "$.text")


NAMES = st.sampled_from(["text", "token_ids", "profiles", "threshold", "tokenizer"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.just("news")
    | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(), inner),
)


@given(st.dictionaries(NAMES | st.text(), VALUES, max_size=4) | VALUES)
@example({"token_ids": [10**400]})
def test_bodies_of_any_shape(body: Any):
    numbers = TextTokenizer("MODEL", TOKENIZER.digest, lambda text: [*text.encode()])
    assert ask(body, numbers).status_code in (200, 400)


# the profile's key at the start
@pytest.mark.parametrize("key", ["", "x", "-1"])
def test_a_key_that_is_missing_at_the_start(key: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OLD_KEY", key)
    with pytest.raises(ValueError, match=r"^The profile old: (No|Expected a) key"):
        make_app(PROFILES)


def test_a_key_that_is_missing_later(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """It is the server's fault. What is wrong is in its log alone."""
    file = tmp_path / "some.key"
    file.write_text(KEYS["NEWS_KEY"])
    profiles = {"news": {"scheme": "vllm-gumbel", "key": {"file": str(file)}}}
    client = TestClient(make_app(read_profiles(profiles)))
    file.write_text("no " + KEYS["NEWS_KEY"])
    reply = client.post("/detect", json={"token_ids": MARKED})
    assert reply.status_code == 503
    assert reply.json() == {"error": {"message": "A key is missing", "path": "$"}}
    assert "The profile news" in caplog.text
    assert KEYS["NEWS_KEY"] not in caplog.text
    file.write_text(KEYS["NEWS_KEY"])
    assert client.post("/detect", json={"token_ids": MARKED}).json()["is_watermarked"]


def test_many_at_once():
    """So many texts are examined at once. Others wait, and other routes answer meanwhile."""
    running, most, lock, go_on = 0, 0, threading.Lock(), threading.Event()
    all_run = threading.Semaphore(0)

    def encode(text: str) -> Sequence[int]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        all_run.release()
        assert go_on.wait(60)
        with lock:
            running -= 1
        return unmarked(10)

    async def talk() -> list[int]:
        app = make_app({"news": PROFILES["news"]}, TextTokenizer("", "", encode))
        statuses: list[int] = []
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:

            async def post() -> None:
                statuses.append((await client.post("/detect", json={"text": "a"})).status_code)

            async with anyio.create_task_group() as group:
                for _ in range(2 * AT_ONCE):
                    group.start_soon(post)
                for _ in range(AT_ONCE):
                    assert await anyio.to_thread.run_sync(all_run.acquire)
                assert (await client.get("/health")).status_code == 200
                assert statuses == []
                go_on.set()
        return statuses

    assert anyio.run(talk) == [200] * 2 * AT_ONCE
    assert most == AT_ONCE


def test_a_small_text_waits_for_no_large_one():
    go_on = threading.Event()

    def encode(text: str) -> Sequence[int]:
        assert len(text) == 1 or go_on.wait(60)
        return unmarked(10)

    async def talk() -> None:
        app = make_app({"news": PROFILES["news"]}, TextTokenizer("", "", encode))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
            async with anyio.create_task_group() as group:
                for _ in range(2 * AT_ONCE):
                    group.start_soon(lambda: client.post("/detect", json={"text": "a" * 20_000}))
                await anyio.sleep(0.1)
                assert (await client.post("/detect", json={"text": "a"})).status_code == 200
                go_on.set()

    anyio.run(talk)


def test_a_client_that_leaves():
    """Nothing is raised, which a server would log with all calls."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def parts() -> AsyncIterator[Any]:
        yield {"type": "http.request", "body": b'{"text', "more_body": True}
        while True:
            yield {"type": "http.disconnect"}

    async def talk() -> None:
        messages = parts()
        scope = {"type": "http", "method": "POST", "path": "/detect", "headers": []}
        scope |= {"query_string": b"", "root_path": "", "http_version": "1.1"}
        await make_app(PROFILES)(scope, messages.__anext__, send)

    anyio.run(talk)
    assert sent[0]["status"] == 400
