"""What Ray Serve's HTTP proxy loads, named by ``RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH``."""

from logitport.adapters import SpecMiddleware
from starlette.middleware import Middleware


def middlewares() -> list[Middleware]:
    """Return the middlewares of the proxy."""
    return [Middleware(SpecMiddleware, engine="vllm", is_server=True)]
