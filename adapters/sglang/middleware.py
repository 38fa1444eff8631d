"""Middleware for SGLang's own server, with access to the engine behind it."""

import os
from typing import Any

from sglang.srt.entrypoints import http_server
from starlette.middleware import Middleware

from ...spec import Payload, SpecError, Stage
from .. import App, Backend, Fields, Scope
from .. import SpecMiddleware as NeutralMiddleware
from .admission import REFUSED, Admission, admission_of, admits_others, is_refused
from .backend import ROUTES
from .worker import stage


class SpecMiddleware(NeutralMiddleware):
    """Middleware that refuses bad specs on every route of SGLang's server, streamed or not.

    It makes all checks of ``Admission`` before the answer begins. SGLang itself begins the answer
    of a streamed ``/generate`` before it validates the request, and other routes drop the payload.
    """

    names = NeutralMiddleware.names | {"custom_logit_processor"}

    def __init__(self, app: App) -> None:
        super().__init__(app, "sglang", is_server=True)
        self.routes = _routes()

    def check_container(self, path: str, container: Fields) -> None:
        if admits_others():
            return
        given = container.get("custom_logit_processor")
        for each in given if isinstance(given, list) else (given,):
            if is_refused(each):
                raise SpecError.of_field(REFUSED, f"{path}.custom_logit_processor".lstrip("."))

    def backend(self, scope: Scope) -> Backend:
        return _admission().backend

    def check_payload(
        self, scope: Scope, fields: Fields, owner: Fields, payload: Any
    ) -> Payload | None:
        return _admission().decide(payload, owner, fields.get("input_embeds") is None)

    def may_lose(self, scope: Scope, payload: str) -> tuple[str, ...]:
        return _admission().may_lose(payload)

    def stage(self, scope: Scope) -> Stage:
        return stage()

    def error(self, path: str, message: str, status: int = 400) -> dict[str, Any]:
        if path.endswith(("/v1/responses", "/v1/messages")):
            return super().error(path, message, status)
        if "/v1/" in path or path.endswith("/invocations"):
            return {"object": "error", **super().error("", message, status)["error"]}
        return {"error": {"message": message}}


def _admission() -> Admission:
    manager: Any = http_server.get_global_state().tokenizer_manager
    return admission_of(manager)


def _routes() -> dict[str, str | None]:
    """Return the routes; environment variables can rename two of them (``http_server.py``)."""
    ollama = os.environ.get("SGLANG_OLLAMA_GENERATE_ROUTE")
    vertex = os.environ.get("AIP_PREDICT_ROUTE")
    own = {} if vertex is None else {vertex: ROUTES["/vertex_generate"]}
    return ROUTES | own | ({} if ollama is None else {ollama: None})


def install() -> None:
    """Put the middleware into SGLang's application, next to its routes, if it is not there yet.

    The application's own middlewares come first: they authenticate, decompress and count.
    """
    installed = http_server.app.user_middleware
    if all(each.cls is not SpecMiddleware for each in installed):
        installed.append(Middleware(SpecMiddleware))
