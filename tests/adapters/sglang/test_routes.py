"""Every public route of SGLang's server that generates, or reads what the model would say.

Specs are obeyed or refused with status 400 there, streamed or not; ``docs/sglang.md`` has the list.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from logitport.adapters import extra_body, receipt
from logitport.adapters.sglang import KEY, PROCESSOR, attach
from logitport.adapters.sglang.admission import REFUSED
from logitport.spec import BannedTokensSpec, ForcedTokenSequenceSpec, GrammarSpec

from examples._support.sglang_server import SglangServer
from tests.support.doctor import findings
from tests.support.paths import ROOT

pytestmark = pytest.mark.engine

Json = dict[str, Any]

PROMPT = "The capital of France is"
SAID = " treasure"
MESSAGES = [{"role": "user", "content": "Where?"}]
FEW = {"temperature": 0, "max_tokens": 6}


def generate(extra: Json, text: Any = PROMPT) -> Json:
    """A body for SGLang's own route, with what goes into the body of others."""
    others = dict(extra)
    sampling_params = {"temperature": 0, "max_new_tokens": 6}
    if custom_params := others.pop("custom_params", None):
        sampling_params["custom_params"] = custom_params
    return {"text": text, "sampling_params": sampling_params, **others}


def each_its_own(extra: Json) -> Json:
    """Two prompts, of which the second alone has the specs."""
    first, second = generate({}), generate(extra)
    names = ("text", "sampling_params", "custom_logit_processor")
    return {name: [first.get(name), second.get(name)] for name in names}


def vertex(extra: Json) -> Json:
    body = generate(extra)
    return {"instances": [{"text": body.pop("text")}], "parameters": body}


def completions(extra: Json, prompt: Any = PROMPT, **more: Any) -> Json:
    return {"model": "any", "prompt": prompt, **FEW, **extra, **more}


def chat(extra: Json, **more: Any) -> Json:
    return {"model": "any", "messages": MESSAGES, **FEW, **extra, **more}


def of_generate(replies: list[Any]) -> list[str]:
    """The texts; streamed, each event has all of one so far."""
    texts: dict[int, str] = {}
    for reply in replies:
        whole = reply.get("predictions", reply) if isinstance(reply, dict) else reply
        for i, each in enumerate(whole if isinstance(whole, list) else [whole]):
            texts[each.get("index", i)] = each["text"]
    return [texts[i] for i in sorted(texts)]


def of_openai(replies: list[Any]) -> list[str]:
    texts: dict[int, str] = {}
    for choice in (choice for reply in replies for choice in reply["choices"]):
        said = choice.get("message") or choice.get("delta") or choice
        texts.setdefault(choice["index"], "")
        texts[choice["index"]] += said.get("content") or said.get("text") or ""
    return [texts[i] for i in sorted(texts)]


@dataclass(frozen=True)
class Takes:
    """A route that takes specs.

    Attributes:
        path: of the route.
        body: of a request, made of what its specs add.
        read: the texts of what came back, event by event.
        obeying: which of the texts obey the specs.
    """

    path: str
    body: Callable[[Json], Json]
    read: Callable[[list[Any]], list[str]]
    obeying: tuple[bool, ...] = (True,)


TAKES = {
    "generate": Takes("/generate", generate, of_generate),
    "generate, two prompts": Takes(
        "/generate", lambda extra: generate(extra, [PROMPT] * 2), of_generate, (True, True)
    ),
    "generate, each its own": Takes("/generate", each_its_own, of_generate, (False, True)),
    "Vertex": Takes("/vertex_generate", vertex, of_generate),
    "completions": Takes("/v1/completions", completions, of_openai),
    "completions, two prompts": Takes(
        "/v1/completions", lambda extra: completions(extra, [PROMPT] * 2), of_openai, (True, True)
    ),
    "completions, n": Takes(
        "/v1/completions", lambda extra: completions(extra, n=2), of_openai, (True, True)
    ),
    "chat": Takes("/v1/chat/completions", chat, of_openai),
    "chat, n": Takes(
        "/v1/chat/completions", lambda extra: chat(extra, n=2), of_openai, (True, True)
    ),
    "SageMaker": Takes("/invocations", chat, of_openai),
}

