"""One exchange of request and answer: the body is checked once, and the answer is completed."""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from posixpath import normpath
from typing import Any, NamedTuple

import msgspec

from ...spec import SpecError
from ...spec.limits import MAX_BODY_BYTES
from .json_body import Parts
from .key import KEY
from .receipt import Message, Receipt, Send, Stamp

Scope = MutableMapping[str, Any]
"""The scope of an ASGI connection: its type, path and headers."""
Receive = Callable[[], Awaitable[Message]]


def path_of(scope: Scope) -> str:
    """Return the path of a request, as a proxy behind may rewrite it: ``/v1//x/../y`` is a route.

    Examples:
        >>> path_of({"path": "/v1//chat/./completions/"})
        '/v1/chat/completions'
    """
    return normpath(scope["path"])


def may_be_json(scope: Scope) -> bool:
    """Whether a body can be JSON by its content type, if it has one."""
    types = [value for name, value in scope["headers"] if name.lower() == b"content-type"]
    return not types or any(b"json" in each.lower() for each in types)


class Checked(NamedTuple):
    """A request that has been checked.

    Attributes:
        body: the body for the application.
        receipt: what the answer says of the specs, if it says anything.
    """

    body: bytes
    receipt: Receipt | None = None


class TooLargeError(SpecError):
    """A body with specs that has more bytes than the limit: HTTP status 413."""


class RefusedError(Exception):
    """Raised into the application when it asks for the body of a refused request."""


@dataclass(eq=False)
class Exchange:
    """One request: the body is read and checked once, and a refusal replaces the answer.

    No more of a body than the limit for bodies with specs is kept: a larger one goes on in parts.

    Args:
        check: checks a body, or a part of it with what it needs of the parts before.
        error: makes the body of a refusal of its message and status.
        scope: the ASGI scope of the request.
        receive_next: the server's ``receive``.
        send_on: the server's ``send``.
        is_json: whether the body can be JSON; else nothing of it is read.
        find_receipt: finds a receipt for a request without specs, once the engine has admitted it.
    """

    check: Callable[[bytes, Parts | None], Awaitable[Checked]]
    error: Callable[[str, int], dict[str, Any]]
    scope: Scope
    receive_next: Receive
    send_on: Send
    is_json: bool = True
    find_receipt: Callable[[], Receipt | None] | None = None
    is_read: bool = False
    parts: Parts | None = None
    is_answered: bool = False
    refusal: SpecError | None = None
    stamp: Stamp | None = None

    async def receive(self) -> Message:
        """Return the checked body, as one message up to the limit, then the server's messages."""
        if self.is_read:
            return await self.receive_next()
        kept, is_more = bytearray(), self.is_json
        while is_more and len(kept) <= MAX_BODY_BYTES:
            message = await self.receive_next()
            if message["type"] != "http.request":  # the client is gone
                return message
            kept += message.get("body", b"")
            is_more = message.get("more_body", False)
        self.is_read, body = not is_more, bytes(kept)
        del kept
        if is_more and self.parts is None:
            self.parts = Parts()
        try:
            checked = await self.check(body, self.parts)
        except SpecError as error:
            self.refusal = error
            raise RefusedError from error
        find = self.find_receipt if checked.receipt is None else lambda: checked.receipt
        if find is not None:
            self.stamp = Stamp(find, self.send_on)
        if checked.body is not body:
            self._set_length(len(checked.body))
        if not self.is_json:
            return await self.receive_next()
        return {"type": "http.request", "body": checked.body, "more_body": is_more}

    def _set_length(self, length: int) -> None:
        """Correct the header, in place: the application may have copied the scope."""
        headers = self.scope["headers"]
        for i, (name, _) in enumerate(headers):
            if name.lower() == b"content-length":
                headers[i] = name, b"%d" % length

    async def send(self, message: Message) -> None:
        """Pass the answer on, or replace it by the refusal; other headers of the answer stay."""
        if self.stamp is not None and not self.stamp.is_done:
            await self.stamp(message)
        elif self.refusal is None:
            await self.send_on(message)
        elif message["type"] == "http.response.start":
            await self.answer(message.get("headers", ()))

    async def answer(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Answer a refused request, unless it has been answered."""
        if self.refusal is None or self.is_answered:
            return
        self.is_answered = True
        status = 413 if isinstance(self.refusal, TooLargeError) else 400
        content = self.error(f"{KEY}: {self.refusal}", status)
        await answer(self.send_on, status, content, headers)


async def answer(
    send: Send, status: int, content: Any, headers: Iterable[tuple[bytes, bytes]]
) -> None:
    """Answer with JSON, and with headers of another answer."""
    body = msgspec.json.encode(content)
    ours = {b"content-type": b"application/json", b"content-length": b"%d" % len(body)}
    others = [(name, value) for name, value in headers if name.lower() not in ours]
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [*others, *ours.items()]})
    await send({"type": "http.response.body", "body": body})
