"""Every public route of vLLM's server: specs are obeyed, or refused with 400, or it takes none."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from logitport.adapters import ReceiptError, Support, extra_body, probe, receipt
from logitport.adapters.vllm.backend import ROUTES
from logitport.spec import BannedTokensSpec, ForcedTokenSequenceSpec, GrammarSpec, encode
from openai import OpenAI

from examples._support.vllm_server import VllmServer
from tests.support.curl import check_choice, commands
from tests.support.doctor import findings
from tests.support.paths import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.only("v1", reason="the front end is the same")]

TEXT = "Exactly this."
BAD = '{"version":1,"specs":[{"kind":"mind_reader"}]}'
LOADED = ("--logits-processors", "logitport.adapters.vllm:LogitportProcessor")
CHECKED = ("--middleware", "logitport.adapters.vllm.SpecMiddleware")
MESSAGES = [{"role": "user", "content": "Name three rivers of Europe."}]
DOCS = ROOT / "docs" / "vllm.md"


class Route(NamedTuple):
    """A route that acts on specs.

    Attributes:
        path: of the request.
        body: what it is asked, beside the specs.
        streams: whether ``stream`` makes it answer piece by piece.
    """

    path: str
    body: dict[str, Any]
    streams: bool = True


TAKES = {
    "completions": Route("/v1/completions", {"prompt": "The rivers:", "max_tokens": 20}),
    "chat": Route("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 20}),
    "batch": Route(
        "/v1/chat/completions/batch", {"messages": [MESSAGES], "max_tokens": 20}, streams=False
    ),
    "responses": Route("/v1/responses", {"input": "Hello", "max_output_tokens": 20}),
    "messages": Route("/v1/messages", {"messages": MESSAGES, "max_tokens": 20}),
    "generate": Route(
        "/inference/v1/generate", {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 20}}
    ),
    "invocations": Route("/invocations", {"messages": MESSAGES, "max_tokens": 20}),
}

TAKES_NONE: dict[str, tuple[str, dict[str, Any]]] = {
    "beams, completions": (
        "/v1/completions",
        {"prompt": "Hi", "max_tokens": 2, "n": 2, "use_beam_search": True},
    ),
    "beams, chat": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "max_tokens": 2, "n": 2, "use_beam_search": True},
    ),
    "scores": ("/generative_scoring", {"query": "a", "items": ["b"], "label_token_ids": [5, 6]}),
    "decisions": ("/v1/systemone", {"state": "s", "questions": {"q": {"type": "yes_no"}}}),
}
"""What generates and calls no processors, or only to read probabilities."""

RENDERS = {route for route in ROUTES if route.endswith("/render")} | {
    "/v1/chat/completions/derender",
    "/v1/completions/derender",
}
NO_REPLY = {
    "/abort_requests",
    "/detokenize",
    "/inference/v1/abort_requests",
    "/is_scaling_elastic_ep",
    "/ping",
    "/scale_elastic_ep",
    "/tokenize",
    "/v1/messages/count_tokens",
    "/v1/responses/{response_id}/cancel",
}
"""What generates nothing. A payload is refused there as well, where it comes in a JSON body."""


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[httpx.Client]:
    with VllmServer(model, *LOADED, *CHECKED, "--enable-scale-out") as server:
        url = server.base_url.removesuffix("/v1")
        with httpx.Client(base_url=url, timeout=600, trust_env=False) as client:
            yield client


@pytest.fixture(scope="module")
def good(tokenizer: Any) -> str:
    return encode(ForcedTokenSequenceSpec.from_text(TEXT, tokenizer))


def test_the_chat_by_curl(server: httpx.Client):
    model = server.get("/v1/models").json()["data"][0]["id"]
    check_choice(commands()[0], str(server.base_url), model)


def ask(client: httpx.Client, path: str, body: Mapping[str, Any], payload: Any) -> Any:
    place = ROUTES.get(path, "vllm_xargs")
    body = {"model": client.get("/v1/models").json()["data"][0]["id"], **body}
    if payload is not None:
        outer, _, inner = place.partition(".")
        specs: dict[str, Any] = {"logitport": payload}
        body[outer] = {**body.get(outer, {}), **({inner: specs} if inner else specs)}
    return client.post(path, json=body)


def text_of(reply: httpx.Response, tokenizer: Any) -> str:
    """What a route says, whole or streamed, in whatever form."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return _text(reply.json(), tokenizer)
    events = [line.removeprefix("data:").strip() for line in reply.text.splitlines()]
    return "".join(_piece(json.loads(event), tokenizer) for event in events if event[:1] == "{")


