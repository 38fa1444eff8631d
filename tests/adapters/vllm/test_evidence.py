"""Receipts of requests on which the server's specs alone act, and counters of what acts."""

import json
from typing import Any

import pytest
from logitport import spec as lp
from logitport.adapters import Policy, ReceiptError, note, one_policy, receipt
from logitport.adapters.acting import NOTED
from logitport.adapters.gateway.receipt import HEADER, digest_of
from logitport.adapters.vllm import KEY, LogitportProcessor, SpecMiddleware, admission, processor
from logitport.adapters.vllm.admission import Admitting
from prometheus_client import REGISTRY
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from vllm.sampling_params import StructuredOutputsParams

from .in_process import params
from .stand_ins import configuration
from .test_guard import words

pytestmark = pytest.mark.only("v1", reason="no runner is involved")

GUARD = {"guard": [{"kind": "banned_tokens", "token_ids": [40]}]}
DEFAULT = {"default": [{"kind": "forced_sequence", "token_ids": [50]}]}
PRESETS = {"presets": {"p": [{"kind": "choice", "choices": [[60], [61]]}]}}
MARK = {
    "profiles": {"news": {"scheme": "vllm-gumbel", "key": {"env": "NEWS_KEY"}}},
    "require": {"watermark": {"profile": "news"}},
}
OWN = lp.LogitBiasSpec({8: 1.0})
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


