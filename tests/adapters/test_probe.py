"""What a client learns of a server from one request: a table of HTTP replies."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from logitport.adapters import SpecMiddleware, Support, probe
from logitport.adapters.gateway import probe as module
from logitport.adapters.gateway.key import KEY
from logitport.spec import VERSION, WIRE_KINDS, SpecError, decode
from logitport.spec.base import kind_of

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


def asked(
    status: int, body: Any, by_schema: tuple[int, Any] | None = None
) -> tuple[Any, list[dict[str, Any]]]:
    """A client of a server that gives this reply, and the requests that it has sent.

    Requests with a ``response_format`` may get another reply.
    """
    requests: list[dict[str, Any]] = []

    def reply(request: httpx.Request) -> httpx.Response:
        requests.append({"path": request.url.path, **json.loads(request.content)})
        code, content = status, body
        if by_schema and "response_format" in requests[-1]:
            code, content = by_schema
        if isinstance(content, str):
            return httpx.Response(code, text=content)
        return httpx.Response(code, json=content)

    http_client = httpx.Client(transport=httpx.MockTransport(reply))
    url = "http://server/v1"
    client = openai.OpenAI(base_url=url, api_key="-", http_client=http_client, max_retries=0)
    return client, requests


ALL = of_release(*KINDS)
OLDER = (
    f"logitport: Version {VERSION} is newer than {VERSION - 1}, the newest that this release reads "
    "- at `$.version`"
)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, of_vllm(ALL), Support.ACTS),
        (400, of_sglang(ALL), Support.ACTS),
        (400, of_vllm(of_release(*KINDS, "mind_reader")), Support.ACTS),  # a newer release
        (400, of_vllm(of_release(*KINDS[:-1])), Support.TOO_OLD),
        (400, of_vllm(of_release(KINDS[0])), Support.TOO_OLD),
        (400, of_vllm(OLDER), Support.TOO_OLD),
        (422, {"detail": f"engine said 400: {of_vllm(ALL)}"}, Support.ACTS),  # wrapped
    ],
)
def test_support(status: int, body: Any, expected: Support):
    client, requests = asked(status, body)
    assert probe(client, "m") is expected
    (request,) = requests
    assert (request["path"], request["model"]) == ("/v1/completions", "m")
    assert (request["max_tokens"], request.get("stream")) == (1, None)


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize(
    ("by_schema", "expected"),
    [
        ((200, COMPLETION), Support.IGNORED),
        ((400, of_vllm("no such format")), Support.IGNORED),
        ((400, of_sglang(ALL)), Support.LOST),
        ((400, of_sglang(of_release(KINDS[0]))), Support.LOST),
    ],
)
def test_another_carrier_is_tried(
    by_schema: tuple[int, Any], expected: Support, chat: bool, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("WARNING", "logitport")
    client, requests = asked(200, COMPLETION, by_schema)
    assert probe(client, "m", "sglang", chat=chat) is expected
    first, second = requests
    path = "/v1/chat/completions" if chat else "/v1/completions"
    assert (first["path"], second["path"]) == (path, path)
    schema = second["response_format"]["json_schema"]["schema"]
    assert schema["x-logitport"] == first["custom_params"]["logitport"] == module._PAYLOAD
    assert "custom_params" not in second
    named = "`custom_params.logitport` is lost on the way" in caplog.text
    assert named is (expected is Support.LOST)


REPEATED = f"Unknown field vllm_xargs: {json.dumps({KEY: module._PAYLOAD})}"


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
    client, requests = asked(status, body)
    with pytest.raises(error):
        probe(client, "m")
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
        decode(module._PAYLOAD)
    assert f"logitport: {error.value}" == ALL
    with pytest.raises(SpecError) as error:
        decode({"version": VERSION + 1})
    assert module._VERSION.search(f"logitport: {error.value}")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_middleware_answers_as_the_engine_does(engine: str):
    """Where it is in place, it comes before; also where the engine itself would say nothing."""
    client, requests = asked(200, COMPLETION)
    probe(client, "m", engine)
    for request in requests:
        path, body = request.pop("path"), json.dumps(request).encode()
        with pytest.raises(SpecError) as error:
            SpecMiddleware(lambda *_: None, engine).check({"path": path}, body)  # pyright: ignore
        assert f"{KEY}: {error.value}" == ALL


@pytest.mark.parametrize("engine", ["transformers", "mlx", "nobody"])
def test_engines_without_a_server(engine: str):
    client, requests = asked(200, COMPLETION)
    with pytest.raises(SpecError, match=f"{engine}"):
        probe(client, "m", engine)
    assert not requests
