"""Whether an OpenAI server has logitport, for clients that are about to send it specs."""

import inspect
import re
from enum import StrEnum
from typing import Any

import msgspec

from ..spec import VERSION, WIRE_KINDS, SpecError
from ..spec.base import kind_of
from .back_end import back_end
from .key import KEY


class Support(StrEnum):
    """What a server does with the specs of this release."""

    ACTS = "acts"
    """It reads them all: a request's specs are obeyed, or refused with a message."""
    IGNORED = "ignored"
    """It drops them without a word, and answers as if there were none."""
    TOO_OLD = "too old"
    """It has a logitport that refuses the version of the payload, or one of the kinds."""


# No kind will ever have this name. Each release refuses it, and names the kinds that it knows.
_PAYLOAD = msgspec.json.encode({"version": VERSION, "specs": [{"kind": "?"}]}).decode()

_ROUTE = "/v1/completions"

_KINDS = re.compile(rf"{KEY}: [^\n]*?the kinds that can travel are ((?:\w+, )*\w+)")
_VERSION = re.compile(rf"{KEY}: Version \d+ is newer than \d+")


def probe(client: Any, model: str, engine: str = "vllm") -> Support:
    """Ask a server whether it has logitport, with one request for one token.

    The request brings a payload that every release refuses, where ``extra_body(engine, specs)``
    has it: where logitport is, the answer is its error message and no token is generated. Of
    several replicas behind one address, one answers.

    Args:
        client: an ``openai.OpenAI``, or what has its ``completions.create``.
        model: name of a model that the server generates text with.
        engine: name of an installed back end that has a server, as for ``extra_body``.

    Raises:
        SpecError: if there is no such engine, or it has no server.
        TypeError: if the client is asynchronous.
        ValueError: if the answer is no completion.
        openai.OpenAIError: the client's own error, for every failure that is not logitport's
            message: no connection, no such model, a gateway that refuses the fields.
    """
    place = back_end(engine).routes.get(_ROUTE)
    if place is None:
        raise SpecError(f"{engine} has no server that an OpenAI client could ask")
    body = {place: {KEY: _PAYLOAD}}
    try:
        reply = client.completions.create(model=model, prompt="?", max_tokens=1, extra_body=body)
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
    """What an error of the client says of the server; ``None`` if logitport did not cause it."""
    text = getattr(getattr(error, "response", None), "text", "")
    if _VERSION.search(text):
        return Support.TOO_OLD
    if known := _KINDS.search(text):
        missing = set(map(kind_of, WIRE_KINDS)).difference(known[1].split(", "))
        return Support.TOO_OLD if missing else Support.ACTS
    return None
