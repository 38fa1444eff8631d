"""The example's proxy in front of servers that die, without an engine.

The servers are stand-ins with vLLM's streams. Their model says ``TEXT``, byte by byte, to whatever
prompt; what it says next is a function of the token ids that it is sent.
"""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.decoders import DecodeStream

from examples.failover.proxy import TRIES, proxy
from examples.failover.reply import continued, obstacle

TEXT = "Ein süßes 🥨, zwei süße 🥨🥨!"
OUTPUT = [*TEXT.encode()]
PROMPT = [*"Zähle:".encode()]
EOS = 256
LIMIT = 1024
USAGE = {"include_usage": True}

COMPLETION = {"model": "m", "prompt": "Zähle:", "max_tokens": 100, "stream": True}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Zähle:"}], "stream": True}
REQUESTS = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT}
SPECS = [{"kind": "choice", "texts": ["yes", "no"]}]


def make_tokenizer() -> Tokenizer:
    """Make a tokenizer with a token for each byte, whose id is the byte, and an end token."""
    taken = {*range(33, 127), *range(161, 173), *range(174, 256)}  # as in GPT-2's table
    others = iter(range(256, 512))
    alphabet = [chr(b) if b in taken else chr(next(others)) for b in range(256)]
    tokenizer = Tokenizer(models.BPE({each: i for i, each in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    return tokenizer


TOKENIZER = make_tokenizer()


@dataclass
class Stream(httpx.AsyncByteStream):
    """The events of a server; the connection breaks after some of them."""

    events: list[dict[str, Any]]
    dies_after: int | None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for i, each in enumerate(self.events):
            if i == self.dies_after:
                break
            yield f"data: {json.dumps(each)}\n\n".encode()
        if self.dies_after is not None:
            raise httpx.ReadError("died")
        yield b"data: [DONE]\n\n"


@dataclass
class Servers:
    """Stand-ins for all servers.

    Attributes:
        deaths: for each request that comes, the events after which the server dies; ``None`` for
            no death, -1 for a server that is down, or an answer.
        asked: the server, the path and the body of each request.
        size: the tokens of a chunk.
        parser: what the server makes of the first delta of a chat, in place of content.
        changed: what becomes of the first stream's events.
    """

    deaths: list[int | httpx.Response | None] = field(default_factory=list)
    asked: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    size: int = 1
    parser: str = "content"
    changed: Callable[[list[Any]], list[Any]] = list

    def __call__(self, request: httpx.Request) -> httpx.Response:
        dies = self.deaths.pop(0) if self.deaths else None
        if isinstance(dies, httpx.Response):
            self.asked.append((request.url.host, request.url.path, {}))
            return dies
        body, path = json.loads(request.content), request.url.path
        self.asked.append((request.url.host, path, body))
        if dies == -1:
            raise httpx.ConnectError("down")
        if not body.get("stream"):
            if dies is not None:
                raise httpx.ReadError("died")
            return httpx.Response(200, json={"choices": [{"text": TEXT}]})
        events = self.events(path, body, len(self.asked))
        stream = Stream(self.changed(events) if len(self.asked) == 1 else events, dies)
        headers = {"content-type": "text/event-stream", "x-logitport": "{}"}
        return httpx.Response(200, headers=headers, stream=stream)

    def events(self, path: str, body: dict[str, Any], number: int) -> list[dict[str, Any]]:
        """Make the events of vLLM's stream."""
        is_chat = path == "/v1/chat/completions"
        prompt = body.get("prompt", "")
        tokens = prompt if isinstance(prompt[:1], list) and prompt[0] == PROMPT[0] else PROMPT
        made = tokens[len(PROMPT) :]
        assert tokens[: len(PROMPT)] == PROMPT
        assert made == OUTPUT[: len(made)]
        most = body.get("max_tokens") or (LIMIT - len(tokens) if is_chat else 16)
        output = [*OUTPUT, EOS][len(made) :][:most]
        reason = "stop" if output[-1] == EOS else "length"
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        head = {"id": f"id-{number}", "object": kind, "created": number, "model": "m"}
        ids = body.get("return_token_ids")
        events: list[dict[str, Any]] = []
        if is_chat:
            choice = {"index": 0, "delta": {"role": "assistant", "content": ""}}
            events.append(head | {"choices": [choice], "prompt_token_ids": tokens if ids else None})
        stream = DecodeStream(ids=tokens, skip_special_tokens=True)
        for i in range(0, len(output), self.size):
            new = output[i : i + self.size]
            text = "".join(stream.step(TOKENIZER, each) or "" for each in new if each != EOS)
            choice = {"index": 0, "finish_reason": None, "token_ids": new if ids else None}
            if i + self.size >= len(output):
                choice["finish_reason"] = reason
            if is_chat:
                name = self.parser if i == 0 else "content"
                choice |= {"delta": {name: text}}
            else:
                choice |= {"text": text, "prompt_token_ids": tokens if ids and not i else None}
            events.append(head | {"choices": [choice]})
        if body.get("vllm_xargs"):
            events[0]["logitport"] = {"kinds": ["choice"]}
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": len(tokens), "completion_tokens": len(output)}
            usage["total_tokens"] = len(tokens) + len(output)
            events.append(head | {"choices": [], "usage": usage})
        return events


def send(
    servers: Servers, path: str, body: dict[str, Any] | bytes, method: str = "POST"
) -> httpx.Response:
    """Send a request through a proxy in front of the servers ``a`` and ``b``."""
    application = proxy(
        ["http://a", "http://b"],
        TOKENIZER,
        max_model_len=LIMIT,
        transport=httpx.MockTransport(servers),
    )

    content = body if isinstance(body, bytes) else json.dumps(body)
    return TestClient(application).request(method, path, content=content)


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    """Parse the events of a stream."""
    *lines, last = filter(None, response.text.split("\n\n"))
    assert last == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def undivided(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """Join a stream: what a client has of it in the end."""
    choices = [chunk["choices"][0] for chunk in stream if chunk["choices"]]
    texts = [each.get("text") or each.get("delta", {}).get("content") or "" for each in choices]
    prompts = [chunk.get("prompt_token_ids") for chunk in (*stream, *choices)]
    return {
        "text": "".join(texts),
        "token_ids": [each for choice in choices for each in choice.get("token_ids") or ()],
        "prompt_token_ids": [each for each in prompts if each],
        "roles": [role for each in choices if (role := each.get("delta", {}).get("role"))],
        "reasons": [each["finish_reason"] for each in choices if each.get("finish_reason")],
        "heads": {tuple(chunk[name] for name in ("id", "object", "created")) for chunk in stream},
        "usage": [chunk["usage"] for chunk in stream if "usage" in chunk],
        "receipts": [chunk["logitport"] for chunk in stream if "logitport" in chunk],
    }


def joined(servers: Servers, path: str, body: dict[str, Any]) -> dict[str, Any]:
    return undivided(chunks(send(servers, path, body)))


EVERYTHING = {"return_token_ids": True, "stream_options": USAGE, "vllm_xargs": {"logitport": SPECS}}


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("path", REQUESTS)
def test_death_after_each_event(path: str, size: int):
    """Before the first token, within each character, after the last token, before the usage."""
    body = REQUESTS[path] | EVERYTHING
    whole = joined(Servers(size=size), path, body)
    assert whole["text"] == TEXT
    assert whole["token_ids"] == [*OUTPUT, EOS]
    assert whole["reasons"] == ["stop"]
    events = len(Servers(size=size).events(path, body, 1))
    for dies in range(events + 1):
        servers = Servers([dies], size=size)
        stream = joined(servers, path, body)
        ((*_, created),) = stream["heads"]
        assert created == (1 if dies else 2)  # the server that sent the first event
        assert stream == whole | {"heads": stream["heads"]}
        # The last two events are that of the last token, and the usage.
        assert len(servers.asked) == 1 + (dies < events - 1)


@pytest.mark.slow
@pytest.mark.parametrize("path", REQUESTS)
def test_two_deaths(path: str):
    """The third server continues both."""
    whole = joined(Servers(), path, REQUESTS[path] | EVERYTHING)
    for first in range(1, len(OUTPUT), 5):
        for second in range(len(OUTPUT) - first):
            servers = Servers([first, second])
            assert joined(servers, path, REQUESTS[path] | EVERYTHING) == whole
            assert [host for host, *_ in servers.asked] == ["a", "b", "a"]


@pytest.mark.parametrize("path", REQUESTS)
def test_what_the_second_server_is_sent(path: str):
    """The payload counts the output; what made the prompt is left out."""
    body = REQUESTS[path] | {"temperature": 0, "max_tokens": 9, "min_tokens": 5}
    body |= {"vllm_xargs": {"logitport": json.dumps(SPECS), "other": 1}, "user": "u"}
    servers = Servers([4])
    reply = joined(servers, path, body)
    assert reply["text"] == "Ein süß"
    assert (reply["reasons"], reply["token_ids"]) == (["length"], [])
    made = 4 if path == "/v1/completions" else 3  # a chat has an event for the role
    (_, _, first), (_, second_path, second) = servers.asked
    assert first == body | {"return_token_ids": True}
    assert second_path == "/v1/completions"
    payload = json.loads(second["vllm_xargs"].pop("logitport"))
    assert payload == {"version": 1, "specs": SPECS, "continued": made}
    assert second == {
        "model": "m",
        "stream": True,
        "temperature": 0,
        "max_tokens": 9 - made,
        "min_tokens": 5 - made,
        "prompt": PROMPT + OUTPUT[:made],
        "return_token_ids": True,
        "user": "u",
        "vllm_xargs": {"other": 1},
    }


def test_without_specs():
    servers = Servers([7])
    assert joined(servers, "/v1/completions", COMPLETION)["text"] == TEXT
    assert "vllm_xargs" not in servers.asked[1][2]


def test_default_limits():
    """A completion has 16 tokens, a chat what the model has room for."""
    body = {name: value for name, value in COMPLETION.items() if name != "max_tokens"}
    servers = Servers([7])
    assert joined(servers, "/v1/completions", body)["text"] == TEXT[:11]
    assert servers.asked[1][2]["max_tokens"] == 9
    send(servers := Servers([8]), "/v1/chat/completions", CHAT)
    assert servers.asked[1][2]["max_tokens"] == LIMIT - len(PROMPT) - 7


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (SPECS, 5),
        (json.dumps(SPECS), 5),
        ({"version": 1, "specs": SPECS}, 5),
        (json.dumps({"version": 1, "specs": SPECS, "continued": 2}), 7),
    ],
)
def test_forms_of_a_payload(payload: Any, count: int):
    expected = {"version": 1, "specs": SPECS, "continued": count}
    assert json.loads(continued(payload, 5)) == expected


def test_an_engine_that_dies_alone():
    """vLLM ends the stream with an error, and answers further requests with one."""
    dead = {"error": {"message": "EngineCore encountered an issue", "code": 500}}

    answers = [None, httpx.Response(500, json=dead)]
    servers = Servers(answers, changed=lambda events: [*events[:9], dead])
    assert joined(servers, "/v1/completions", COMPLETION)["text"] == TEXT
    assert len(servers.asked) == 3


def test_an_error_about_the_request_is_passed_on():
    error = {"error": {"message": "bad", "code": 400}}

    servers = Servers(changed=lambda events: [*events[:3], error])
    assert chunks(send(servers, "/v1/completions", COMPLETION))[-1] == error
    assert len(servers.asked) == 1


def test_a_server_that_shuts_down():
    def aborted(events: list[Any]) -> list[Any]:
        events[8]["choices"][0] |= {"finish_reason": "abort", "text": "", "token_ids": []}
        return events[:9]

    servers = Servers(changed=aborted)
    assert joined(servers, "/v1/completions", COMPLETION)["text"] == TEXT


@pytest.mark.parametrize("path", REQUESTS)
def test_a_refusal_is_passed_on_unchanged(path: str):
    refusal = httpx.Response(400, content=b'{"error":\n "bad"}', headers={"x-logitport": "{}"})
    servers = Servers([refusal])
    response = send(servers, path, REQUESTS[path])
    assert (response.status_code, response.content) == (400, refusal.content)
    assert response.headers["x-logitport"] == "{}"
    assert len(servers.asked) == 1


def test_a_refusal_of_the_rest():
    """An older server does not know the count: the reply ends with its message."""
    error = {"error": {"message": "unknown field `continued`", "code": 400}}
    stream = chunks(send(Servers([5, httpx.Response(400, json=error)]), "/v1/completions", CHAT))
    assert stream[-1] == error


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"logprobs": 0},
        {"logprobs": True},
        {"echo": True},
        {"stop": ["."]},
        {"use_beam_search": True},
        {"tools": [{"type": "function"}]},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "a"}},
        {"prompt": ["one", "two"]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"of_a_later_version": 1},
    ],
)
def test_what_is_not_continued(fields: dict[str, Any]):
    """The request and the stream pass as they are; the stream breaks off with its server."""
    body = COMPLETION | fields
    servers = Servers()
    response = send(servers, "/v1/completions", body)
    assert response.headers["x-failover"] == next(iter(fields))
    assert servers.asked == [("a", "/v1/completions", body)]
    assert chunks(response) == Servers().events("/v1/completions", body, 1)
    with pytest.raises(httpx.ReadError):
        send(Servers([5]), "/v1/completions", body)
    assert joined(Servers([-1]), "/v1/completions", body)["text"] == TEXT


