"""Requests to a server with the middleware."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import httpx
from fastapi import FastAPI
from logitport.adapters import SpecMiddleware
from logitport.adapters.backend import backend
from logitport.adapters.gateway.key import KEY
from logitport.hooks.configuration import policy
from logitport.spec import ForcedTokenSequenceSpec, encode
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

GOOD = encode(ForcedTokenSequenceSpec((1, 2, 3)))
BAD = '{"version":1,"specs":[{"kind":"mind_reader"}]}'
CHAT = "/v1/chat/completions"
GENERATE = "/inference/v1/generate"


async def echo(request: Request) -> Response:
    """What the application was given, to the last byte."""
    body = await request.body()
    headers = {"x-length": request.headers["content-length"]} if body else None
    return Response(body, media_type="application/octet-stream", headers=headers)


async def stream(request: Request) -> Response:
    body = await request.body()

    async def chunks() -> Any:
        for i in range(0, len(body), 7):
            yield body[i : i + 7]

    return StreamingResponse(chunks())


async def closed(request: Request) -> Response:
    """Answers before it has read anything, as authentication does."""
    return JSONResponse({"error": "Unauthorized"}, 401)


async def breaks(request: Request) -> Response:
    await request.body()
    raise RuntimeError("the application's own fault")


def parsing() -> FastAPI:
    """An application that has its framework read the body, as engines have."""
    app = FastAPI()

    @app.post("/v1/completions")
    def completions(body: dict[str, Any]) -> dict[str, Any]:
        return body

    return app


def application(engine: str = "vllm") -> Starlette:
    methods = ["GET", "POST", "PUT"]
    return Starlette(
        routes=[
            Route("/closed/v1/completions", closed, methods=methods),
            Route("/breaks/v1/completions", breaks, methods=methods),
            Route("/stream/v1/completions", stream, methods=methods),
            Mount("/fastapi", parsing()),
            Route("/{path:path}", echo, methods=methods),
        ],
        middleware=[
            Middleware(SpecMiddleware, engine=engine, is_server=True),
            Middleware(CORSMiddleware, allow_origins=["*"]),
        ],
    )


def post(
    path: str,
    body: Any,
    *,
    engine: str = "vllm",
    headers: Mapping[str, str] | None = None,
    method: str = "POST",
) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    client = TestClient(application(engine))
    return client.request(method, path, content=content, headers=headers)


def answered(command: str, text: str) -> Iterator[str]:
    """Run a line of a transcript: an engine, a route, and a configuration, if there is one.

    What is printed is the status, and the message or the body that reaches the engine.
    """
    engine, path, *configured = command.split(" ", 2)
    content = json.loads(configured[0]) if configured else {"default": []}
    made = replace(backend(engine), policy=policy(None, content))
    with patch.object(SpecMiddleware, "backend", lambda *_: made):
        reply = post(path, text.encode(), engine=engine)
    if reply.status_code != 200:
        yield f"{reply.status_code} {reply.json()['error']['message']}"
    elif reply.content == text.encode():
        yield "200, as it was"
    else:
        assert int(reply.headers["x-length"]) == len(reply.content)
        yield f"200 {reply.text}"


def xargs(payload: Any, key: str = KEY, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [], "vllm_xargs": {key: payload}, **more}


def native(*payloads: Any) -> dict[str, Any]:
    """The body of SGLang's own route, with parameters for each of several prompts."""
    each = [{"custom_params": {} if payload is None else {KEY: payload}} for payload in payloads]
    return {"text": ["a"] * len(each), "sampling_params": each}


def refusal(path: str, body: Any, *, engine: str = "vllm") -> str:
    """The message with which a request is refused."""
    reply = post(path, body, engine=engine)
    assert reply.status_code == 400
    return reply.json()["error"]["message"]
