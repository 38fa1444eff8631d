"""The requests that go through gateways, and what becomes of them."""

import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import product
from typing import Any, NamedTuple

import httpx
from logitport.adapters import KEY, ReceiptError, extra_body, receipt
from logitport.adapters.gateway.extra_body import Carrier
from logitport.spec import ForcedTokenSequenceSpec, encode

MODEL = "SmolLM2-135M-Instruct"
PROMPT = "The cat sat on the mat and looked at the sea. " * 10
"""Longer than a block of the KV cache: vLLM's ``ExampleConnector`` ends the engine otherwise."""
TOKEN_IDS = 19556, 905, 17
EXPECTED = "Hello world!"
SPEC = ForcedTokenSequenceSpec(TOKEN_IDS, eos_token_id=2)
"""It makes the model answer with ``EXPECTED``."""

GENERATE = {"vllm": "/inference/v1/generate", "sglang": "/generate"}
CARRIERS: tuple[Carrier, ...] = "field", "schema"


class Outcome(StrEnum):
    """What a client learns about its specs."""

    OBEYED = "obeyed"
    """The answer is as the specs say, and has a receipt."""
    REFUSED = "refused"
    """The request is answered with an error."""
    NOT_OURS = "not ours"
    """The specs did not act, and the answer has no receipt: ``receipt`` raises."""
    NO_RECEIPT = "no receipt"
    """The specs acted, and the gateway dropped the receipt: ``receipt`` raises all the same."""
    WRONG = "WRONG"
    """There is a receipt, and the specs did not act. No gateway has this outcome."""


class Ask(NamedTuple):
    """A way to send specs: the route, whether streamed, and the carrier."""

    route: str
    streamed: bool
    carrier: Carrier


def asks(engine: str) -> Iterator[Ask]:
    """All ways to send specs to an engine."""
    routes = "/v1/chat/completions", "/v1/completions", GENERATE[engine]
    for route, streamed, carrier in product(routes, (False, True), CARRIERS):
        yield Ask(route, streamed, carrier)


def send(
    url: str, engine: str, ask: Ask, headers: Mapping[str, str] | None = None
) -> tuple[Outcome, str]:
    """Send one request; return what became of it and, in words, why."""
    with httpx.Client(base_url=url, trust_env=False, timeout=300, headers=headers) as client:
        reply = client.post(ask.route, json=_body(engine, ask))
    if reply.is_error:
        return Outcome.REFUSED, f"{reply.status_code} {reply.text}"
    chunks = [reply.json()] if not ask.streamed else _events(reply.text)
    if "error" in chunks[-1]:
        return Outcome.REFUSED, str(chunks[-1])
    obeyed = _said(chunks) in (EXPECTED, TOKEN_IDS)
    try:
        why = str(receipt(chunks[0], SPEC, engine=engine, carrier=ask.carrier))
    except ReceiptError as error:
        return (Outcome.NO_RECEIPT if obeyed else Outcome.NOT_OURS), str(error)
    return (Outcome.OBEYED if obeyed else Outcome.WRONG), why


def _body(engine: str, ask: Ask) -> dict[str, Any]:
    fields = extra_body(engine, SPEC, carrier=ask.carrier)
    if ask.route.startswith("/v1"):
        body: dict[str, Any] = {"model": MODEL, "max_tokens": 16, "temperature": 0, **fields}
        says = {"messages": [{"role": "user", "content": PROMPT}]}
        return (
            body | (says if "chat" in ask.route else {"prompt": PROMPT}) | {"stream": ask.streamed}
        )
    where, length, says = "custom_params", "max_new_tokens", {"text": PROMPT}
    if engine == "vllm":
        where, length, says = "extra_args", "max_tokens", {"token_ids": [18] * 100}
    parameters: dict[str, Any] = {length: 16, "temperature": 0}
    body = {"model": MODEL, **says, "sampling_params": parameters, "stream": ask.streamed}
    if ask.carrier == "schema":
        return body | fields
    parameters[where] = {KEY: encode(SPEC)}
    return body


def _events(text: str) -> list[Any]:
    lines = (line.removeprefix("data:").strip() for line in text.splitlines())
    return [json.loads(line) for line in lines if line.startswith("{")]


def _said(chunks: list[Any]) -> str | tuple[int, ...]:
    """The answer: its text, or the first of its tokens where it is tokens."""
    if "text" in chunks[-1]:  # SGLang's: each has the text so far
        return chunks[-1]["text"]
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    parts = (choice.get("delta") or choice.get("message") or choice for choice in choices)
    text = "".join(part.get("content", part.get("text")) or "" for part in parts)
    token_ids = [token for choice in choices for token in choice.get("token_ids") or ()]
    return text or tuple(token_ids[: len(TOKEN_IDS)])
