"""A gateway on FastAPI: an API key names the tenant, whose configuration acts in its requests.

In the repository: ``SERVER=http://localhost:8000 uvicorn --lifespan on
examples.gateways.fastapi_app:app``. A reply without a receipt of all specs that were sent becomes
HTTP 502: something on the way to the server, which may be another gateway, has dropped them.
"""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from logitport.adapters import ReceiptError, SpecMiddleware, receipt
from starlette.background import BackgroundTask

logger = logging.getLogger(__name__)

ACME = Path(__file__).parent / "acme.yaml"
KEYS = {"sk-acme": "acme", "sk-globex": "globex"}
TENANTS: dict[str, Any] = {"acme": str(ACME), "globex": {}}
RETURNED = "content-type", "x-logitport"
"""The headers of an answer that the client gets: the second one has the receipt."""
SETTINGS = "generation_only", "continued"
"""The fields of a payload besides its specs."""


def why_unproven(body: bytes, reply: httpx.Response) -> str | None:
    """Return why a reply does not prove that the specs of its request acted; ``None`` if it does.

    Args:
        body: the request as it was sent, with the payload that the middleware has put into it.
        reply: the reply, read or not: a stream has the receipt in its headers.
    """
    text = (json.loads(body).get("vllm_xargs") or {}).get("logitport")
    if text is None or reply.status_code != 200:
        return None
    payload = json.loads(text)
    settings = {name: payload[name] for name in SETTINGS if name in payload}
    try:
        receipt(reply, payload["specs"], **settings)
    except ReceiptError as error:
        return str(error)
    return None


def gateway(
    server: str,
    keys: Mapping[str, str] = KEYS,
    tenants: Mapping[str, Any] = TENANTS,
    transport: httpx.AsyncBaseTransport | None = None,
) -> FastAPI:
    """Make the application.

    Args:
        server: the URL of a server of vLLM, without ``/v1``.
        keys: the tenant of each API key. A request with another key is refused.
        tenants: the configuration of each tenant.
        transport: what sends the requests to the server.
    """
    app, client = FastAPI(), httpx.AsyncClient(base_url=server, transport=transport, timeout=300)

    def tenant_of(scope: Any) -> str | None:
        key = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        return keys.get(key.removeprefix("Bearer "))

    app.add_middleware(SpecMiddleware, engine="vllm", tenants=tenants, tenant=tenant_of)

    @app.post("/v1/completions")
    @app.post("/v1/chat/completions")
    async def pass_on(request: Request) -> Response:
        body, headers = await request.body(), {"content-type": "application/json"}
        sent = client.build_request("POST", request.url.path, content=body, headers=headers)
        reply = await client.send(sent, stream=True)
        if reply.headers.get("content-type", "").startswith("application/json"):
            await reply.aread()
        if why := why_unproven(body, reply):
            await reply.aclose()
            logger.error("No receipt of a tenant's specs: %s", why)
            return JSONResponse({"error": {"message": f"logitport: {why}", "code": 502}}, 502)
        returned = {name: reply.headers[name] for name in RETURNED if name in reply.headers}
        close = BackgroundTask(reply.aclose)
        return StreamingResponse(reply.aiter_bytes(), reply.status_code, returned, background=close)

    return app


app = gateway(os.environ.get("SERVER", "http://localhost:8000"))