OLLAMA = {"model": "any", "options": {"num_predict": 6, "temperature": 0}}

# path | body | what it answers without specs; ``None`` where this model has nothing to say
TAKES_NONE: dict[str, tuple[str, Json, int | None]] = {
    "Responses": (
        "/v1/responses",
        {"model": "any", "input": "Where?", "max_output_tokens": 6},
        200,
    ),
    "Anthropic": ("/v1/messages", chat({}), 200),
    "Ollama chat": ("/api/chat", OLLAMA | {"messages": MESSAGES}, 200),
    "Ollama": ("/api/generate", OLLAMA | {"prompt": PROMPT}, 200),
    "score": (
        "/v1/score",
        {"model": "any", "query": PROMPT, "items": [" Paris"], "label_token_ids": [7, 8]},
        200,
    ),
    "decisions": (
        "/v1/decisions",
        {"input": "x", "questions": [{"id": "a", "type": "yes_no", "question": "Is it?"}]},
        None,
    ),
    "System One": ("/v1/systemone", {}, None),
    "embeddings": ("/v1/embeddings", {"model": "any", "input": PROMPT}, None),
    "classify": ("/v1/classify", {"model": "any", "input": PROMPT}, None),
    "its own embeddings": ("/encode", {"text": PROMPT}, None),
    "its own classify": ("/classify", {"text": PROMPT}, None),
    "rerank": ("/v1/rerank", {"query": PROMPT, "documents": ["a"]}, None),
}

BAD = {
    "custom_logit_processor": PROCESSOR,
    "custom_params": {KEY: '{"version":1,"specs":[{"kind":"choice","choices":[[]]}]}'},
}
BEYOND = extra_body("sglang", ForcedTokenSequenceSpec((49152,)))

# what is added | what the message has
REFUSED_WITH: dict[str, tuple[Json, str]] = {
    "bad": (BAD, "$.specs[0].choices[0]"),
    "vocabulary": (BEYOND, "beyond the vocabulary of 49152 tokens"),
    "misspelt": (
        {"custom_params": {"logit_port": BEYOND["custom_params"][KEY]}},
        "Expected the key `logitport`, got 'logit_port'",
    ),
    "without the key": (
        {"custom_params": {"payload": BEYOND["custom_params"][KEY]}},
        "custom_params.payload`",  # with what a route has around it
    ),
    "code": ({"custom_logit_processor": '{"callable": "00"}'}, REFUSED),
}


@pytest.fixture(scope="module")
def client(server: SglangServer) -> Iterator[httpx.Client]:
    base_url = server.base_url.removesuffix("/v1")
    with httpx.Client(base_url=base_url, timeout=600, trust_env=False) as client:
        yield client


@pytest.fixture
def good(tokenizer: Any) -> Json:
    return extra_body("sglang", ForcedTokenSequenceSpec.from_text(SAID, tokenizer))


def streamed(path: str, body: Json) -> Json:
    if path == "/vertex_generate":
        return body | {"parameters": body["parameters"] | {"stream": True}}
    return body | {"stream": True}


def events(reply: httpx.Response) -> list[Any]:
    """The JSON values of an answer, streamed or not."""
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines()]
    return [json.loads(line) for line in lines if line and line != "[DONE]"]


def ask(client: httpx.Client, path: str, body: Json, stream: bool) -> httpx.Response:
    return client.post(path, json=streamed(path, body) if stream else body)


WHOLE_AND_STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@WHOLE_AND_STREAMED
@pytest.mark.parametrize("route", TAKES.values(), ids=TAKES.keys())
def test_specs_are_obeyed(client: httpx.Client, route: Takes, stream: bool, good: Json):
    for extra, obeys in ((good, True), ({}, False)):
        reply = ask(client, route.path, route.body(extra), stream)
        assert reply.status_code == 200, reply.text
        found = events(reply)
        assert [text == SAID for text in route.read(found)] == [
            each and obeys for each in route.obeying
        ]
        has_receipt = obeys and all(route.obeying)  # a receipt is about all prompts
        assert ("x-logitport" in reply.headers) is has_receipt
        assert sum('"digest"' in json.dumps(each) for each in found) == has_receipt


