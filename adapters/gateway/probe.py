"""A probe that tests whether an OpenAI server has logitport, before a client sends it specs."""

import inspect
import re
from enum import StrEnum
from typing import Any

import msgspec

from ...spec import VERSION, WIRE_KINDS, SpecError
from ...spec.base import kind_of
from ..backend import backend
from .key import KEY


class Support(StrEnum):
    """How a server handles the specs of this release."""

    ACTS = "acts"
    """The server reads every kind. It obeys a request's specs or refuses them with a message."""
    IGNORED = "ignored"
    """The server silently drops specs and answers as if there were none."""
    TOO_OLD = "too old"
    """The server's logitport refuses the version of the payload, or one of the kinds."""


# No kind will ever have this name. Each release refuses it, and the message lists its kinds.
_PAYLOAD = msgspec.json.encode({"version": VERSION, "specs": [{"kind": "?"}]}).decode()

_KINDS = re.compile(rf"{KEY}: [^\n]*?the kinds that can travel are ((?:\w+, )*\w+)")
_VERSION = re.compile(rf"{KEY}: Version \d+ is newer than \d+")


def probe(client: Any, model: str, engine: str = "vllm") -> Support:
    """Find out whether a server has logitport, with one request for one token.

    The request carries a payload that every release refuses, in the field that ``extra_body``
    uses: a server with logitport answers with its error message. If one address has several
    replicas, only one of them answers.

    Args:
        client: an ``openai.OpenAI``, or an object with the same ``completions.create``.
        model: name of a text generation model of the server.
        engine: name of an installed backend that has a server, as for ``extra_body``.

    Raises:
        SpecError: if there is no such engine, or it has no server.
        TypeError: if the client is asynchronous.
        ValueError: if the answer is not a completion.
        openai.OpenAIError: the client's own error, for every failure without logitport's
            message: no connection, no such model, a gateway that refuses the fields.
    """
    place = backend(engine).routes.get("/v1/completions")
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
    """Read the support from a client's error; ``None`` if logitport did not cause the error."""
    text = getattr(getattr(error, "response", None), "text", "")
    if _VERSION.search(text):
        return Support.TOO_OLD
    if known := _KINDS.search(text):
        missing = set(map(kind_of, WIRE_KINDS)).difference(known[1].split(", "))
        return Support.TOO_OLD if missing else Support.ACTS
    return None