def _text(content: Any, tokenizer: Any) -> str:
    if "output" in content:
        return content["output"][0]["content"][0]["text"]
    if "content" in content:
        return content["content"][0]["text"]
    choice = content["choices"][0]
    if choice.get("token_ids") and "text" not in choice and "message" not in choice:
        return tokenizer.decode(choice["token_ids"], skip_special_tokens=True)
    return choice["message"]["content"] if "message" in choice else choice["text"]


def _piece(event: Any, tokenizer: Any) -> str:
    if event.get("type") in ("response.output_text.delta", "content_block_delta"):
        delta = event["delta"]
        return delta if isinstance(delta, str) else delta.get("text", "")
    for choice in event.get("choices", ()):
        if "delta" in choice:
            return choice["delta"].get("content") or ""
        if "text" in choice:
            return choice["text"]
        return tokenizer.decode(choice.get("token_ids") or (), skip_special_tokens=True)
    return ""


def check_receipt(reply: httpx.Response, spec: ForcedTokenSequenceSpec) -> None:
    """The receipt is in the header, and in the body or in the first chunk alone."""
    found = receipt(reply, spec)
    assert found.kinds == ("forced_sequence",)
    lines = [line.removeprefix("data:").strip() for line in reply.text.splitlines()]
    objects = [json.loads(line) for line in lines if line[:1] == "{"]
    assert receipt(objects[0], spec) == found
    assert all("logitport" not in each for each in objects[1:])


stream = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def _body(name: str, stream: bool) -> dict[str, Any]:
    if stream and not TAKES[name].streams:
        pytest.skip(f"{TAKES[name].path} does not stream")
    return TAKES[name].body | ({"stream": True} if stream else {})


# part of a message | specs; the first two are found by the middleware, the third by the engine
WRONG = {
    "not valid JSON": "{",
    "logitport: Invalid value 'mind_reader'": BAD,
    "beyond the vocabulary": encode(ForcedTokenSequenceSpec((1, 10_000_000))),
}


@stream
@pytest.mark.parametrize("name", TAKES)
def test_specs_are_obeyed_or_refused(
    server: httpx.Client, good: str, tokenizer: Any, name: str, stream: bool
):
    path, body = TAKES[name].path, _body(name, stream)
    for message, payload in WRONG.items():
        reply = ask(server, path, body, payload)
        assert reply.status_code == 400
        assert message in reply.json()["error"]["message"]
    reply = ask(server, path, body, good)
    assert reply.status_code == 200
    assert text_of(reply, tokenizer) == TEXT
    check_receipt(reply, ForcedTokenSequenceSpec.from_text(TEXT, tokenizer))
    reply = ask(server, path, body, None)
    assert reply.status_code == 200
    assert text_of(reply, tokenizer) not in ("", TEXT)
    assert "x-logitport" not in reply.headers
    assert "logitport" not in reply.text


def test_forced_text_is_exact(server: httpx.Client, tokenizer: Any):
    """In all of several outputs, with each token's probability, whatever the sampling."""
    text = 'Exactly this: "Grüße, 世界" 🙂\n\tand no more than 2 lines.'
    spec = ForcedTokenSequenceSpec.from_text(text, tokenizer)
    body = {"prompt": "Three rivers:", "max_tokens": 60, "n": 3, "logprobs": 1}
    body |= {"temperature": 1.5, "top_p": 0.1, "min_p": 0.5, "repetition_penalty": 2.0}
    body |= {"return_token_ids": True}
    choices = ask(server, "/v1/completions", body, encode(spec)).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    for choice in choices:
        assert choice["text"] == text
        assert choice["token_ids"] == [*spec.token_ids, tokenizer.eos_token_id]
        assert len(choice["logprobs"]["token_logprobs"]) == len(choice["token_ids"])
        assert choice["finish_reason"] == "stop"


def test_texts_of_a_client_without_a_tokenizer(server: httpx.Client, tokenizer: Any):
    """The processes of front end and worker make the same tokens of them."""
    path, body = TAKES["chat"].path, TAKES["chat"].body
    words = ["Rhine", "Danube, and the Elbe"]
    reply = ask(server, path, body, json.dumps([{"kind": "choice", "texts": words}]))
    assert text_of(reply, tokenizer) in words
    for spec, place in (
        ({"kind": "choice", "texts": ["yes", ""]}, "$[0].texts[1]"),
        ({"kind": "banned_tokens", "tokens": ["never ever"]}, "$[0].tokens[0]"),
    ):
        reply = ask(server, path, body, json.dumps([spec]))
        assert (reply.status_code, place in reply.text) == (400, True)


SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
FUNCTION = {"name": "f", "parameters": SCHEMA}
TOOLS = {"tools": [{"type": "function", "function": FUNCTION}]}
NAMED = {"type": "function", "function": {"name": "f"}}
MESSAGES_TOOLS = {"tools": [{"name": "f", "input_schema": SCHEMA}]}
JSON_REPLY = {"type": "json_schema", "name": "s", "schema": SCHEMA}

