"""A processor for Envoy's ``ext_proc`` filter: requests are checked and filled in as by a gateway.

``python -m examples.gateways.envoy_ext_proc``, with ``envoy-data-plane``. The filter needs
``processing_mode: {request_header_mode: SEND, request_body_mode: BUFFERED}``, and no
``failure_mode_allow``, with which requests would pass unchecked while this is down.
"""

# pyright: reportMissingImports=false
import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from envoy_data_plane.envoy.config.core.v3 import HeaderValue, HeaderValueOption
from envoy_data_plane.envoy.service.ext_proc import v3
from envoy_data_plane.envoy.type.v3 import HttpStatus, StatusCode
from grpclib.server import Server
from logitport.adapters import SpecMiddleware
from logitport.spec import SpecError

TENANTS = {"acme": str(Path(__file__).parent / "acme.yaml"), "globex": {}}


class Processor(v3.ExternalProcessorBase):
    """Checks and fills in the requests of Envoy, by the header ``x-tenant``, which Envoy sets."""

    def __init__(self) -> None:
        self._middleware = SpecMiddleware(_no_app, engine="vllm", tenants=TENANTS)

    async def process(
        self, messages: AsyncIterator[v3.ProcessingRequest]
    ) -> AsyncIterator[v3.ProcessingResponse]:
        """Answer the messages about one request: its headers, then its whole body."""
        scope: dict[str, Any] = {}
        async for message in messages:
            if (headers := message.request_headers) is not None:
                found = headers.headers.headers if headers.headers else []
                pairs = [
                    (each.key.encode(), each.raw_value or each.value.encode()) for each in found
                ]
                path = dict(pairs).get(b":path", b"").decode("latin-1").partition("?")[0]
                scope = {"type": "http", "path": unquote(path), "headers": pairs}
                yield v3.ProcessingResponse(request_headers=v3.HeadersResponse(v3.CommonResponse()))
            elif message.request_body is not None:
                yield await asyncio.to_thread(self._body, scope, message.request_body.body)

    def _body(self, scope: dict[str, Any], body: bytes) -> v3.ProcessingResponse:
        try:
            body = self._middleware.check(scope, body).body
        except SpecError as error:
            made = self._middleware.error(scope["path"], f"logitport: {error}")
            status, content = HttpStatus(StatusCode(400)), json.dumps(made).encode()
            json_type = HeaderValue("content-type", raw_value=b"application/json")
            headers = v3.HeaderMutation([HeaderValueOption(json_type)])
            return v3.ProcessingResponse(
                immediate_response=v3.ImmediateResponse(status, headers, content)
            )
        changed = v3.CommonResponse(body_mutation=v3.BodyMutation(body=body))
        return v3.ProcessingResponse(request_body=v3.BodyResponse(changed))


async def _no_app(*_: Any) -> None:
    """Stand for the application, which is behind Envoy."""


async def main() -> None:
    """Serve until the process ends."""
    server = Server([Processor()])
    await server.start("127.0.0.1", 9002)
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(main())
