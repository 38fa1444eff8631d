"""What a server does on each route, whole or streamed: specs are obeyed, or refused with 400."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import httpx
import pytest
from logitport.adapters import ReceiptError, Support, extra_body, probe, receipt
from logitport.spec import BannedTokensSpec, ForcedTokenSequenceSpec, GrammarSpec, encode
from openai import OpenAI

from examples._support.server import Server
from tests.support.curl import check_choice, commands
from tests.support.doctor import findings
from tests.support.paths import ROOT

Json = dict[str, Any]

BAD = '{"version":1,"specs":[{"kind":"mind_reader"}]}'
BEYOND = encode(ForcedTokenSequenceSpec((1, 10_000_000)))
MESSAGES = [{"role": "user", "content": "Name three rivers of Europe."}]
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TOOLS = {"tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]}


def completions(extra: Json, prompt: Any = "The capital of France is", **more: Any) -> Json:
    return {"prompt": prompt, "max_tokens": 20, "temperature": 0, **extra, **more}


def chat(extra: Json, **more: Any) -> Json:
    return {"messages": MESSAGES, "max_tokens": 20, "temperature": 0, **extra, **more}


def texts_of(events: list[Any], tokenizer: Any) -> list[str]:
    """The texts of what came back, event by event, in the form of any of OpenAI's routes."""
    texts: dict[int, str] = {}
    for event in events:
        for index, text in _pieces(event, tokenizer):
            texts[index] = texts.get(index, "") + text
    return [texts[index] for index in sorted(texts)]


def _pieces(event: Any, tokenizer: Any) -> Iterator[tuple[int, str]]:
    if event.get("type") in ("response.output_text.delta", "content_block_delta"):
        delta = event["delta"]
        yield 0, delta if isinstance(delta, str) else delta.get("text", "")
    elif content := event.get("output", [event])[0].get("content"):
        yield 0, content[0]["text"]
    for choice in event.get("choices", ()):
        said = choice.get("message") or choice.get("delta") or choice
        text = said.get("content") or said.get("text")
        ids = choice.get("token_ids") or ()
        yield choice["index"], text or tokenizer.decode(ids, skip_special_tokens=True)


@dataclass(frozen=True)
class Route:
    """A route that takes specs.

    Attributes:
        path: of the route.
        body: of a request, made of what its specs add.
        read: the texts of what came back.
        obeying: which of the texts obey the specs.
        streams: whether ``stream`` makes it answer piece by piece.
        carries: whether a schema may bring the specs.
    """

    path: str
    body: Callable[[Json], Json]
    read: Callable[[list[Any], Any], list[str]] = texts_of
    obeying: tuple[bool, ...] = (True,)
    streams: bool = True
    carries: bool = True


def streamed(body: Json) -> Json:
    """Where Vertex hands on parameters, it is one of them."""
    if "parameters" in body:
        return body | {"parameters": body["parameters"] | {"stream": True}}
    return body | {"stream": True}


def events(reply: httpx.Response) -> list[Any]:
    """The JSON values of an answer, streamed or not."""
    lines = [line.removeprefix("data:").strip() for line in reply.text.splitlines()]
    return [json.loads(line) for line in lines if line[:1] in ("{", "[") and line != "[DONE]"]


def message_of(reply: httpx.Response) -> str:
    """The message of an error, in any of the servers' forms."""
    body = reply.json()
    return body.get("error", body)["message"]


