"""A probe that tests whether an OpenAI server has logitport, before a client sends it specs."""

import inspect
import logging
import re
from contextlib import suppress
from enum import StrEnum
from typing import Any

import msgspec

from ...spec import VERSION, WIRE_KINDS, SpecError
from ...spec.base import kind_of
from ..backend import backend
from .key import KEY
from .schema_carrier import format_with

logger = logging.getLogger(__name__)


class Support(StrEnum):
    """How a server handles the specs of this release."""

    ACTS = "acts"
    """The server reads every kind. It obeys a request's specs or refuses them with a message; a
    prefill server leaves them to the decode server."""
    IGNORED = "ignored"
    """The server silently drops specs and answers as if there were none."""
    LOST = "lost"
    """The server reads specs, but a gateway drops the engine's field: ``carrier="schema"`` passes.
    The log names the field."""
    TOO_OLD = "too old"
    """The server's logitport refuses the version of the payload, or one of the kinds."""


# No kind will ever have this name. Each release refuses it, and the message lists its kinds.
_PAYLOAD = msgspec.json.encode({"version": VERSION, "specs": [{"kind": "?"}]}).decode()

_KINDS = re.compile(rf"{KEY}: [^\n]*?the kinds that can travel are ((?:\w+, )*\w+)")
_VERSION = re.compile(rf"{KEY}: Version \d+ is newer than \d+")


def probe(client: Any, model: str, engine: str = "vllm", *, chat: bool = False) -> Support:
    """Find out whether a server has logitport, with one or two requests for one token.

    The request carries a payload that every release refuses, in the field that ``extra_body``
    uses: a server with logitport answers with its error message. Without that, a second request
    tries ``carrier="schema"``. If one address has several replicas, only one of them answers.

    Args:
        client: an ``openai.OpenAI``, or an object with the same ``completions.create``.
        model: name of a text generation model of the server.
        engine: name of an installed backend that has a server, as for ``extra_body``.
        chat: whether to ask the route of chats; a gateway may drop fields on one route alone.

    Raises:
        SpecError: if there is no such engine, or it has no server.
        TypeError: if the client is asynchronous.
        ValueError: if the answer is not a completion.
        openai.OpenAIError: the client's own error, for every failure without logitport's
            message: no connection, no such model, a gateway that refuses the fields.
    """
    place = backend(engine).routes.get("/v1/chat/completions" if chat else "/v1/completions")
    if place is None:
        raise SpecError(f"{engine} has no server that an OpenAI client could ask")
    found = _ask(client, model, chat, {place: {KEY: _PAYLOAD}})
    if found is Support.IGNORED:
        with suppress(Exception):  # a server without logitport may have no schemas
            by_schema = {"response_format": format_with(_PAYLOAD, None)}
            if _ask(client, model, chat, by_schema) is not Support.IGNORED:
                found = Support.LOST
                passes = "extra_body(..., carrier='schema') passes"
                logger.warning("`%s.%s` is lost on the way to the server; %s", place, KEY, passes)
    return found


def _ask(client: Any, model: str, chat: bool, body: dict[str, Any]) -> Support:
    asked: dict[str, Any] = {"model": model, "max_tokens": 1, "extra_body": body}
    try:
        if chat:
            messages = [{"role": "user", "content": "?"}]
            reply = client.chat.completions.create(messages=messages, **asked)
        else:
            reply = client.completions.create(prompt="?", **asked)
    except Exception as error:
        if (support := _support(error)) is None:
            raise
        return support
    if inspect.isawaitable(reply):
        getattr(reply, "close", lambda: None)()
        raise TypeError(f"Expected a synchronous client, got {type(client).__name__}")
    if not getattr(reply, "choices", None):
        raise ValueError(f"Expected a completion, got {reply!r}")
    return Support.IGNORED


def _support(error: Exception) -> Support | None:
    """Read the support from a client's error; ``None`` if logitport did not cause the error."""
    text = getattr(getattr(error, "response", None), "text", "")
    if _VERSION.search(text):
        return Support.TOO_OLD
    if known := _KINDS.search(text):
        missing = set(map(kind_of, WIRE_KINDS)).difference(known[1].split(", "))
        return Support.TOO_OLD if missing else Support.ACTS
    return None
