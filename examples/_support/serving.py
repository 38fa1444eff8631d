"""An ASGI application as a server on loopback, in a thread of this process."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from .server import HOST


@contextmanager
def serving(application: Any) -> Iterator[str]:
    """Serve an ASGI application on a free loopback port; yield its URL, without ``/v1``."""
    config = uvicorn.Config(application, log_level="error", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield f"http://{HOST}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