class RouteTests:
    """Subclass it with a fixture ``server``, and the tables of an engine.

    Attributes:
        engine: its name.
        text: what the specs here force.
        takes: the routes that take specs; one is named ``chat`` and one ``completions``.
        takes_none: path | body | what it answers without specs, among others where ``None``.
        refusal: how these refuse specs.
        wrong: what is added to a body | a part of the message.
        conflicts: route | the request's own fields | parts of the message.
    """

    engine: ClassVar[str]
    text: ClassVar[str]
    takes: ClassVar[Mapping[str, Route]]
    takes_none: ClassVar[Mapping[str, tuple[str, Json, int | None]]]
    refusal: ClassVar[str] = "logitport: "
    wrong: ClassVar[Mapping[str, tuple[Json, str]]]
    conflicts: ClassVar[Mapping[str, tuple[str, Json, tuple[str, ...]]]]

    def extra(self, payload: Any) -> Json:
        """What a payload adds to a body."""
        raise NotImplementedError

    def is_silent(self, path: str) -> bool:
        """Whether a route that is in no table generates nothing, or takes no JSON."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        for argument, table in (
            ("route", self.takes),
            ("carrying", {name: route for name, route in self.takes.items() if route.carries}),
            ("none", self.takes_none),
            ("conflict", self.conflicts),
        ):
            if argument in metafunc.fixturenames:
                metafunc.parametrize(argument, table.values(), ids=table.keys())
        if "stream" in metafunc.fixturenames:
            metafunc.parametrize("stream", [False, True], ids=["whole", "stream"])

    @pytest.fixture
    def client(self, server: Server) -> Iterator[httpx.Client]:
        url = server.base_url.removesuffix("/v1")
        with httpx.Client(base_url=url, timeout=600, trust_env=False) as client:
            yield client

    @pytest.fixture
    def openai(self, server: Server) -> Iterator[OpenAI]:
        with OpenAI(base_url=server.base_url, api_key="-", max_retries=0) as client:
            yield client

    @pytest.fixture
    def name(self, client: httpx.Client) -> str:
        return client.get("/v1/models").json()["data"][0]["id"]

    @pytest.fixture
    def spec(self, tokenizer: Any) -> ForcedTokenSequenceSpec:
        return ForcedTokenSequenceSpec.from_text(self.text, tokenizer)

    @pytest.fixture
    def ask(self, client: httpx.Client, name: str) -> Callable[..., httpx.Response]:
        def ask(path: str, body: Json, stream: bool = False) -> httpx.Response:
            body = {"model": name} | body
            return client.post(path, json=streamed(body) if stream else body)

        return ask

    def check_receipt(self, reply: httpx.Response, spec: Any, **how: Any) -> None:
        """It is in the header, and in the body or in the first chunk alone."""
        found = events(reply)
        for each in (reply, found[0]) if isinstance(found[0], dict) else (reply,):
            assert receipt(each, spec, engine=self.engine, **how).kinds == (spec.kind,)
        assert ['"digest"' in json.dumps(each) for each in found].index(True) == 0
        assert not any('"digest"' in json.dumps(each) for each in found[1:])

    def test_specs_are_obeyed_or_refused(
        self, ask: Any, route: Route, spec: ForcedTokenSequenceSpec, stream: bool, tokenizer: Any
    ):
        if stream and not route.streams:
            pytest.skip(f"{route.path} does not stream")
        for extra, message in self.wrong.values():
            reply = ask(route.path, route.body(extra), stream)
            assert reply.status_code == 400
            assert message in message_of(reply)
        for extra, obeys in ((self.extra(encode(spec)), True), ({}, False)):
            reply = ask(route.path, route.body(extra), stream)
            assert reply.status_code == 200, reply.text
            texts = route.read(events(reply), tokenizer)
            assert all(texts)
            assert [text == self.text for text in texts] == [
                each and obeys for each in route.obeying
            ]
            if obeys and all(route.obeying):  # a receipt is about all prompts
                self.check_receipt(reply, spec)
            else:
                assert "x-logitport" not in reply.headers
                assert '"digest"' not in reply.text

    def test_a_payload_may_be_an_object(
        self, ask: Any, route: Route, spec: ForcedTokenSequenceSpec, tokenizer: Any
    ):
        payload = json.loads(encode(spec))
        for written in (payload, payload["specs"]):
            reply = ask(route.path, route.body(self.extra(written)))
            assert self.text in route.read(events(reply), tokenizer)

    def test_specs_in_a_schema_are_obeyed(
        self, ask: Any, carrying: Route, spec: ForcedTokenSequenceSpec, stream: bool, tokenizer: Any
    ):
        extra = extra_body(self.engine, spec, carrier="schema")
        reply = ask(carrying.path, carrying.body(extra), stream)
        assert carrying.read(events(reply), tokenizer) == [self.text]
        self.check_receipt(reply, spec, carrier="schema")
        extra["response_format"]["json_schema"]["schema"]["x-logitport"] = BAD
        reply = ask(carrying.path, carrying.body(extra), stream)
        assert reply.status_code == 400
        assert "logitport: Invalid value 'mind_reader'" in message_of(reply)

    def test_without_the_keyword_the_schema_shows_the_loss(self, ask: Any, tokenizer: Any):
        """As on a server that does not know it."""
        extra = extra_body(self.engine, BannedTokensSpec((5,)), carrier="schema")
        del extra["response_format"]["json_schema"]["schema"]["x-logitport"]
        reply = ask("/v1/chat/completions", chat(extra, max_tokens=60))
        (text,) = texts_of(events(reply), tokenizer)
        assert "".join(text.split()).startswith('{"logitport":')  # white space is the model's

    def test_a_schema_of_the_callers_own_holds_beside_specs(self, ask: Any, tokenizer: Any):
        specs = [BannedTokensSpec((5,)), GrammarSpec(json_schema={"enum": ["a", "b"]})]
        body = chat(extra_body(self.engine, specs, carrier="schema"))
        reply = ask("/v1/chat/completions", body).json()
        assert json.loads(texts_of([reply], tokenizer)[0]) in ("a", "b")
        found = receipt(reply, specs, engine=self.engine, carrier="schema")
        assert found.kinds == ("banned_tokens",)

    def test_texts_of_a_client_without_a_tokenizer(self, ask: Any, tokenizer: Any):
        """The processes of front end and worker make the same tokens of them."""
        words = ["Rhine", "Danube, and the Elbe"]
        choice = {"kind": "choice", "texts": words}
        reply = ask("/v1/chat/completions", chat(self.extra(json.dumps([choice]))))
        assert texts_of(events(reply), tokenizer)[0] in words
        for spec, place in (
            ({"kind": "choice", "texts": ["yes", ""]}, "$[0].texts[1]"),
            ({"kind": "banned_tokens", "tokens": ["never ever"]}, "$[0].tokens[0]"),
        ):
            reply = ask("/v1/chat/completions", chat(self.extra([spec])))
            assert (reply.status_code, place in reply.text) == (400, True)

    def test_specs_are_found_however_the_body_is_written(
        self, client: httpx.Client, name: str, stream: bool
    ):
        """Standard parsers do not read a lone surrogate, and engines do."""
        body = {"model": name, "stream": stream, **completions(self.extra(BAD))}
        content = json.dumps(body).replace("{", '{"x": "\\ud800", ', 1)
        headers = {"content-type": "application/json"}
        reply = client.post("/v1/completions", content=content, headers=headers)
        assert reply.status_code == 400
        assert message_of(reply).startswith("logitport: Invalid value 'mind_reader'")

    def test_own_fields_that_contradict_specs(
        self, ask: Any, conflict: Any, spec: ForcedTokenSequenceSpec, stream: bool
    ):
        """Before a stream begins, too, when the engine has not checked its parameters."""
        name, fields, parts = conflict
        body = self.takes[name].body(self.extra(encode(spec)))
        body.get("sampling_params", body).update(fields)
        reply = ask(self.takes[name].path, body, stream)
        assert reply.status_code == 400
        for part in parts:
            assert part in message_of(reply)

    def test_other_routes_refuse_specs(
        self, ask: Any, none: tuple[str, Json, int | None], spec: ForcedTokenSequenceSpec
    ):
        path, body, status = none
        for payload in (encode(spec), BAD):
            for stream in (False, True):
                reply = ask(path, body | self.extra(payload), stream)
                assert reply.status_code == 400
                assert self.refusal.format(path=path) in message_of(reply)
        reply = ask(path, body)
        assert status in (None, reply.status_code)
        # An engine's error may have the path of its files, in a clone named after the project.
        assert "logitport" not in reply.text.replace(str(ROOT), "")

    def test_every_route_is_listed(self, client: httpx.Client):
        """A new version of the engine may have more."""
        paths = client.get("/openapi.json").json()["paths"]
        posts = {path for path, methods in paths.items() if "post" in methods}
        listed = {route.path for route in self.takes.values()}
        listed |= {path for path, *_ in self.takes_none.values()}
        assert [path for path in posts - listed if not self.is_silent(path)] == []

    def test_receipts_reach_the_openai_client(
        self, openai: OpenAI, name: str, spec: ForcedTokenSequenceSpec
    ):
        create, how = openai.chat.completions.create, {"engine": self.engine}
        asked: dict[str, Any] = {"model": name, "messages": MESSAGES, "max_tokens": 20}
        for carrier in ("field", "schema"):
            body = extra_body(self.engine, spec, carrier=carrier)
            answer = create(**asked, extra_body=body)
            assert answer.choices[0].message.content == self.text
            assert receipt(answer, spec, **how, carrier=carrier).kinds == ("forced_sequence",)
            chunk, *_ = create(**asked, extra_body=body, stream=True)
            assert receipt(chunk, spec, **how) == receipt(answer, spec, **how)
        with pytest.raises(ReceiptError, match=r"\.logitport` was lost"):
            receipt(create(**asked), spec, **how)

    def test_the_chat_by_curl(self, server: Server, name: str):
        check_choice(commands()[self.engine == "sglang"], server.base_url, name)

    def test_the_server_describes_itself(self, client: httpx.Client):
        described = client.get("/v1/logitport").json()
        assert (described["engine"], described["stage"]) == (self.engine, "agg")
        assert "forced_sequence" in described["kinds"]

    def test_doctor_and_probe(self, server: Server, openai: OpenAI, name: str):
        assert findings(server.base_url) == ["obeyed", "refused", "refused"]
        assert probe(openai, name, self.engine) is Support.ACTS
