"""A proxy in front of several vLLM servers. When one dies, another continues its replies.

Streams of ``/v1/completions`` and ``/v1/chat/completions`` are continued, after the last token that
the client has. All other requests go to the next server while no byte of an answer has come.
"""

import json
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count, islice
from typing import Annotated

import httpx
import typer
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tokenizers import Tokenizer

from .reply import Fields, Reply, ServerDiedError, obstacle

ROUTES = "/v1/completions", "/v1/chat/completions"

TRIES = 4
"""The servers that a request is sent to at most: one that kills servers must not kill them all."""

TIMEOUT = httpx.Timeout(300, connect=5)
"""In seconds. A server that sends nothing for so long is dead, too."""

PASSED_ON = "authorization", "content-type", "traceparent", "x-request-id"
"""The headers of a request that the servers get."""

RETURNED = "content-type", "x-logitport"
"""The headers of an answer that the client gets, besides ``x-server`` and ``x-failover``."""


LOG = logging.getLogger(__name__)


class NoServerError(Exception):
    """No server answers, or too many died."""


def proxy(
    servers: Sequence[str],
    tokenizer: Tokenizer,
    *,
    max_model_len: int,
    transport: httpx.AsyncBaseTransport | None = None,
) -> Starlette:
    """Make the application.

    Args:
        servers: the URLs of the servers, without ``/v1``. All have the same model and options, but
            neither ``--reasoning-parser`` nor ``--tool-call-parser``.
        tokenizer: the model's tokenizer.
        max_model_len: the servers' ``--max-model-len``, which ends a chat without ``max_tokens``.
        transport: what sends the requests, for tests.
    """
    # No proxy to the loopback.
    client = httpx.AsyncClient(timeout=TIMEOUT, trust_env=False, transport=transport)
    turns = count()

    async def ask(
        request: Request, tries: Iterator[str], path: str, content: bytes, whole: bool
    ) -> httpx.Response:
        """Send a request to the next server that lives, and return its answer.

        Raises:
            NoServerError: if none is left to try.
        """
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        for server in tries:
            sent = client.build_request(
                request.method, server + path, content=content, headers=headers
            )
            try:
                answer = await client.send(sent, stream=not whole)
            except httpx.TransportError:
                continue
            if answer.status_code < 500:
                return answer
            await answer.aclose()
        raise NoServerError("No server is left that could answer")

    async def handle(request: Request) -> Response:
        content, path = await request.body(), request.url.path
        turn = next(turns)
        tries = islice((servers[i % len(servers)] for i in count(turn)), TRIES)
        body = fields_of(content)
        is_stream = body.get("stream") is True
        why = obstacle(body) if is_stream and path in ROUTES else "stream"
        reply = None if why else Reply(body, tokenizer, max_model_len)
        if reply is not None:
            content = encoded(reply.request())
        try:
            answer = await ask(request, tries, path, content, whole=not is_stream)
        except NoServerError as error:
            return JSONResponse(error_of(error), 503)
        headers = {name: answer.headers[name] for name in RETURNED if name in answer.headers}
        headers |= {"x-server": str(answer.url).removesuffix(path), "x-failover": why or "yes"}
        if not is_stream or answer.is_error:
            return Response(await answer.aread(), answer.status_code, headers)
        if reply is None:  # breaks off when the server dies, as without a proxy
            stream = answer.aiter_bytes()
            return StreamingResponse(
                stream, headers=headers, background=BackgroundTask(answer.aclose)
            )
        return StreamingResponse(continued(request, tries, reply, answer), headers=headers)

    async def continued(
        request: Request, tries: Iterator[str], reply: Reply, answer: httpx.Response
    ) -> AsyncIterator[bytes]:
        """Yield the events of a reply, from one server after another."""
        while True:
            try:
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        yield event(reply.take(json.loads(line[6:])))
            except (httpx.TransportError, ServerDiedError):
                pass
            finally:  # also when the client leaves: the server then stops
                await answer.aclose()
            if reply.is_complete:
                for chunk in reply.rest():
                    yield event(chunk)
                break
            LOG.warning(
                "%s died after %d tokens of a reply", answer.url.netloc.decode(), len(reply.output)
            )
            if not reply.is_continuable:
                yield event(error_of(NoServerError("The server has a parser: not continued")))
                break
            try:
                path = request.url.path if reply.prompt is None else ROUTES[0]
                content = encoded(reply.request())
                answer = await ask(request, tries, path, content, whole=False)
            except NoServerError as error:
                yield event(error_of(error))
                break
            if answer.is_error:  # for example, a server with an older logitport
                yield event(fields_of(await answer.aread()))
                break
        yield b"data: [DONE]\n\n"

    return Starlette(routes=[Route("/{path:path}", handle, methods=["GET", "POST"])])


def fields_of(content: bytes) -> Fields:
    """Parse a JSON object; return an empty one for anything else."""
    try:
        parsed = json.loads(content)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def encoded(fields: Fields) -> bytes:
    """Encode the body of a request, or of an event."""
    return json.dumps(fields).encode()


def event(chunk: Fields) -> bytes:
    """Make an event of a chunk."""
    return b"data: " + encoded(chunk) + b"\n\n"


def error_of(error: Exception) -> Fields:
    """Make the body of an error as OpenAI's clients expect it."""
    return {"error": {"message": str(error), "type": "InternalServerError", "code": 503}}


def main(
    model: Annotated[str, typer.Argument(help="The model, as the servers have it.")],
    max_model_len: Annotated[int, typer.Argument(help="The servers' --max-model-len.")],
    servers: Annotated[list[str], typer.Argument(help="Their URLs, without /v1.")],
    port: int = 8080,
) -> None:
    """Serve the proxy on loopback."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model).backend_tokenizer
    uvicorn.run(proxy(servers, tokenizer, max_model_len=max_model_len), port=port)


if __name__ == "__main__":
    typer.run(main)
