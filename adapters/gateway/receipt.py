"""Receipts: what acted on a request, in the answer's headers and in its first JSON object."""

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, cast

import msgspec

from ...spec import VERSION
from ...spec.payload import as_given
from ...spec.texts import Given
from ..backend import backend, with_grammars
from .extra_body import Carrier, payload_of
from .key import KEY
from .schema_carrier import KEYWORD

HEADER = KEYWORD
"""The name of the response header."""

_HEADERS = HEADER, f"llm_provider-{HEADER}"
"""The names under which it arrives: LiteLLM's proxy renames the headers of what is behind it."""

_OF_STREAMS = "response", "_response"
"""The attributes of streams of the OpenAI client that have the HTTP response; of the stream that
``stream()`` opens, it is private."""

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True):
    """What acted on a request with specs.

    Attributes:
        kinds: the kinds of the specs that act, with those of the server; none where specs do not
            act at the server's stage.
        digest: the first 32 digits of the SHA-256 of the payload's canonical text; see "Receipts"
            in ``docs/wire.md``. Empty where the server's specs alone act.
        stage: the stage of the server.
        default: whether default specs of the server joined.
        presets: the names of the server's presets that joined.
        may_lose: the kinds that other specs of the request may override, where the model's choices
            lead to that; see "Edits" in ``docs/wire.md``.
        continued: the number of the prompt's last tokens that count as output.
        mark: the name of the profile with which the text is marked.
        policy: the digest of the server's policy, if it has one.
        tags: the model's thinking tags, if a spec asks for them with ``"tags": "model"``.
    """

    kinds: tuple[str, ...]
    digest: str
    stage: str
    default: bool = False
    presets: tuple[str, ...] = ()
    may_lose: tuple[str, ...] = ()
    continued: int = 0
    mark: str = ""
    policy: str = ""
    tags: tuple[str, ...] = ()

    def is_for(self, payload: str) -> bool:
        """Whether it is for a payload; older servers have the digest of its text as sent."""
        as_sent = hashlib.sha256(payload.encode()).hexdigest()[:32]
        return self.digest in (digest_of(payload), as_sent)


class ReceiptError(Exception):
    """The specs of a request did not act, or nothing in the answer says that they did."""


def digest_of(payload: str) -> str:
    """Return the digest of a payload, of the one text of all that say the same.

    A proxy may write a body anew: ``[{"kind": "dry", "multiplier": 2.0}]`` counts as
    ``{"generation_only":true,"specs":[{"kind":"dry","multiplier":2}],"version":1}``.
    """
    read = _reader.decode(payload)
    content = {"version": VERSION, "specs": read} if isinstance(read, list) else read
    content = {"generation_only": True, **content}
    if content.get("continued") == 0:
        del content["continued"]
    text = msgspec.json.encode(content, order="deterministic")
    return hashlib.sha256(text).hexdigest()[:32]


