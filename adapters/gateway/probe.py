"""A probe that tests whether an OpenAI server has logitport, before a client sends it specs."""

import inspect
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Any

from ...spec import VERSION, WIRE_KINDS, ForcedTokenSequenceSpec, encode
from ...spec.base import kind_of
from ..backend import backend
from .extra_body import Carrier, extra_body
from .key import KEY
from .receipt import ReceiptError, find

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


FORCED = ForcedTokenSequenceSpec((1000, 1001, 1002, 1003))
PROMPTS = ("The capital of France is", "one two three four")
_OTHER = ForcedTokenSequenceSpec(FORCED.token_ids[::-1])

UNKNOWN_KIND = f'{{"version":{VERSION},"specs":[{{"kind":"?"}}]}}'
"""No kind will ever have this name. Each release refuses it, and the message lists its kinds."""

_KINDS = re.compile(rf"{KEY}: [^\n]*?the kinds that can travel are ((?:\w+, )*\w+)")
_VERSION = re.compile(rf"{KEY}: Version \d+ is newer than \d+")
_POLICY = re.compile(rf"{KEY}: [^\n]*\b[Tt](?:his|he) server")
"""A refusal that only a server gives: of its policy, which a gateway does not have."""

Ask = Callable[[str, dict[str, Any]], Any]
"""Asks for a completion of a prompt, greedily, with more fields in the body."""


def probe(client: Any, model: str, engine: str = "vllm", *, chat: bool = False) -> Support:
    """Find out whether specs act on a server's replies, with a few requests for four tokens.

    Three requests force texts. Where nothing acts, ``carrier="schema"`` is tried. Then a wrong
    payload has the server list its kinds; by itself, it proves nothing: a gateway may refuse it.
    If one address has several replicas, not all of them answer.

    Args:
        client: an ``openai.OpenAI``, or an object with the same ``completions.create``.
        model: name of a text generation model of the server.
        engine: name of an installed backend that has a server, as for ``extra_body``.
        chat: whether to ask the route of chats; a gateway may drop fields on one route alone.

    Raises:
        SpecError: if there is no such engine, or it has no server.
        TypeError: if the client is asynchronous.
        ValueError: if the answer is not a completion.
        openai.OpenAIError: the client's own error, for every failure without the server's own
            message: no connection, no such model, a gateway that refuses the fields.
    """
    ask = partial(_ask, client, model, chat)
    place = str(backend(engine).routes.get("/v1/chat/completions" if chat else "/v1/completions"))
    try:
        found = Support.ACTS if reaches(ask, engine, "field") else Support.IGNORED
    except Exception as error:
        if _VERSION.search(_text_of(error)):
            return Support.TOO_OLD
        if not _POLICY.search(_text_of(error)):
            raise
        found = Support.ACTS
    if found is Support.IGNORED:
        with suppress(Exception):  # a server without logitport may have no schemas
            if reaches(ask, engine, "schema"):
                found = Support.LOST
                passes = "extra_body(..., carrier='schema') passes"
                logger.warning("`%s.%s` is lost on the way to the server; %s", place, KEY, passes)
        return found
    try:
        ask(PROMPTS[0], {place: {KEY: UNKNOWN_KIND}})
    except Exception as error:
        known = _KINDS.search(_text_of(error))
        if known and set(map(kind_of, WIRE_KINDS)).difference(known[1].split(", ")):
            return Support.TOO_OLD
    return found


def reaches(ask: Ask, engine: str, carrier: Carrier) -> bool:
    """Whether specs reach a server that obeys them, or leaves them to the decode server.

    If it obeys, a forced text is the same after two prompts, and another forced text is another
    one. A receipt alone does not show it: a gateway in front of an engine may give one. It shows
    that the stage of the server is one where specs do not act.

    Args:
        ask: returns the completion, as the client's object or as JSON.
        engine: as for ``extra_body``.
        carrier: as for ``extra_body``.
    """

    def reply(prompt: str, spec: ForcedTokenSequenceSpec) -> Any:
        return ask(prompt, extra_body(engine, spec, carrier=carrier))

    asked = (PROMPTS[0], FORCED), (PROMPTS[1], FORCED), (PROMPTS[0], _OTHER)
    replies = [reply(*each) for each in asked]
    first, second, other = (repr(choice_of(each)) for each in replies)
    if first == second != other:
        return True
    with suppress(ReceiptError):
        found = find(replies[0])
        return found is not None and found.is_for(encode(FORCED)) and not found.kinds
    return False


def choice_of(completion: Any) -> Any:
    """Return the first choice of a completion.

    Raises:
        ValueError: if there is none.
    """
    is_json = isinstance(completion, Mapping)
    found = completion.get("choices") if is_json else getattr(completion, "choices", None)
    if not isinstance(found, list) or not found:
        raise ValueError(f"Expected a completion, got {completion!r:.200}")
    return found[0]


def _ask(client: Any, model: str, chat: bool, prompt: str, fields: dict[str, Any]) -> Any:
    asked: dict[str, Any] = {
        "model": model,
        "max_tokens": 4,
        "temperature": 0,
        "extra_body": fields,
    }
    if chat:
        asked["messages"] = [{"role": "user", "content": prompt}]
        reply = client.chat.completions.create(**asked)
    else:
        reply = client.completions.create(prompt=prompt, **asked)
    if inspect.isawaitable(reply):
        getattr(reply, "close", lambda: None)()
        raise TypeError(f"Expected a synchronous client, got {type(client).__name__}")
    choice_of(reply)
    return reply


def _text_of(error: Exception) -> str:
    """Return what the server answered; an error of another kind than a client's has no answer."""
    return getattr(getattr(error, "response", None), "text", "")
