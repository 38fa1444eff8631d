"""vLLM's OpenAI server, loaded with our processor, asked with the ``openai`` client."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from logitport.spec import ForcedTokenSequenceSpec, encode, limits
from openai import BadRequestError, OpenAI

from examples._support.vllm_server import VllmServer
from tests.support.doctor import findings

pytestmark = pytest.mark.engine

TEXT = 'Exactly this: "Grüße, 世界" 🙂\n\tand no more than 2 lines.'
PROMPT = "Name three rivers of Europe."


@pytest.fixture(scope="module")
def client(model: Path, server_environment: dict[str, str]) -> Iterator[OpenAI]:
    arguments = ("--logits-processors", "logitport.adapters.vllm:LogitportProcessor")
    with VllmServer(model, *arguments, env=server_environment) as server:
        yield OpenAI(base_url=server.base_url, api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def spec(tokenizer: Any) -> ForcedTokenSequenceSpec:
    return ForcedTokenSequenceSpec.from_text(TEXT, tokenizer)


def cases(table: Iterable[tuple[str, Sequence[Any]]], interpreted: set[str]) -> list[Any]:
    """Parameters of a test: the values by the case's name.

    Args:
        table: the cases.
        interpreted: the names of those for V2, which takes seconds for each in the interpreter.
    """
    only = pytest.mark.only("v1", reason="other cases do for V2")
    return [
        pytest.param(*values, id=name, marks=() if name in interpreted else only)
        for name, values in table
    ]


SAMPLINGS: list[tuple[str, dict[str, Any]]] = [
    ("greedy", {"temperature": 0}),
    ("temperature 1.5", {"temperature": 1.5}),
    ("top-k 1", {"temperature": 1, "top_k": 1}),
    ("top-p 0.1", {"temperature": 1, "top_p": 0.1}),
    ("min-p", {"temperature": 1, "min_p": 0.5}),
    ("penalties", {"temperature": 1, "frequency_penalty": 2, "repetition_penalty": 2}),
    ("logprobs", {"temperature": 1, "logprobs": 3}),
    ("n = 3", {"temperature": 1, "n": 3}),
]


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "sampling", cases([(name, (sampling,)) for name, sampling in SAMPLINGS], {"greedy", "n = 3"})
)
def test_forced_text_is_exact(
    client: OpenAI,
    spec: ForcedTokenSequenceSpec,
    tokenizer: Any,
    sampling: dict[str, Any],
    stream: bool,
    chat: bool,
):
    replies = _ask(client, encode(spec), chat=chat, stream=stream, **sampling)

    assert len(replies) == sampling.get("n", 1)
    token_ids = [*tokenizer.encode(TEXT, add_special_tokens=False), tokenizer.eos_token_id]
    for reply in replies.values():
        assert reply["text"] == TEXT
        assert reply["token_ids"] == token_ids
        assert reply["finish_reason"] == "stop"
        assert reply["logprobs"] == (len(token_ids) if "logprobs" in sampling else 0)


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_without_eos_the_model_goes_on(client: OpenAI, tokenizer: Any, stream: bool, chat: bool):
    start = "The Rhine, the"
    spec = ForcedTokenSequenceSpec.from_text(start, tokenizer, eos_token_id=None)
    (reply,) = _ask(client, encode(spec), chat=chat, stream=stream, temperature=0).values()

    assert reply["text"].startswith(start)
    assert reply["token_ids"][: len(spec.token_ids)] == list(spec.token_ids)
    assert len(reply["token_ids"]) > len(spec.token_ids) + 3


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_texts_of_a_client_without_a_tokenizer(client: OpenAI, tokenizer: Any, chat: bool):
    """The processes of front end and worker make the same tokens of them."""
    words = ["Rhine", "Danube, and the Elbe", "<|im_start|>"]
    text = json.dumps([{"kind": "choice", "texts": words}])
    (reply,) = _ask(client, text, chat=chat, stream=False, temperature=0).values()
    (chosen,) = (each for each in words if tokenizer.encode(each) == reply["token_ids"][:-1])
    assert reply["token_ids"][-1] == tokenizer.eos_token_id
    assert reply["text"] == ("" if chosen == words[2] else chosen)
    for said in ("Elbe", "<|im_end|>"):
        forced = {"kind": "forced_sequence", "text": said}
        (reply,) = _ask(client, json.dumps([forced]), chat=chat, stream=False).values()
        assert reply["token_ids"][0] == tokenizer.encode(said)[0]


def test_texts_that_are_refused(client: OpenAI):
    for spec, path in (
        ({"kind": "choice", "texts": ["yes", ""]}, "$[0].texts[1]"),
        ({"kind": "banned_tokens", "tokens": ["never ever"]}, "$[0].tokens[0]"),
    ):
        with pytest.raises(BadRequestError) as refused:
            _ask(client, json.dumps([spec]), chat=True, stream=False)
        assert path in str(refused.value)


def _payload(**changes: Any) -> str:
    spec = {"kind": "forced_sequence", "token_ids": [1, 2, 3]} | changes
    return json.dumps({"version": 1, "specs": [spec]})


BAD_PAYLOADS: list[tuple[str, Any, tuple[str, ...]]] = [
    ("not JSON", "Hello world!", ("not valid JSON", "byte 0")),
    (
        "unknown kind",
        _payload(kind="mind_reader"),
        ("mind_reader", "forced_sequence", "`$.specs[0].kind`"),
    ),
    ("unknown field", _payload(loud=True), ("unknown field `loud`", "`$.specs[0]`")),
    ("newer version", '{"version": 2, "anything": []}', ("2 is newer than 1", "`$.version`")),
    ("no version", '{"specs": []}', ("`version`",)),
    ("no specs", '{"version": 1, "specs": []}', (">= 1", "`$.specs`")),
    ("negative id", _payload(token_ids=[1, -2]), (">= 0", "`$.specs[0].token_ids[1]`")),
    (
        "beyond the vocabulary",
        _payload(token_ids=[1, 2, 49_152]),
        ("49152", "vocabulary of {size} tokens", "`$.specs[0].token_ids[2]`"),
    ),
    (
        "EOS beyond the vocabulary",
        _payload(eos_token_id=50_000),
        ("50000", "vocabulary of {size} tokens", "`$.specs[0].eos_token_id`"),
    ),
    ("empty sequence", _payload(token_ids=[]), (">= 1", "`$.specs[0].token_ids`")),
    (
        "too long a sequence",
        _payload(token_ids=[1] * (limits.MAX_TOKEN_IDS + 1)),
        (f"<= {limits.MAX_TOKEN_IDS}", "`$.specs[0].token_ids`"),
    ),
    (
        "too large a payload",
        " " * limits.MAX_PAYLOAD_BYTES + _payload(),
        (f"the limit is {limits.MAX_PAYLOAD_BYTES}",),
    ),
    (
        "two forced sequences",
        json.dumps(
            {
                "version": 1,
                "specs": [{"kind": "forced_sequence", "token_ids": [i]} for i in (8, 9)],
            }
        ),
        ("Conflicts with `$.specs[0]`: both force a token at the same step", "`$.specs[1]"),
    ),
    ("a number", 7, ("int",)),
    # vLLM's own refusal: what is in vllm_xargs is a string, a number, or a list of those.
    ("an object, not a string", json.loads(_payload()), ("vllm_xargs", "logitport")),
]


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
@pytest.mark.parametrize(
    ("payload", "parts"),
    cases([(name, case) for name, *case in BAD_PAYLOADS], {"not JSON", "beyond the vocabulary"}),
)
def test_bad_payload_is_a_400(
    client: OpenAI,
    spec: ForcedTokenSequenceSpec,
    tokenizer: Any,
    payload: Any,
    parts: tuple[str, ...],
    chat: bool,
):
    with pytest.raises(BadRequestError) as error:
        _ask(client, payload, chat=chat)

    assert error.value.status_code == 400
    for part in parts:
        assert part.format(size=len(tokenizer)) in error.value.message
    (after,) = _ask(client, encode(spec), chat=chat).values()
    assert after["text"] == TEXT


def _ask(
    client: OpenAI, payload: Any, *, chat: bool, stream: bool = False, **sampling: Any
) -> dict[int, dict[str, Any]]:
    """The replies by index: text, token ids, finish reason, tokens that came with logprobs."""
    ours = {name: sampling.pop(name) for name in set(sampling) - STANDARD}
    arguments: dict[str, Any] = {
        "model": client.models.list().data[0].id,
        "max_tokens": 60,
        "stream": stream,
        "extra_body": {"vllm_xargs": {"logitport": payload}, "return_token_ids": True, **ours},
        **sampling,
    }
    if chat:
        if count := arguments.pop("logprobs", None):
            arguments |= {"logprobs": True, "top_logprobs": count}
        messages: Any = [{"role": "user", "content": PROMPT}]
        answer = client.chat.completions.create(messages=messages, **arguments)
    else:
        answer = client.completions.create(prompt=PROMPT, **arguments)

    replies: dict[int, dict[str, Any]] = {}
    for chunk in answer if stream else [answer]:
        for choice in chunk.choices:
            reply = replies.setdefault(
                choice.index, {"text": "", "token_ids": [], "finish_reason": None, "logprobs": 0}
            )
            message = (choice.delta if stream else choice.message) if chat else choice
            reply["text"] += (message.content if chat else message.text) or ""
            # The first chunk of a streamed chat says the role and has no tokens.
            reply["token_ids"] += getattr(choice, "token_ids", None) or []
            reply["finish_reason"] = choice.finish_reason or reply["finish_reason"]
            if logprobs := choice.logprobs:
                reply["logprobs"] += len(logprobs.content if chat else logprobs.token_logprobs)
    return replies


STANDARD = {"temperature", "top_p", "n", "logprobs", "frequency_penalty"}
"""Sampling parameters of the OpenAI API; vLLM's own travel in the extra body."""


def test_doctor_misses_the_middleware(client: OpenAI):
    assert findings(str(client.base_url).rstrip("/")) == ["obeyed", "refused", "not refused"]
