"""A server without an engine, which shows what an engine would get."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from logitport.adapters import KEY, SpecMiddleware
from logitport.adapters.backend import backend
from logitport.spec import decode

from examples._support.serving import serving

from .asks import EXPECTED, MODEL, SPEC, TOKEN_IDS

FREE = "Something else"
MISSING = json.dumps({KEY: "missing"})
"""What the schema of ``carrier="schema"`` makes of any answer."""


@contextmanager
def recorders(engine: str, number: int = 1, *, has_logitport: bool = True) -> Iterator[list[str]]:
    """Serve the routes of an engine so many times on loopback; yield the URLs.

    The answer is ``EXPECTED`` where the engine would find the specs, as its middleware leaves the
    body, and otherwise ``MISSING`` or anything else.

    Args:
        engine: ``vllm`` or ``sglang``.
        number: of servers.
        has_logitport: whether there is a middleware, and the engine obeys specs.
    """

    def application() -> Any:
        made = _Engine(engine, has_logitport)
        return SpecMiddleware(made, engine, is_server=True) if has_logitport else made

    with ExitStack() as stack:
        yield [stack.enter_context(serving(application())) for _ in range(number)]


class _Engine:
    """An ASGI application in the role of an engine."""

    def __init__(self, engine: str, obeys: bool) -> None:
        self._obeys = obeys
        self._routes = backend(engine).routes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, is_more = b"", scope["method"] == "POST"
        while is_more:
            message = await receive()
            body += message.get("body", b"")
            is_more = message.get("more_body", False)
        status, kind, answer = 200, b"application/json", _ABOUT
        path, fields = scope["path"], json.loads(body or b"{}")
        if scope["method"] == "POST" and path not in self._routes:
            status, answer = 404, {"detail": "Not Found"}
        elif scope["method"] == "POST":
            answer = _answer(path, self._text(path, fields))
        text = json.dumps(answer)
        if fields.get("stream") and status == 200:
            kind, text = b"text/event-stream", f"data: {text}\n\ndata: [DONE]\n\n"
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(text))]
        start = {"type": "http.response.start", "status": status}
        await send({**start, "headers": headers if kind == b"application/json" else headers[:1]})
        await send({"type": "http.response.body", "body": text.encode()})

    def _text(self, path: str, fields: Mapping[str, Any]) -> str:
        found: Any = fields
        for name in (*str(self._routes[path]).split("."), KEY):
            found = found.get(name) if isinstance(found, Mapping) else None
        if self._obeys and found is not None and decode(found).specs == (SPEC,):
            return EXPECTED
        return MISSING if "response_format" in fields else FREE


_ABOUT = {
    "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "logitport"}],
    "model_path": MODEL,
    "served_model_name": MODEL,
    "is_generation": True,
}
"""The answer to every question about the server."""


def _answer(path: str, text: str) -> dict[str, Any]:
    counts = {"prompt_tokens": 1, "completion_tokens": 1}
    if path == "/generate":
        meta = {"id": "1", "finish_reason": {"type": "stop"}, **counts}
        return {"text": text, "output_ids": [1], "meta_info": meta}
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    if path.startswith("/inference"):
        choice["token_ids"] = list(TOKEN_IDS) if text == EXPECTED else [1]
    elif "chat" in path:
        message = {"role": "assistant", "content": text}
        choice |= {"message": message, "delta": message}
    else:
        choice["text"] = text
    answer = {"id": "1", "object": "", "created": 1, "model": MODEL, "choices": [choice]}
    return answer | {"usage": counts | {"total_tokens": 2}}
