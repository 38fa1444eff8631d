"""What the middleware costs a request: without specs, with specs, and with specs in a schema."""

import asyncio
import json
from collections.abc import Iterator
from time import perf_counter
from typing import Any

from logitport.adapters import SpecMiddleware, extra_body
from logitport.spec import ForcedTokenSequenceSpec

from .timing import Times, undisturbed

SPEC = ForcedTokenSequenceSpec(tuple(range(100)))
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Name three rivers of Europe. " * 60}],
    "max_tokens": 100,
}
CHUNK = b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"Rhine"}}]}\n\n'
ANSWER = json.dumps({"id": "chatcmpl-1", "choices": [{"message": {"content": "Rhine " * 200}}]})
CHUNKS = 100

CASES: dict[str, dict[str, Any]] = {
    "no specs": {},
    "specs in the engine's field": extra_body("vllm", SPEC),
    "specs in a schema": extra_body("vllm", SPEC, carrier="schema"),
}


async def _app(scope: Any, receive: Any, send: Any) -> None:
    """Answer as a server does whose model takes no time."""
    await receive()
    if scope["path"].startswith("/stream"):
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(CHUNKS):
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        return
    body = ANSWER.encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _ask(app: Any, path: str, body: bytes, repetitions: int) -> list[float]:
    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None: ...

    seconds: list[float] = []
    for _ in range(repetitions):
        headers = [(b"content-length", b"%d" % len(body))]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        began = perf_counter()
        await app(scope, receive, send)
        seconds.append(perf_counter() - began)
    return seconds


def costs(repetitions: int = 1000) -> Iterator[tuple[str, float, dict[str, Times]]]:
    """Yield, for each kind of request, the microseconds that the middleware adds, and both times.

    A payload is checked in a thread, which takes most of the time with specs.
    """
    checked = SpecMiddleware(_app, "vllm", is_server=True)
    for name, fields in CASES.items():
        for prefix, answer in (("", "whole"), ("/stream", f"{CHUNKS} chunks")):
            body = json.dumps(CHAT | fields).encode()
            path = f"{prefix}/v1/chat/completions"
            times = dict[str, Times]()
            with undisturbed():
                for what, app in (("without", _app), ("with", checked)):
                    times[what] = Times.of(asyncio.run(_ask(app, path, body, repetitions)))
            added = 1e6 * (times["with"].least - times["without"].least)
            yield f"middleware, {name}, {answer}", added, times