def _number(text: str) -> float:
    """Read a number so that it is written as JavaScript does: 2, and not 2.0."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) <= 1 << 53 else value


_reader = msgspec.json.Decoder(float_hook=_number)


def receipt(
    response: Any,
    specs: Given,
    *,
    engine: str = "vllm",
    carrier: Carrier = "field",
    generation_only: bool = True,
    continued: int = 0,
) -> Receipt:
    """Return the receipt of a response, or raise if it does not say that the specs acted.

    Native kinds travel in the engine's own fields, which have no receipts. For these alone, as for
    no specs, the result has no ``kinds``: it cannot tell whether a gateway dropped such a field.

    ::

        body = extra_body("vllm", specs)
        answer = client.chat.completions.create(..., extra_body=body)
        receipt(answer, specs)
        # Receipt(kinds=('choice',), digest='a90ecaf488ded641804e64763ee238c7', stage='agg')

    Args:
        response: a response of the OpenAI client, the first chunk of a streamed response, the JSON
            object of either, or what has the headers of the answer: an HTTP response, that of
            ``with_raw_response``, or a stream of the OpenAI client (``create(stream=True)`` or
            ``stream()``). The body of an HTTP response counts where the header was lost, unless it
            is still to be read.
        specs: the specs that the request was sent with.
        engine: as for ``extra_body``.
        carrier: as for ``extra_body``.
        generation_only: as for ``extra_body``.
        continued: as for ``extra_body``.

    Raises:
        ReceiptError: if there is no receipt, it is for other specs, or they did not act. The
            message names the field that was lost, and the carrier to try.
        SpecError: for specs that cannot be sent.
    """
    given = with_grammars(backend(engine), as_given(specs), continued)
    payload, found = payload_of(given, generation_only, continued), find(response)
    if payload is None:
        return found or Receipt((), "", "")
    if (status := getattr(response, "status_code", 200)) != 200 and found is None:
        raise ReceiptError(f"The response has the status {status}, and no receipt")
    if found is None or not found.digest:  # the server has got no specs
        is_stream = any(hasattr(response, name) for name in _OF_STREAMS)
        of_chunk = ". The first chunk of a stream may have it" if is_stream else ""
        raise ReceiptError(_lost(engine, carrier) + of_chunk)
    if not found.is_for(payload):
        what = f"the digest is {found.digest!r}, and not {digest_of(payload)!r}"
        if found.continued != continued:
            what += f"; it is for `continued` {found.continued}, and not {continued}"
        raise ReceiptError(f"The receipt is for other specs: {what}")
    if not found.kinds:
        raise ReceiptError(f"The specs reached the server, and do not act at stage {found.stage}")
    return found


def find(response: Any) -> Receipt | None:
    """Return the receipt in a response, whatever specs it is for.

    Raises:
        ReceiptError: if it cannot be read.
    """
    if isinstance(response, list | tuple) and response:  # SGLang's answer to several prompts
        response = response[0]
    of_body = response.get(KEY) if isinstance(response, Mapping) else getattr(response, KEY, None)
    places = response, *(getattr(response, name, None) for name in _OF_STREAMS)
    of_header = next(filter(None, (getattr(each, "headers", None) for each in places)), {})
    try:
        if of_body is not None:
            return msgspec.convert(of_body, Receipt)
        text = next(filter(None, map(of_header.get, _HEADERS)), None)
        if text is None:
            in_body = _content_of(response).get(KEY)
            return None if in_body is None else msgspec.convert(in_body, Receipt)
        return msgspec.json.decode(text, type=Receipt)
    except msgspec.DecodeError as error:
        raise ReceiptError(f"The receipt cannot be read: {error}") from None


def _content_of(response: Any) -> Mapping[str, Any]:
    """Return the first JSON object in the body of an HTTP response; an empty one without any."""
    content: Any = None
    with suppress(Exception):  # the client's own: it has not read the body yet
        content = response.content
    if not isinstance(content, bytes):
        return {}
    _, _, event = content.partition(b"data:")
    with suppress(msgspec.DecodeError):
        is_stream = content.startswith((b"data:", b"event:"))
        read = msgspec.json.decode(event.partition(b"\n")[0] if is_stream else content)
        read = read[0] if isinstance(read, list) and read else read
        return cast("Mapping[str, Any]", read) if isinstance(read, Mapping) else {}
    return {}


def _lost(engine: str, carrier: Carrier) -> str:
    field = f"response_format.json_schema.schema.{KEYWORD}"
    other = "A server without logitport answers with JSON instead"
    if carrier == "field":
        field = f"{backend(engine).routes.get('/v1/chat/completions')}.{KEY}"
        other = f"extra_body({engine!r}, specs, carrier='schema') passes gateways that drop it"
    return (
        f"The response has no receipt: `{field}` was lost on the way, or the server has no "
        f"logitport, or no middleware. {other}"
    )


_OBJECT = re.compile(rb'\A\s*\[?\s*\{(?=\s*")')
"""The beginning of a JSON object with fields, or of a list of such objects."""

_EVENT = re.compile(rb'^data: ?\{(?=\s*")', re.M)
"""The beginning of an object in an event of a stream."""


class Stamp:
    """The ``send`` of an ASGI application that adds a receipt to its answer.

    ``find`` is asked for the receipt when it is needed. At the start of a stream, the engine may
    not have admitted a request without specs: only the first event then has the receipt.

    Nothing is parsed or kept: the field is put behind the first ``{`` of the answer. Compressed
    answers get the header alone; answers with another status than 200 get nothing.

    Attributes:
        is_done: whether all further messages pass unchanged.
    """

    def __init__(self, find: Callable[[], Receipt | None], send: Send) -> None:
        self._send, self._find = send, find
        self._begin: re.Pattern[bytes] | None = None
        self.is_done = False
        self._held: Message | None = None  # the start, until it is known how long the body is
        self._length: int | None = None  # the index of its header

    async def __call__(self, message: Message) -> None:
        """Send a message on."""
        if message["type"] == "http.response.start":
            message = self._started(message)
            if self._held is message:
                return
        elif self._begin is not None:
            body = message.get("body", b"")
            found, held = self._begin.search(body), self._held
            text = self._text() if found is not None else None
            field = b"" if text is None else b'"%b":%b,' % (KEY.encode(), text)
            if found is not None:
                at = found.end()
                message = {**message, "body": body[:at] + field + body[at:]}
            if held is not None:
                if self._length is not None:
                    name, length = held["headers"][self._length]
                    longer = b"%d" % (int(length) + len(field))
                    held["headers"][self._length] = name, longer
                await self._send(held)
            if found is not None or held is not None:
                self._begin = self._held = None
        self.is_done = self._begin is None
        await self._send(message)

    def _text(self) -> bytes | None:
        receipt = self._find()
        if receipt is None:
            return None
        fields = msgspec.to_builtins(receipt)  # in ASCII, as headers are
        return json.dumps(fields, separators=(",", ":")).encode()

    def _started(self, message: Message) -> Message:
        """Add the header to a start, and find out where the body may have the field."""
        headers = [*message.get("headers", ())]
        if message["status"] != 200:
            return message
        indices = {name.lower(): i for i, (name, _) in enumerate(headers)}
        name = HEADER.encode()
        if name in indices:  # the server behind has given a receipt
            return message
        if (text := self._text()) is not None:
            message = {**message, "headers": [*headers, (name, text)]}
        if b"content-type" in indices and b"content-encoding" not in indices:
            kind = headers[indices[b"content-type"]][1]
            if kind.startswith(b"text/event-stream"):
                self._begin = _EVENT
            elif kind.startswith(b"application/json"):
                self._begin, self._held = _OBJECT, message
                self._length = indices.get(b"content-length")
        return message
