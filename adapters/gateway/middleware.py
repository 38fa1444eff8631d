"""ASGI middleware that refuses bad specs on every route, before the engine sees the request."""

import re
from asyncio import to_thread
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from ...spec import SpecError, Stage, decode
from ..backend import backend
from ..metrics import count
from .json_body import Fields, parse
from .key import KEY, check_spelling
from .schema_carrier import take_payloads

Scope = MutableMapping[str, Any]
"""The scope of an ASGI connection: its type, path and headers."""
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An ASGI application."""

CONTAINERS = frozenset(
    ("custom_params", "extra_args", "extra_body", "parameters", "sampling_params", "vllm_xargs")
)
"""The request fields that may hold a payload, over all engines. They may be nested, or be lists
with one object for each prompt."""

METHODS = "POST", "PUT"
"""The HTTP methods whose requests may carry specs."""

MAX_NESTED = 4
"""The depth to which nested containers are searched."""

MAX_ON_LOOP = 1 << 14
"""The most bytes of a body that is searched on the event loop. A thread does the rest, so that
other requests do not wait."""

_KEY = KEY.encode()
_INDEX = re.compile(r"(?<=sampling_params)\[\d+\]")
"""The index of a prompt, where an engine takes a list with an object for each prompt."""


class SpecMiddleware:
    """Middleware that checks the specs of each HTTP request and answers bad specs with status 400.

    An engine itself validates a request late, when a streamed reply has begun with status 200, and
    a route without logits processors drops the payload. The middleware reads and checks the body
    when the application asks for it, which is after the application's own authentication.

    It wraps any ASGI app, and works with ``add_middleware`` of Starlette and FastAPI::

        app.add_middleware(SpecMiddleware, engine="vllm")

    In an engine's own server, use the subclass of that engine: it also checks the payload against
    the model and the server. vLLM's is ``logitport.adapters.vllm.SpecMiddleware``; SGLang's is
    active wherever logitport is installed.

    Args:
        app: the application.
        engine: name of the installed backend whose server gets the requests.

    Raises:
        SpecError: if there is no such engine, or it has no server.
    """

    def __init__(self, app: App, engine: str = "vllm") -> None:
        self.app = app
        self._backend = backend(engine)
        self.routes = self._backend.routes
        if not self.routes:
            raise SpecError(f"{engine} has no HTTP server whose requests could be checked")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the body of a request and pass the request on."""
        if scope["type"] != "http" or scope["method"] not in METHODS:
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(self, scope, receive, send)
        try:
            await self.app(scope, exchange.receive, exchange.send)
        except Exception:
            if exchange.refusal is None:
                raise
        await exchange.answer()

    def check(self, scope: Scope, body: bytes) -> bytes:
        """Check the specs of one request. A body that is no JSON object is the application's.

        Args:
            scope: the ASGI scope of the request.
            body: the whole body.

        Returns:
            The body. A payload that is a JSON object or list has become text, which all engines
            take.

        Raises:
            SpecError: if the specs are bad, or the body cannot be searched for specs.
        """
        try:
            fields = parse(body)
            return body if fields is None else self._check_fields(scope, fields, body)
        except SpecError:
            count("refused", self.stage(scope))
            raise

    def _check_fields(self, scope: Scope, fields: Fields, body: bytes) -> bytes:
        path = scope["path"].rstrip("/")
        route = max(filter(path.endswith, self.routes), key=len, default="")
        place = self.routes.get(route)
        first: Any = None
        is_changed = False
        for container, value, owner in _containers("", fields, fields, MAX_NESTED):
            self.check_container(container, value)
            for where, payload in take_payloads(value):
                where = f"{container}.{where}".lstrip(".")
                if place is None or "." in place or container:
                    self._check_place(where, place, path, where)
                _put(fields, str(place), payload, where)
                is_changed = True
            if KEY not in value:
                continue
            where = _join(container, KEY)
            self._check_place(container, place, path, where)
            if value.is_nested(KEY):
                payload, is_changed = value.text(KEY), True
                value.put(KEY, payload)
            else:
                payload = value[KEY]
            if first not in (None, payload):
                raise SpecError.of_field(
                    "Expected the same specs for all prompts of one request", where
                )
            first = payload
            self.check_payload(scope, fields, owner, payload)
        if "nvext" in fields and f'"{KEY}:' in fields.text("nvext"):
            self._check_place("nvext", place, path, "nvext.annotations")
        return fields.encode() if is_changed else body

    def _check_place(self, container: str, place: str | None, path: str, where: str) -> None:
        if place is None:
            routes = ", ".join(sorted(route for route, place in self.routes.items() if place))
            raise SpecError.of_field(f"{path} takes no specs; these routes do: {routes}", where)
        if _INDEX.sub("", container) != place:
            raise SpecError.of_field(f"Expected specs for {path} in `{place}.{KEY}`", where)

    def check_container(self, path: str, container: Fields) -> None:
        """Check an object that may hold a payload, even if it holds none.

        Args:
            path: path of the object; empty for the request itself.
            container: the object.

        Raises:
            SpecError: if it has a misspelt key.
        """
        check_spelling(container, path or "the request")

    def check_payload(self, scope: Scope, fields: Fields, owner: Fields, payload: Any) -> None:
        """Check a payload, as far as the engine and the model behind the server are known.

        Args:
            scope: the ASGI scope of the request.
            fields: the fields of the request.
            owner: the object around the payload's container, with the sampling fields: the
                request, or its ``sampling_params`` for one prompt.
            payload: the payload as the client sent it, but an object or array as its JSON text.

        Raises:
            SpecError: if the payload is bad.
        """
        self._backend.check(decode(payload).specs)

    def error(self, path: str, message: str) -> dict[str, Any]:
        """Return the body of a refusal, in the form that clients of the path expect."""
        if path.rstrip("/").endswith("/v1/messages"):  # Anthropic's
            return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
        error = {"message": message, "type": "BadRequestError", "param": KEY, "code": 400}
        return {"error": error}

    def stage(self, scope: Scope) -> Stage:
        """Return the stage of the engine behind the application, to count refusals by stage."""
        return Stage.AGGREGATED


