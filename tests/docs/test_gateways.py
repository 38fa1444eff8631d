"""The gateways of ``examples/gateways``: what reaches the server behind them."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from logitport.adapters.gateway.receipt import digest_of

BAN = {"kind": "banned_text", "texts": ["Globex", "Initech"], "ignore_case": True}
CHOICE = {"kind": "choice", "texts": ["yes", "no"]}
PRESET = {"kind": "plugin", "name": "yes-no"}
BIAS = {"kind": "prompt_bias", "bias": -1}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def receipt_of(payload: str) -> str:
    return json.dumps({"kinds": ["choice"], "digest": digest_of(payload), "stage": "agg"})


def specs_of(body: Any) -> Any:
    payload = body.get("vllm_xargs", {}).get("logitport")
    return payload and json.loads(payload)["specs"]


@pytest.mark.needs("fastapi")
@pytest.mark.parametrize(
    ("key", "payload", "expected"),
    [
        ("sk-acme", None, [BAN]),
        ("sk-acme", [PRESET], [BAN, CHOICE]),
        ("sk-acme", [BIAS], "does not admit `prompt_bias`"),
        ("sk-globex", None, None),
        ("sk-globex", [BIAS], [BIAS]),
        ("sk-another", None, "names no tenant"),
    ],
)
def test_fastapi(key: str, payload: Any, expected: Any):
    from fastapi.testclient import TestClient

    from examples.gateways.fastapi_app import gateway

    def server(request: httpx.Request) -> httpx.Response:
        payload = json.loads(request.content).get("vllm_xargs", {}).get("logitport")
        headers = {"x-internal": "1"} | ({"x-logitport": receipt_of(payload)} if payload else {})
        return httpx.Response(200, content=request.content, headers=headers)

    client = TestClient(gateway("http://server", transport=httpx.MockTransport(server)))
    body = CHAT if payload is None else {**CHAT, "vllm_xargs": {"logitport": payload}}
    headers = {"authorization": f"Bearer {key}"}
    reply = client.post("/v1/chat/completions", json=body, headers=headers)
    if isinstance(expected, str):
        assert reply.status_code == 400
        assert expected in reply.json()["error"]["message"]
        return
    assert specs_of(reply.json()) == expected
    assert ("x-logitport" in reply.headers) is (expected is not None)
    assert "x-internal" not in reply.headers


LOST = "`vllm_xargs.logitport` was lost on the way"


# where the receipt is | the fields of the client's payload | of which specs | the status, the error
@pytest.mark.needs("fastapi")
@pytest.mark.parametrize(
    ("where", "fields", "is_stripped", "status", "message"),
    [
        ("header", {"continued": 2, "generation_only": False}, False, 200, None),
        ("body", {}, False, 200, None),
        ("header of a stream", {}, False, 200, None),
        ("nowhere", {}, False, 502, LOST),
        ("stream", {}, False, 502, LOST),
        ("header", {}, True, 502, "for other specs"),
        ("error", {}, False, 503, None),
    ],
)
def test_fastapi_without_a_receipt(
    where: str,
    fields: Any,
    is_stripped: bool,
    status: int,
    message: str | None,
    caplog: pytest.LogCaptureFixture,
):
    from fastapi.testclient import TestClient

    from examples.gateways.fastapi_app import gateway

    def server(request: httpx.Request) -> httpx.Response:
        payload = json.loads(request.content)["vllm_xargs"]["logitport"]
        made = receipt_of(json.dumps([CHOICE]) if is_stripped else payload)
        headers = {"x-logitport": made} if "header" in where else {}
        if "stream" in where:
            return httpx.Response(
                200, text="data: {}\n\n", headers={**headers, "content-type": "text/event-stream"}
            )
        content = {"logitport": json.loads(made)} if where == "body" else {"id": "a"}
        return httpx.Response(503 if where == "error" else 200, json=content, headers=headers)

    client = TestClient(gateway("http://server", transport=httpx.MockTransport(server)))
    payload = {"version": 1, "specs": [CHOICE], **fields}
    body = {**CHAT, "vllm_xargs": {"logitport": payload}}
    headers = {"authorization": "Bearer sk-acme"}
    reply = client.post("/v1/chat/completions", json=body, headers=headers)
    assert reply.status_code == status
    assert ("No receipt" in caplog.text) is (message is not None)
    if message is not None:
        assert message in reply.json()["error"]["message"]
        assert message in caplog.text


@pytest.mark.needs("litellm")
@pytest.mark.parametrize(
    ("team", "call", "fields", "expected"),
    [
        ("acme", "acompletion", {}, [BAN]),
        ("acme", "acompletion", {"vllm_xargs": {"logitport": [CHOICE]}}, [CHOICE, BAN]),
        ("globex", "acompletion", {"vllm_xargs": {"logitport": [CHOICE]}}, [CHOICE]),
        ("globex", "aresponses", {}, None),
        ("acme", "aembedding", {}, None),
        ("acme", "aresponses", {}, 400),
        ("acme", "acompletion", {"vllm_xargs": {"logitport": [{"kind": "x"}]}}, 400),
        ("acme", "acompletion", {"extra_body": {"vllm_xargs": {}}}, 400),
        ("acme", "acompletion", {"additional_drop_params": ["vllm_xargs"]}, 400),
        ("another", "acompletion", {}, 403),
        (None, "acompletion", {}, 403),
    ],
)
def test_litellm(team: str | None, call: str, fields: Any, expected: Any):
    from fastapi import HTTPException

    from examples.gateways.litellm_hook import hook

    data = {**CHAT, **fields, "litellm_logging_obj": object()}
    key = SimpleNamespace(team_id=team)
    asked = hook.async_pre_call_hook(key, None, dict(data), call)
    if isinstance(expected, int):
        with pytest.raises(HTTPException) as error:
            asyncio.run(asked)
        assert error.value.status_code == expected
        return
    made = asyncio.run(asked)
    assert made["litellm_logging_obj"] is data["litellm_logging_obj"]
    assert specs_of(made) == expected


@pytest.mark.needs("envoy_data_plane")
@pytest.mark.parametrize(
    ("path", "tenant", "payload", "expected"),
    [
        ("/v1/chat/completions?a=1", "acme", None, [BAN]),
        ("/v1/chat/%63ompletions", "acme", [PRESET], [BAN, CHOICE]),
        ("/v1/chat/completions", "globex", [BIAS], [BIAS]),
        ("/v1/chat/completions", "acme", [BIAS], "does not admit `prompt_bias`"),
        ("/v1/chat/completions", None, None, "names no tenant"),
    ],
)
def test_envoy(path: str, tenant: str | None, payload: Any, expected: Any):
    from envoy_data_plane.envoy.config.core.v3 import HeaderMap, HeaderValue
    from envoy_data_plane.envoy.service.ext_proc import v3
    from grpclib.testing import ChannelFor

    from examples.gateways.envoy_ext_proc import Processor

    pairs = {":path": path, **({"x-tenant": tenant} if tenant else {})}
    headers = HeaderMap([HeaderValue(key, raw_value=pairs[key].encode()) for key in pairs])
    body = CHAT if payload is None else {**CHAT, "vllm_xargs": {"logitport": payload}}
    messages = [
        v3.ProcessingRequest(request_headers=v3.HttpHeaders(headers)),
        v3.ProcessingRequest(request_body=v3.HttpBody(json.dumps(body).encode())),
    ]

    async def ask() -> list[Any]:
        async with ChannelFor([Processor()]) as channel:
            stub = v3.ExternalProcessorAsyncStub(channel)
            return [each async for each in stub.process(messages)]

    of_headers, of_body = asyncio.run(ask())
    assert of_headers.request_headers is not None
    if isinstance(expected, str):
        assert of_body.immediate_response.status.code == 400
        message = json.loads(of_body.immediate_response.body)["error"]["message"]
        assert message.startswith("logitport: ")
        assert expected in message
        (header,) = of_body.immediate_response.headers.set_headers
        assert (header.header.key, header.header.raw_value) == ("content-type", b"application/json")
    else:
        assert specs_of(json.loads(of_body.request_body.response.body_mutation.body)) == expected