CARRIED = {name: TAKES[name] for name in ("completions", "chat", "SageMaker")}


@WHOLE_AND_STREAMED
@pytest.mark.parametrize("route", CARRIED.values(), ids=CARRIED.keys())
def test_specs_in_a_schema_are_obeyed(
    client: httpx.Client, route: Takes, stream: bool, tokenizer: Any
):
    spec = ForcedTokenSequenceSpec.from_text(SAID, tokenizer)
    extra = extra_body("sglang", spec, carrier="schema")
    reply = ask(client, route.path, route.body(extra), stream)
    assert reply.status_code == 200, reply.text
    found = events(reply)
    assert route.read(found) == [SAID]
    for each in (reply, found[0]):
        assert receipt(each, spec, engine="sglang", carrier="schema").kinds == (spec.kind,)
    schema = extra["response_format"]["json_schema"]["schema"]
    schema["x-logitport"] = BAD["custom_params"][KEY]
    assert ask(client, route.path, route.body(extra), stream).status_code == 400
    del schema["x-logitport"]  # as on a server that does not know it
    reply = ask(client, route.path, route.body(extra) | {"max_tokens": 60}, stream)
    (text,) = route.read(events(reply))
    assert "".join(text.split()).startswith('{"logitport":')


def test_a_schema_of_the_callers_own_holds_beside_specs(client: httpx.Client):
    specs = [BannedTokensSpec((5,)), GrammarSpec(json_schema={"enum": ["a", "b"]})]
    reply = ask(
        client, TAKES["chat"].path, chat(extra_body("sglang", specs, carrier="schema")), False
    )
    (text,) = of_openai([reply.json()])
    assert json.loads(text) in ("a", "b")
    assert receipt(reply.json(), specs, engine="sglang").kinds == ("banned_tokens",)


def test_the_server_describes_itself(client: httpx.Client):
    described = client.get("/logitport").json()
    assert (described["engine"], described["stage"]) == ("sglang", "agg")


@WHOLE_AND_STREAMED
@pytest.mark.parametrize(("extra", "message"), REFUSED_WITH.values(), ids=REFUSED_WITH.keys())
@pytest.mark.parametrize("route", TAKES.values(), ids=TAKES.keys())
def test_what_is_wrong_is_refused(
    client: httpx.Client, route: Takes, extra: Json, message: str, stream: bool
):
    reply = ask(client, route.path, route.body(extra), stream)
    assert reply.status_code == 400
    assert message in said_in_error(reply)


def said_in_error(reply: httpx.Response) -> str:
    """The message of an error, in any of SGLang's forms."""
    body = reply.json()
    return body.get("error", body)["message"]


@WHOLE_AND_STREAMED
@pytest.mark.parametrize(("path", "body", "status"), TAKES_NONE.values(), ids=TAKES_NONE.keys())
def test_other_routes_refuse_specs(
    client: httpx.Client, path: str, body: Json, status: int | None, stream: bool, good: Json
):
    for extra in (good, BAD):
        reply = ask(client, path, body | extra, stream)
        assert reply.status_code == 400
        assert f"logitport: {path} takes no specs" in said_in_error(reply)
    reply = ask(client, path, body, stream)
    assert status in (None, reply.status_code)
    # SGLang's own error has the path of its files, in a clone that may be named after the project.
    assert "logitport" not in reply.text.replace(str(ROOT), "")


@WHOLE_AND_STREAMED
def test_specs_are_found_however_the_body_is_written(client: httpx.Client, stream: bool):
    """Standard parsers do not read a lone surrogate."""
    body = generate(BAD)
    content = json.dumps(streamed("/generate", body) if stream else body)
    content = content.replace("{", '{"x": "\\ud800", ', 1)
    headers = {"content-type": "application/json"}
    reply = client.post("/generate", content=content, headers=headers)
    assert reply.status_code == 400
    assert "$.specs[0].choices[0]" in said_in_error(reply)