def test_what_changes_nothing_is_continued():
    neutral = {"n": 1, "stop": [], "tools": None, "echo": False, "tool_choice": "none"}
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    assert obstacle(CHAT | neutral | {"messages": parts, "logprobs": False}) is None


def test_a_reasoning_parser():
    """Its chunks are not the text of their tokens. The reply ends with an error."""
    servers = Servers([5], parser="reasoning")
    assert "error" in chunks(send(servers, "/v1/chat/completions", CHAT))[-1]
    assert len(servers.asked) == 1
    assert "error" not in chunks(send(Servers(parser="reasoning"), "/v1/chat/completions", CHAT))


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_requests_begin_anew(method: str):
    servers = Servers([3, -1])
    body = COMPLETION | {"stream": False}
    response = send(servers, "/v1/completions", body, method)
    assert response.json() == {"choices": [{"text": TEXT}]}
    assert [host for host, *_ in servers.asked] == ["a", "b", "a"]


def test_no_server_is_left():
    servers = Servers([-1] * TRIES)
    assert send(servers, "/v1/completions", COMPLETION).status_code == 503
    assert len(servers.asked) == TRIES
    servers = Servers([5, *[-1] * TRIES])
    stream = chunks(send(servers, "/v1/completions", COMPLETION))
    assert stream[-1]["error"]["code"] == 503
    assert len(servers.asked) == TRIES


@pytest.mark.parametrize("content", [b"[1]", b"nonsense"])
def test_a_body_that_is_no_object(content: bytes):
    servers = Servers([httpx.Response(400, json={})])
    assert send(servers, "/v1/completions", content).status_code == 400