# route | fields that give the reply a grammar | the field that is named
GRAMMARS: dict[str, tuple[str, dict[str, Any], str]] = {
    "required": ("chat", TOOLS | {"tool_choice": "required"}, "tool_choice"),
    "named": ("chat", TOOLS | {"tool_choice": NAMED}, "tool_choice"),
    "any": ("messages", MESSAGES_TOOLS | {"tool_choice": {"type": "any"}}, "tool_choice"),
    "tool": (
        "messages",
        MESSAGES_TOOLS | {"tool_choice": {"type": "tool", "name": "f"}},
        "tool_choice",
    ),
    "response_format": ("chat", {"response_format": {"type": "json_object"}}, "response_format"),
    "text": ("responses", {"text": {"format": JSON_REPLY}}, "text"),
    "output_config": (
        "messages",
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        "output_config",
    ),
    "structured_outputs": ("chat", {"structured_outputs": {"regex": "a"}}, "structured_outputs"),
}


@stream
@pytest.mark.parametrize("name", GRAMMARS)
def test_a_grammar_that_the_request_asks_for_is_seen(
    server: httpx.Client, good: str, name: str, stream: bool
):
    route, fields, field = GRAMMARS[name]
    reply = ask(server, TAKES[route].path, _body(route, stream) | fields, good)
    assert reply.status_code == 400
    assert f"Conflicts with the request's {field}" in reply.json()["error"]["message"]


@stream
def test_a_field_that_rules_the_specs_out_is_seen(server: httpx.Client, good: str, stream: bool):
    """Before a stream begins, too, when vLLM has not checked its parameters."""
    reply = ask(server, TAKES["chat"].path, _body("chat", stream) | {"min_tokens": 12}, good)
    assert reply.status_code == 400
    assert "the request's `min_tokens`" in reply.json()["error"]["message"]


def test_tools_that_need_not_be_called_are_no_grammar(
    server: httpx.Client, good: str, tokenizer: Any
):
    body = TAKES["chat"].body | TOOLS | {"tool_choice": "none"}
    reply = ask(server, TAKES["chat"].path, body, good)
    assert (reply.status_code, text_of(reply, tokenizer)) == (200, TEXT)


@pytest.mark.parametrize(("path", "body"), TAKES_NONE.values(), ids=TAKES_NONE.keys())
def test_where_nothing_can_obey_specs_are_refused(
    server: httpx.Client, good: str, path: str, body: dict[str, Any]
):
    reply = ask(server, path, body, good)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith("logitport: ")
    reply = ask(server, path, body, None)
    assert reply.status_code in (200, 501)  # 501: another kind of model makes decisions
    assert "logitport" not in reply.text


@stream
def test_specs_are_found_however_the_body_is_written(
    server: httpx.Client, model: Path, stream: bool
):
    """Standard parsers do not read a lone surrogate, and vLLM's does."""
    body = {"model": model.name, "prompt": "Hi", "max_tokens": 2, "stream": stream}
    content = json.dumps(body | {"vllm_xargs": {"logitport": BAD}})
    content = content.replace("{", '{"x": "\\ud800", ', 1)
    headers = {"content-type": "application/json"}
    reply = server.post("/v1/completions", content=content, headers=headers)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith("logitport: ")


def test_a_payload_may_be_an_object(server: httpx.Client, good: str, tokenizer: Any):
    for payload in (json.loads(good), json.loads(good)["specs"]):
        reply = ask(server, TAKES["chat"].path, TAKES["chat"].body, payload)
        assert (reply.status_code, text_of(reply, tokenizer)) == (200, TEXT)


CARRIED = [name for name in TAKES if name not in ("generate", "batch")]


@stream
@pytest.mark.parametrize("name", CARRIED)
def test_specs_in_a_schema_are_obeyed(
    server: httpx.Client, tokenizer: Any, name: str, stream: bool
):
    spec = ForcedTokenSequenceSpec.from_text(TEXT, tokenizer)
    body = _body(name, stream) | extra_body("vllm", spec, carrier="schema")
    reply = ask(server, TAKES[name].path, body, None)
    assert (reply.status_code, text_of(reply, tokenizer)) == (200, TEXT)
    check_receipt(reply, spec)
    body["response_format"]["json_schema"]["schema"]["x-logitport"] = BAD
    reply = ask(server, TAKES[name].path, body, None)
    assert reply.status_code == 400
    assert "logitport: Invalid value 'mind_reader'" in reply.json()["error"]["message"]