def _put(fields: Fields, name: str, payload: Any, where: str) -> None:
    """Put a payload that came in a schema into the engine's own field.

    Raises:
        SpecError: if the field is no object, or has another payload.
    """
    field = fields.object(name)
    if field is None:
        if fields.is_set(name):
            raise SpecError.of_field(f"Expected an object, beside `{where}`", name)
        fields.put(name, field := Fields({}))
    if KEY in field:
        other = field.text(KEY) if field.is_nested(KEY) else field[KEY]
        if payload != other and decode(payload) != decode(other):
            what = f"Expected one payload, got another at `{name}.{KEY}`"
            raise SpecError.of_field(what, where)
    field.put(KEY, payload)


Container = tuple[str, Fields, Fields]
"""The path of an object, the object, and the object around it."""


def _containers(path: str, value: Fields, owner: Fields, nested: int) -> Iterator[Container]:
    """Yield the request, the objects in its fields, and those in ``CONTAINERS`` within."""
    yield path, value, owner
    for name in value if value is owner else CONTAINERS.intersection(value):
        where = _join(path, name)
        inner = value.object(name)
        if name in CONTAINERS and nested:
            if inner is not None:
                yield from _containers(where, inner, value, nested - 1)
            for i, each in enumerate(value.objects(name)):
                yield from _containers(f"{where}[{i}]", each, value, nested - 1)
        elif inner is not None:
            yield where, inner, value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


class _RefusedError(Exception):
    """Raised into the application when it asks for the body of a refused request."""


@dataclass(eq=False)
class _Exchange:
    """One request: the body is read and checked once, and a refusal replaces the answer."""

    middleware: SpecMiddleware
    scope: Scope
    receive_next: Receive
    send_on: Send
    is_read: bool = False
    is_answered: bool = False
    refusal: SpecError | None = None

    async def receive(self) -> Message:
        """Return the checked body as one message, then the server's other messages."""
        if self.is_read:
            return await self.receive_next()
        chunks, is_more = bytearray(), True
        while is_more:
            message = await self.receive_next()
            if message["type"] != "http.request":  # the client is gone
                return message
            chunks += message.get("body", b"")
            is_more = message.get("more_body", False)
        self.is_read, body = True, bytes(chunks)
        check = partial(self.middleware.check, self.scope, body)
        on_loop = len(body) <= MAX_ON_LOOP and _KEY not in body
        try:
            checked = check() if on_loop else await to_thread(check)
        except SpecError as error:
            self.refusal = error
            raise _RefusedError from error
        if checked is not body:
            self._set_length(len(checked))
        return {"type": "http.request", "body": checked, "more_body": False}

    def _set_length(self, length: int) -> None:
        """Correct the header, in place: the application may have copied the scope."""
        headers = self.scope["headers"]
        for i, (name, _) in enumerate(headers):
            if name.lower() == b"content-length":
                headers[i] = name, b"%d" % length

    async def send(self, message: Message) -> None:
        """Pass the answer on, or replace it by the refusal; other headers of the answer stay."""
        if self.refusal is None:
            await self.send_on(message)
        elif message["type"] == "http.response.start":
            await self.answer(message.get("headers", ()))

    async def answer(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Answer a refused request, unless it has been answered."""
        if self.refusal is None or self.is_answered:
            return
        self.is_answered = True
        error = self.middleware.error(self.scope["path"], f"{KEY}: {self.refusal}")
        body = msgspec.json.encode(error)
        ours = {b"content-type": b"application/json", b"content-length": b"%d" % len(body)}
        others = [(name, value) for name, value in headers if name.lower() not in ours]
        all_headers = [*others, *ours.items()]
        await self.send_on({"type": "http.response.start", "status": 400, "headers": all_headers})
        await self.send_on({"type": "http.response.body", "body": body})
