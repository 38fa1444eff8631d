"""A proxy in front of a prefill and a decode server of vLLM.

The proxy sends each request to the prefill server first, to compute the KV cache of its prompt.
It then sends the request to the decode server, whose reply goes to the client.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

TIMEOUT_S = 300

PREFILL_ALONE: dict[str, Any] = {"stream": False, "n": 1, "max_tokens": 1}
"""The fields of a prefill request: it makes one token, which the proxy drops."""

REMOTE_DECODE = {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}
"""The mark of a prefill request for connectors with transfer parameters (NIXL)."""


def proxy(prefill_url: str, decode_url: str, *, copies_specs: bool, hands_over: bool) -> Starlette:
    """Make the application.

    Args:
        prefill_url: URL of the prefill server, without ``/v1``.
        decode_url: URL of the decode server, without ``/v1``.
        copies_specs: whether the prefill server gets the whole body with the specs, as in most
            proxies; ``False`` leaves the specs out. The outputs are the same.
        hands_over: whether the connector's transfer parameters pass from the prefill server's
            reply to the decode server's request.
    """
    client = httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False)  # no proxy to the loopback

    async def generate(request: Request) -> Response:
        try:
            body = await request.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return _error(400, "The body is not a JSON object")
        prompt = body.get("prompt")
        if hands_over and isinstance(prompt, list) and not all(isinstance(i, int) for i in prompt):
            return _error(400, "This connector hands over one prompt, not a list of them")
        try:
            prefilled = await client.post(
                f"{prefill_url}{request.url.path}",
                json=_for_prefill(body, copies_specs, hands_over),
            )
            if prefilled.is_error:
                return _passed_on(prefilled)
            if hands_over:
                body["kv_transfer_params"] = prefilled.json().get("kv_transfer_params")
            decoding = client.build_request("POST", f"{decode_url}{request.url.path}", json=body)
            decoded = await client.send(decoding, stream=True)
        except httpx.TransportError as error:
            return _no_answer(error)
        return StreamingResponse(
            decoded.aiter_raw(),
            decoded.status_code,
            media_type=decoded.headers["content-type"],
            # This also runs when the client of a stream leaves: the decode server then stops.
            background=BackgroundTask(decoded.aclose),
        )

    async def models(request: Request) -> Response:
        try:
            return _passed_on(await client.get(f"{decode_url}{request.url.path}"))
        except httpx.TransportError as error:
            return _no_answer(error)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    return Starlette(
        routes=[
            Route("/v1/chat/completions", generate, methods=["POST"]),
            Route("/v1/completions", generate, methods=["POST"]),
            Route("/v1/models", models),
        ],
        lifespan=lifespan,
    )


def _for_prefill(body: dict[str, Any], copies_specs: bool, hands_over: bool) -> dict[str, Any]:
    leave_out = {"stream_options", "min_tokens", "max_completion_tokens"}
    body = {name: value for name, value in body.items() if name not in leave_out}
    if not copies_specs and isinstance(body.get("vllm_xargs"), dict):
        arguments = {**body.pop("vllm_xargs")}
        arguments.pop("logitport", None)
        body |= {"vllm_xargs": arguments} if arguments else {}
    return body | PREFILL_ALONE | (REMOTE_DECODE if hands_over else {})


def _passed_on(reply: httpx.Response) -> Response:
    return Response(reply.content, reply.status_code, media_type=reply.headers["content-type"])


def _no_answer(error: httpx.TransportError) -> JSONResponse:
    return _error(502, f"{error.request.url} does not answer: {error!r}")


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "code": status}}, status)