def test_without_the_keyword_the_schema_shows_the_loss(server: httpx.Client, tokenizer: Any):
    """As on a server that does not know it."""
    body = TAKES["chat"].body | extra_body("vllm", BannedTokensSpec((5,)), carrier="schema")
    del body["response_format"]["json_schema"]["schema"]["x-logitport"]
    reply = ask(server, TAKES["chat"].path, body | {"max_tokens": 60}, None)
    text = "".join(text_of(reply, tokenizer).split())  # the model may like white space
    assert text.startswith('{"logitport"')


def test_a_schema_of_the_callers_own_holds_beside_specs(server: httpx.Client, tokenizer: Any):
    specs = [BannedTokensSpec((5,)), GrammarSpec(json_schema={"enum": ["a", "b"]})]
    body = TAKES["chat"].body | extra_body("vllm", specs, carrier="schema")
    reply = ask(server, TAKES["chat"].path, body, None)
    assert json.loads(text_of(reply, tokenizer)) in ("a", "b")
    assert receipt(reply.json(), specs, carrier="schema").kinds == ("banned_tokens",)


def test_specs_are_checked_where_a_request_is_rendered(server: httpx.Client, good: str):
    """The rendered request has them where the route of tokens looks for them."""
    chat = TAKES["chat"].body
    assert ask(server, "/v1/chat/completions/render", chat, BAD).status_code == 400
    rendered = ask(server, "/v1/chat/completions/render", chat, good).json()
    assert rendered["sampling_params"]["extra_args"]["logitport"] == good
    assert "logitport" not in rendered  # it is the body of another request


def test_the_server_describes_itself(server: httpx.Client):
    described = server.get("/v1/logitport").json()
    assert (described["engine"], described["stage"]) == ("vllm", "agg")
    assert "forced_sequence" in described["kinds"]


def test_receipts_reach_the_openai_client(server: httpx.Client, model: Path, tokenizer: Any):
    spec = ForcedTokenSequenceSpec.from_text(TEXT, tokenizer)
    url = f"{server.base_url}/v1"
    with OpenAI(base_url=url, api_key="-", max_retries=0) as client:
        asked: dict[str, Any] = {"model": model.name, "messages": MESSAGES, "max_tokens": 20}
        for carrier in ("field", "schema"):
            body = extra_body("vllm", spec, carrier=carrier)
            answer = client.chat.completions.create(**asked, extra_body=body)
            assert answer.choices[0].message.content == TEXT
            assert receipt(answer, spec).kinds == ("forced_sequence",)
            chunk, *_ = client.chat.completions.create(**asked, extra_body=body, stream=True)
            assert receipt(chunk, spec) == receipt(answer, spec)
        with pytest.raises(ReceiptError, match=r"`vllm_xargs\.logitport` was lost"):
            receipt(client.chat.completions.create(**asked), spec)


def test_every_route_is_known_and_documented(server: httpx.Client):
    paths = server.get("/openapi.json").json()["paths"]
    posts = {path for path, methods in paths.items() if "post" in methods}
    tested = {route.path for route in TAKES.values()} | {path for path, _ in TAKES_NONE.values()}
    assert posts <= tested | RENDERS | NO_REPLY
    documentation = DOCS.read_text()
    for path in tested:
        assert f"`{path}`" in documentation


def test_doctor(server: httpx.Client):
    assert findings(str(server.base_url)) == ["obeyed", "refused", "refused"]


def test_probe(server: httpx.Client, model: Path):
    with OpenAI(base_url=f"{server.base_url}/v1", api_key="-", max_retries=0) as client:
        assert probe(client, model.name) is Support.ACTS


def test_a_file_of_requests(model: Path, good: str, tokenizer: Any, tmp_path: Path):
    """``run-batch`` has no HTTP server: what is wrong is in the line of the answer."""
    payloads = {"good": good, "bad": BAD, "none": None}
    lines = [
        {
            "custom_id": name,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": TAKES["chat"].body
            | {"model": model.name}
            | ({"vllm_xargs": {"logitport": payload}} if payload else {}),
        }
        for name, payload in payloads.items()
    ]
    asked, answered = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    asked.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, "-m", "vllm.entrypoints.openai.run_batch"]
    command += ["-i", str(asked), "-o", str(answered), "--model", str(model)]
    command += ["--served-model-name", model.name, "--max-model-len", "1024", "--enforce-eager"]
    subprocess.run([*command, *LOADED], check=True)
    answers = {line["custom_id"]: line for line in map(json.loads, answered.open())}
    replies = {name: answers[name]["response"] for name in payloads}
    assert _text(replies["good"]["body"], tokenizer) == TEXT
    assert _text(replies["none"]["body"], tokenizer) not in ("", TEXT)
    assert "mind_reader" in json.dumps(answers["bad"])
    assert replies["bad"] is None or replies["bad"]["status_code"] == 400