class Server:
    """vLLM's front end, whose answers have no tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, content: Any, **others: Any) -> None:
        monkeypatch.setenv("NEWS_KEY", "7")
        monkeypatch.setattr(admission, "tokenizer_of", lambda _: words)
        config = configuration(additional_config={KEY: content}, **others)
        config.model_config.served_model_name = [self.model, "another"]
        monkeypatch.setattr(processor, "admitting_engine", lambda: Admitting(config))
        routes = [
            Route(path, self.answer, methods=["POST"])
            for path in (COMPLETIONS, CHAT, "/v1/completions/render", "/generative_scoring")
        ]
        app = Starlette(middleware=[Middleware(SpecMiddleware)], routes=routes)
        app.state.vllm_config = config
        self._client = TestClient(app)
        self.fields: dict[str, Any] = {}

    model = "tested by evidence"

    def _admit(self, body: Any, fields: Any) -> None:
        if (given := body.get("vllm_xargs")) is not None:
            fields = {**fields, "extra_args": given}
        LogitportProcessor.validate_params(params(**fields))

    async def answer(self, request: Request) -> Response:
        body, fields = await request.json(), self.fields
        if not body.get("stream"):
            self._admit(body, fields)
            return JSONResponse({"id": "1"})

        async def events() -> Any:
            self._admit(body, fields)
            yield 'data: {"id":"1"}\n\n'
            yield 'data: {"id":"2"}\n\n'

        return StreamingResponse(events(), media_type="text/event-stream")

    def ask(self, path: str = COMPLETIONS, *specs: Any, stream: bool = False, **fields: Any) -> Any:
        self.fields = fields
        more = {"vllm_xargs": {KEY: lp.encode(specs)}} if specs else {}
        return self._client.post(path, json={"stream": stream, **more})

    def counts(self) -> dict[str, float]:
        """By kind, and by preset."""
        found: dict[str, float] = {}
        for metric in REGISTRY.collect():
            for sample in metric.samples:
                if sample.labels.get("model") == self.model and sample.name.endswith("_total"):
                    found[sample.labels.get("kind") or sample.labels["preset"]] = sample.value
        return found


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    def serve(content: Any, setting: str = "all", **others: Any) -> Server:
        monkeypatch.setenv("LOGITPORT_RECEIPT", setting)
        return Server(monkeypatch, content, **others)

    return serve


GRAMMAR = {"structured_outputs": StructuredOutputsParams(regex="a+")}
LABELS = {"max_tokens": 1, "logprob_token_ids": [5]}


# the configuration | the request's fields | what its receipt has; None without a receipt
@pytest.mark.parametrize(
    ("content", "fields", "expected"),
    [
        (GUARD, {}, {"kinds": ["banned_tokens"]}),
        (DEFAULT, {}, {"kinds": ["forced_sequence"], "default": True}),
        (GUARD | DEFAULT, {}, {"kinds": ["banned_tokens", "forced_sequence"], "default": True}),
        (GUARD | DEFAULT, GRAMMAR, {"kinds": ["banned_tokens"]}),
        (GUARD | DEFAULT, LABELS, {"kinds": ["banned_tokens"]}),
        (GUARD | MARK, {"temperature": 1.0}, {"kinds": ["banned_tokens"], "mark": "news"}),
        (DEFAULT, GRAMMAR, None),
        (PRESETS, {}, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_receipt_without_specs(
    serve: Any, content: Any, fields: Any, expected: Any, stream: bool
):
    server = serve(content)
    answer = server.ask(stream=stream, **fields)
    found = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    if expected is None:
        assert KEY not in answer.text
        return
    policy = server._client.get("/logitport").json()["policy"]["digest"]
    full = {"digest": "", "stage": "agg", "policy": policy, **expected}
    assert json.loads(found[0]) == {"logitport": full, "id": "1"}
    assert found[1:] == (['{"id":"2"}'] if stream else [])
    if not stream:
        assert json.loads(answer.headers[HEADER]) == full
        assert int(answer.headers["content-length"]) == len(answer.content)


# the setting | the stage of the engine | the route | its own specs
@pytest.mark.parametrize(
    ("setting", "kv_role", "path", "specs", "digest"),
    [
        ("1", None, COMPLETIONS, (), None),
        ("0", None, COMPLETIONS, (OWN,), None),
        ("all", "kv_producer", COMPLETIONS, (), None),
        ("all", None, "/generative_scoring", (), None),
        ("all", None, CHAT, (), ""),
        ("all", None, CHAT, (OWN,), digest_of(lp.encode(OWN))),
        ("1", None, CHAT, (OWN,), digest_of(lp.encode(OWN))),
    ],
)
def test_which_answers_have_one(
    serve: Any, setting: str, kv_role: str | None, path: str, specs: Any, digest: str | None
):
    answer = serve(GUARD, setting, kv_role=kv_role).ask(path, *specs)
    assert answer.status_code == 200
    assert answer.json().get(KEY, {}).get("digest") == digest


def test_a_client_finds_that_its_specs_were_dropped(serve: Any):
    answer = serve(GUARD).ask().json()
    assert receipt(answer, ()).kinds == ("banned_tokens",)
    with pytest.raises(ReceiptError, match=r"`vllm_xargs.logitport` was lost on the way"):
        receipt(answer, OWN)


@pytest.mark.parametrize("given", [(None, "[]"), ("[]", None), ("[]", "[]"), (None, None)])
def test_several_prompts_have_one_receipt_or_none(given: Any):
    with one_policy() as seen:
        for each in given:
            note(Policy(), (), (OWN,), each, "a model")
    assert seen[NOTED] == (None if any(given) else ((), (OWN,)))


def test_counters_of_what_acts(serve: Any):
    server = serve(GUARD | DEFAULT | PRESETS, "1")
    before = server.counts()
    server.ask()
    server.ask(COMPLETIONS, OWN)
    server.ask(COMPLETIONS, lp.PluginSpec("p"), OWN)
    server.ask(**GRAMMAR)
    assert server.ask(COMPLETIONS, lp.ForcedTokenSequenceSpec((40,))).status_code == 400
    after = server.counts()
    assert {name: count - before.get(name, 0) for name, count in after.items()} == {
        "banned_tokens": 4,
        "forced_sequence": 1,
        "logit_bias": 2,
        "choice": 1,
        "p": 1,
    }
