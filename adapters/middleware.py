"""ASGI middleware that refuses bad specs on every route, before the engine sees the request."""

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ..spec import SpecError, Stage, decode
from .backend import backend
from .key import KEY, check_spelling
from .metrics import count

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

MAX_NESTED = 6
"""The depth to which nested containers are searched; a list counts as a level."""

_INDEX = re.compile(r"\[\d+\]")


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

    def check(self, scope: Scope, body: bytes) -> None:
        """Check the specs of one request. A body that is no JSON object is the application's.

        Raises:
            SpecError: if the specs are bad.
        """
        fields = parse(body)
        if fields is None:
            return
        path = scope["path"].rstrip("/")
        route = max(filter(path.endswith, self.routes), key=len, default="")
        place = self.routes.get(route)
        try:
            for container, value, owner in fields.containers():
                self.check_container(container, value)
                if KEY in value:
                    self._check_place(container, place, path)
                    self.check_payload(scope, fields, owner, value[KEY])
        except SpecError:
            count("refused", self.stage(scope))
            raise

    def _check_place(self, container: str, place: str | None, path: str) -> None:
        where = f"{container}.{KEY}".lstrip(".")
        if place is None:
            routes = ", ".join(sorted(route for route, place in self.routes.items() if place))
            raise SpecError(f"{path} takes no specs; these routes do: {routes}", where)
        if _INDEX.sub("", container) != place:
            raise SpecError(f"Expected specs for {path} in `{place}.{KEY}`", where)

    def check_container(self, path: str, container: Mapping[str, Any]) -> None:
        """Check an object that may hold a payload, even if it holds none.

        Args:
            path: path of the object; empty for the request itself.
            container: the object.

        Raises:
            SpecError: if it has a misspelt key.
        """
        check_spelling(container, path or "the request")

    def check_payload(
        self, scope: Scope, fields: "Fields", owner: Mapping[str, Any], payload: Any
    ) -> None:
        """Check a payload, as far as the engine and the model behind the server are known.

        Args:
            scope: the ASGI scope of the request.
            fields: the fields of the request.
            owner: the object around the payload's container, with the sampling fields: the
                request, or its ``sampling_params`` for one prompt.
            payload: the payload as the client sent it.

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


class Fields(Mapping[str, Any]):
    """The fields of a JSON object, each parsed on access."""

    def __init__(self, raw: Mapping[str, msgspec.Raw]) -> None:
        self._raw = raw

    def __getitem__(self, name: str) -> Any:
        return msgspec.json.decode(self._raw[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def containers(self) -> "Iterator[Container]":
        """Yield the request itself, and the objects in its ``CONTAINERS``."""
        return _containers("", self, self, MAX_NESTED)


Container = tuple[str, Mapping[str, Any], Mapping[str, Any]]
"""The path of an object, the object, and the object around it."""


def _containers(path: str, value: Any, owner: Any, nested: int) -> Iterator[Container]:
    inner: Iterable[tuple[str, Any]] = ()
    if isinstance(value, Mapping):
        yield path, value, owner
        owner = value
        names = sorted(CONTAINERS.intersection(value))
        inner = [(f"{path}.{name}".lstrip("."), value[name]) for name in names]
    elif isinstance(value, list):
        items = enumerate(value)
        inner = [(f"{path}[{i}]", each) for i, each in items if isinstance(each, Mapping | list)]
    for inner_path, each in inner if nested else ():
        yield from _containers(inner_path, each, owner, nested - 1)


def parse(body: bytes) -> Fields | None:
    """Parse the fields of a request; return ``None`` if its body is not a JSON object.

    Only the names are decoded at first: most of a body is messages, which have no specs.
    """
    try:
        return Fields(msgspec.json.decode(body, type=dict[str, msgspec.Raw]))
    except msgspec.ValidationError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:  # Servers accept what Python's parser reads beyond the standard: NaN, UTF-16
        items = json.loads(body).items()
        return Fields({name: msgspec.Raw(msgspec.json.encode(value)) for name, value in items})
    except (ValueError, AttributeError, RecursionError, TypeError):
        return None


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
        try:
            self.middleware.check(self.scope, body)
        except SpecError as error:
            self.refusal = error
            raise _RefusedError from error
        return {"type": "http.request", "body": body, "more_body": False}

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
