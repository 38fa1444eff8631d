"""What a client learns of a server from a few requests: tables of servers and of replies."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest
from logitport.adapters import SpecMiddleware, Support, probe
from logitport.adapters.gateway import probe as module
from logitport.adapters.gateway.key import KEY
from logitport.adapters.gateway.receipt import digest_of
from logitport.spec import VERSION, WIRE_KINDS, SpecError, decode, encode
from logitport.spec.base import kind_of
from starlette.testclient import TestClient

KINDS = [kind_of(kind) for kind in WIRE_KINDS]
COMPLETION = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 0,
    "model": "m",
    "choices": [{"index": 0, "text": "!", "logprobs": None, "finish_reason": "length"}],
}


def of_vllm(message: str) -> dict[str, Any]:
    error = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
    return {"error": error}


def of_sglang(message: str) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": "BadRequest", "param": None, "code": 400}


def of_release(*kinds: str) -> str:
    """The message of a release that knows these kinds."""
    known = ", ".join(kinds)
    return (
        f"logitport: Invalid value '?'; the kinds that can travel are {known} "
        "- at `$.specs[0].kind`"
    )


ALL = of_release(*KINDS)
OLDER = (
    f"logitport: Version {VERSION} is newer than {VERSION - 1}, the newest that this release reads "
    "- at `$.version`"
)
POLICY = "logitport: This server does not admit `forced_sequence` - at `$.specs[0]`"
GUARD = "logitport: With the server's guard[0]: Conflicts with it - at `$.specs`"
FIELDS = "vllm_xargs", "custom_params"


@dataclass
class Stub:
    """An OpenAI server, as an ASGI application.

    Args:
        obeys: the carriers whose specs act.
        receipts: whether replies with specs have receipts.
        refuses: the message about a wrong payload; without one, it is ignored.
        right: the message about a right payload, if that is refused as well.
        stage: the stage of the receipts.
    """

    obeys: tuple[str, ...] = ("field", "schema")
    receipts: bool = True
    refuses: str = ALL
    right: str = ""
    stage: str = "agg"
    wrap: Any = of_vllm
    requests: list[dict[str, Any]] = field(default_factory=list[Any])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        self.requests.append({"path": scope["path"], **body})
        status, content = self.reply(body)
        start = {"type": "http.response.start", "status": status}
        await send({**start, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": json.dumps(content).encode()})

    def reply(self, body: dict[str, Any]) -> tuple[int, Any]:
        by_field = next((body[name][KEY] for name in FIELDS if name in body), "")
        by_schema = body.get("response_format", {}).get("json_schema", {}).get("schema", {})
        carried = {"field": by_field, "schema": by_schema.get(f"x-{KEY}", "")}
        text = str(body.get("prompt") or body["messages"])
        receipt: dict[str, Any] = {}
        for carrier, payload in carried.items():
            if not payload or carrier not in self.obeys:
                continue
            is_wrong = '"?"' in payload
            if message := self.refuses if is_wrong else self.right:
                return 400, self.wrap(message)
            digest = digest_of(payload)
            acts = self.stage != "prefill"
            text = f"forced by {payload}" if acts else text
            kinds = ["forced_sequence"] if acts else []
            receipt = {KEY: {"kinds": kinds, "digest": digest, "stage": self.stage}}
        if by_schema and "schema" not in self.obeys:
            text = '{"logitport":"missing"}'
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "length"}
        choice["message"] = {"role": "assistant", "content": text}
        return 200, {**COMPLETION, "choices": [choice], **(receipt if self.receipts else {})}


def client_of(app: Any) -> openai.OpenAI:
    """A client of an ASGI application."""
    http_client = TestClient(app)
    return openai.OpenAI(
        base_url="http://server/v1", api_key="-", http_client=http_client, max_retries=0
    )


def client_at(reply: Any) -> openai.OpenAI:
    http_client = httpx.Client(transport=httpx.MockTransport(reply))
    url = "http://server/v1"
    return openai.OpenAI(base_url=url, api_key="-", http_client=http_client, max_retries=0)


def gateway(app: Any, *lost: str, is_server: bool = False) -> Any:
    """A gateway that drops fields, with our middleware in it, which may give receipts itself."""

    async def passing(scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        kept = {name: value for name, value in body.items() if name not in lost}

        async def receive_kept() -> Any:
            return {"type": "http.request", "body": json.dumps(kept).encode()}

        await app(scope, receive_kept, send)

    return SpecMiddleware(passing, is_server=is_server)


# A server | what is found | how many requests it gets
@pytest.mark.parametrize(
    ("stub", "expected", "count"),
    [
        (Stub(), Support.ACTS, 4),
        (Stub(wrap=of_sglang), Support.ACTS, 4),
        (Stub(receipts=False), Support.ACTS, 4),
        (Stub(receipts=False, refuses=""), Support.ACTS, 4),
        (Stub(stage="prefill"), Support.ACTS, 4),  # the decode server acts
        (Stub(refuses=of_release(*KINDS, "mind_reader")), Support.ACTS, 4),  # a newer release
        (Stub(refuses=of_release(*KINDS[:-1])), Support.TOO_OLD, 4),
        (Stub(refuses=of_release(KINDS[0])), Support.TOO_OLD, 4),
        (Stub(refuses=OLDER, right=OLDER), Support.TOO_OLD, 1),
        (Stub(right=POLICY), Support.ACTS, 2),  # a refusal is no loss
        (Stub(right=GUARD), Support.ACTS, 2),
        (Stub(wrap=lambda text: {"detail": f"engine: {of_vllm(text)}"}), Support.ACTS, 4),
        (Stub(obeys=("schema",)), Support.LOST, 6),
        (Stub(obeys=("schema",), receipts=False), Support.LOST, 6),
        (Stub(obeys=()), Support.IGNORED, 6),
    ],
)
@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_support(
    stub: Stub,
    expected: Support,
    count: int,
    chat: bool,
    engine: str,
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level("WARNING", "logitport")
    stub.requests.clear()
    assert probe(client_of(stub), "m", engine, chat=chat) is expected
    path = "/v1/chat/completions" if chat else "/v1/completions"
    assert {(each["path"], each["model"]) for each in stub.requests} == {(path, "m")}
    assert len(stub.requests) == count
    assert all(each["max_tokens"] == 4 and "stream" not in each for each in stub.requests)
    place = "vllm_xargs" if engine == "vllm" else "custom_params"
    named = f"`{place}.logitport` is lost on the way" in caplog.text
    assert named is (expected is Support.LOST)


# A server | a gateway's fields that are lost | what is found directly | and through the gateway
@pytest.mark.parametrize(
    ("stub", "lost", "directly", "through"),
    [
        (Stub(obeys=()), (), Support.IGNORED, Support.IGNORED),
        (Stub(obeys=()), ("vllm_xargs", "response_format"), Support.IGNORED, Support.IGNORED),
        (Stub(), (), Support.ACTS, Support.ACTS),
        (Stub(receipts=False), (), Support.ACTS, Support.ACTS),
        (Stub(), ("vllm_xargs",), Support.ACTS, Support.LOST),
        (Stub(), ("vllm_xargs", "response_format"), Support.ACTS, Support.IGNORED),
    ],
)
def test_our_middleware_in_a_gateway_proves_nothing(
    stub: Stub, lost: Iterable[str], directly: Support, through: Support
):
    """It refuses a wrong payload itself, whatever is behind it."""
    assert probe(client_of(stub), "m") is directly
    assert probe(client_of(gateway(stub, *lost)), "m") is through
    if not lost:  # as in Ray's proxy, whose receipts only show that specs came there
        assert probe(client_of(gateway(stub, is_server=True)), "m") is directly


REPEATED = f"Unknown field vllm_xargs: {json.dumps({KEY: encode(module.FORCED)})}"


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (400, of_vllm("Unsupported parameter(s): `vllm_xargs`"), openai.BadRequestError),
        (400, of_vllm(REPEATED), openai.BadRequestError),  # a gateway that repeats the request
        (400, of_vllm("logitport: something else"), openai.BadRequestError),
        (400, "", openai.BadRequestError),
        (401, of_vllm("no key"), openai.AuthenticationError),
        (404, of_vllm("no such model"), openai.NotFoundError),
        (500, "<html>oops</html>", openai.InternalServerError),
        (200, {"error": {"message": "no"}}, ValueError),
        (200, {**COMPLETION, "choices": []}, ValueError),
    ],
)
def test_no_answer(status: int, body: Any, error: type[Exception]):
    requests: list[httpx.Request] = []

    def reply(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        if isinstance(body, str):
            return httpx.Response(status, text=body)
        return httpx.Response(status, json=body)

    with pytest.raises(error):
        probe(client_at(reply), "m")
    assert len(requests) == 1


def test_no_connection():
    client = openai.OpenAI(base_url="http://127.0.0.1:1/v1", api_key="-", max_retries=0)
    with pytest.raises(openai.APIConnectionError):
        probe(client, "m")


def test_asynchronous_client_is_refused():
    """It has asked nobody yet: that would look like a reply."""

    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url="http://127.0.0.1:1/v1", api_key="-") as client:
            probe(client, "m")

    with pytest.raises(TypeError, match=r"^Expected a synchronous client, got AsyncOpenAI$"):
        asyncio.run(ask())


def test_the_message_that_clients_rely_on():
    """Clients of other releases read it too: whoever changes it ends their probes."""
    with pytest.raises(SpecError) as error:
        decode(module.UNKNOWN_KIND)
    assert f"logitport: {error.value}" == ALL
    with pytest.raises(SpecError) as error:
        decode({"version": VERSION + 1})
    assert module._VERSION.search(f"logitport: {error.value}")


@pytest.mark.parametrize("engine", ["transformers", "mlx", "nobody"])
def test_engines_without_a_server(engine: str):
    stub = Stub()
    with pytest.raises(SpecError, match=f"{engine}"):
        probe(client_of(stub), "m", engine)
    assert not stub.requests