def test_a_payload_may_be_an_object(client: httpx.Client, good: Json):
    good = good | {"custom_params": {KEY: json.loads(good["custom_params"][KEY])}}
    for route in ("generate", "completions, two prompts", "chat"):
        reply = ask(client, TAKES[route].path, TAKES[route].body(good), stream=False)
        assert set(TAKES[route].read([reply.json()])) == {SAID}


def test_every_route_is_listed(client: httpx.Client):
    """A new version of SGLang may have more; those here generate nothing, or take no JSON."""
    others = ("tokenize", "detokenize", "count_tokens", "transcriptions", "cancel")
    listed = {route.path for route in TAKES.values()} | {path for path, *_ in TAKES_NONE.values()}
    public = {
        path
        for path, methods in client.get("/openapi.json").json()["paths"].items()
        if path.startswith(("/v1/", "/api/")) and "post" in methods
    }
    unlisted = {path for path in public - listed if not path.endswith(others)}
    assert unlisted == {"/api/show"}


def test_no_front_end_makes_a_processor_of_a_client(client: httpx.Client):
    """With ``return_sampling_mask``, one makes it to see what it is. There are several."""
    body = generate({"custom_logit_processor": "{}", "return_sampling_mask": True})
    for _ in range(4):
        reply = client.post("/generate", json=body)
        assert (reply.status_code, REFUSED in reply.text) == (400, True)
    body = {"text": PROMPT, "sampling_params": {"custom_params": [1]}}
    assert client.post("/generate", json=body).status_code == 400


def test_put(client: httpx.Client, good: Json):
    assert client.put("/generate", json=generate(BAD)).status_code == 400
    assert client.put("/generate", json=generate(good)).json()["text"] == SAID


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]

# path | body besides | what both places are
OWN_FIELDS: dict[str, tuple[str, Json, tuple[str, str]]] = {
    "EOS before min_new_tokens": (
        "/generate",
        {"min_new_tokens": 4},
        ("`min_new_tokens`, which bans token 2", "$.specs[0].eos_token_id"),
    ),
    "EOS before min_tokens": (
        "/v1/completions",
        {"min_tokens": 4},
        ("`min_new_tokens`, which bans token 2", "$.specs[0].eos_token_id"),
    ),
    "a forced stop token": (
        "/generate",
        {"min_new_tokens": 1, "stop_token_ids": [14226]},
        ("`min_new_tokens`, which bans token 14226", "$.specs[0].token_ids[0]"),
    ),
    "a grammar": ("/generate", {"regex": "a+"}, ("request's regex", "$.specs[0]")),
    "a JSON reply": (
        "/v1/chat/completions",
        {"response_format": {"type": "json_object"}},
        ("request's json_schema", "$.specs[0]"),
    ),
    "a tool's call": (
        "/v1/chat/completions",
        {"tools": TOOLS, "tool_choice": "required"},
        ("request's json_schema", "$.specs[0]"),
    ),
    "beams": ("/generate", {"beam_width": 2}, ("tokens of its beams", "logitport: ")),
}


@WHOLE_AND_STREAMED
@pytest.mark.parametrize(("path", "fields", "parts"), OWN_FIELDS.values(), ids=OWN_FIELDS.keys())
def test_own_fields_that_contradict_specs(
    client: httpx.Client, path: str, fields: Json, parts: tuple[str, str], stream: bool, good: Json
):
    bodies = {"/generate": generate, "/v1/completions": completions, "/v1/chat/completions": chat}
    body = bodies[path](good)
    body.get("sampling_params", body).update(fields)
    reply = ask(client, path, body, stream)
    assert reply.status_code == 400
    for part in parts:
        assert part in said_in_error(reply)


def test_own_fields_that_do_not(client: httpx.Client, tokenizer: Any):
    """The specs come last: a bias, however large, only moves what they leave."""
    spec = ForcedTokenSequenceSpec.from_text(SAID + " here", tokenizer)
    for fields in ({"min_new_tokens": 2}, {"logit_bias": {"14226": -100.0}}):
        body = attach(generate({}), spec)
        body["sampling_params"] |= fields
        assert client.post("/generate", json=body).json()["text"] == SAID + " here"


def test_doctor(client: httpx.Client):
    assert findings(str(client.base_url)) == ["obeyed", "refused", "refused"]
