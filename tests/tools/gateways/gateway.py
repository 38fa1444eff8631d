"""Gateways as processes before servers. They are installed in an environment of their own."""

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import httpx
import psutil

from examples._support.server import HOST, Server, failed_start, free_port

from .asks import PROMPT

FOLDER = Path(__file__).parents[3] / ".venv-gateways"
PYTHON = FOLDER / "bin" / "python"
"""Made by ``make test-gateways``."""


Command = Callable[[int, Sequence[str], str], list[str]]
"""Makes the command line from the port, the servers' URLs without ``/v1``, and the model's name."""


class Gateway(Server):
    """A gateway before one server, or before a prefill and a decode server.

    Args:
        name: a key of ``GATEWAYS`` or ``OTHERS``.
        urls: of the server, or of both, without ``/v1``.
        model_name: of the served model.
    """

    environment: ClassVar[dict[str, str]] = {}

    def __init__(self, name: str, urls: Sequence[str], model_name: str) -> None:
        self.engine = name  # read by the base class, for its messages
        super().__init__(Path(model_name), timeout_s=300)
        self._urls = urls
        self.headers = HEADERS.get(name, lambda url: {})(urls[-1])

    def _command(self) -> list[str]:
        return (GATEWAYS | OTHERS)[self.engine](self.port, self._urls, self.model_name)

    def _wait_until_healthy(self, process: psutil.Popen) -> None:
        """Wait until a request gets through: a gateway may be healthy before it has servers."""
        asked = {"model": self.model_name, "prompt": PROMPT, "max_tokens": 1}
        deadline = time.monotonic() + self._timeout_s
        with httpx.Client(trust_env=False, timeout=300, headers=self.headers) as client:
            while time.monotonic() < deadline and process.poll() is None:
                with suppress(httpx.TransportError):
                    if client.post(f"{self.base_url}/completions", json=asked).is_success:
                        return
                time.sleep(0.2)
        raise failed_start(self.engine, self.log)


def _router(module: str, pair: str, *more: str) -> Command:
    """Make the command of a router.

    The console commands ``smg`` and ``sglang-router`` overwrite each other, so modules are run.
    """

    def command(port: int, urls: Sequence[str], model_name: str) -> list[str]:
        servers = ["--worker-urls", *urls]
        if len(urls) > 1:
            prefill, decode = urls
            servers = [pair, "--prefill", prefill, "--decode", decode]
        own = [str(PYTHON), "-m", *module.split(), "--host", HOST, "--port", str(port)]
        return [*own, "--prometheus-port", str(free_port()), *more, *servers]

    return command


def _litellm(port: int, urls: Sequence[str], model_name: str) -> list[str]:
    parameters = {"model": f"hosted_vllm/{model_name}", "api_base": f"{urls[0]}/v1"}
    config = {
        "model_list": [{"model_name": model_name, "litellm_params": parameters}],
        "general_settings": {"master_key": KEY},
    }
    file = Path(tempfile.mkdtemp(prefix="litellm-")) / "config.yaml"
    file.write_text(json.dumps(config))
    return [str(LITELLM), "--config", str(file), "--host", HOST, "--port", str(port)]


def _portkey(port: int, urls: Sequence[str], model_name: str) -> list[str]:
    return ["node", str(PORTKEY), "--headless", f"--port={port}"]


KEY = "sk-of-a-test-on-loopback-0123456789abcdef"
LITELLM = FOLDER / "litellm" / "bin" / "litellm"
PORTKEY = FOLDER / "portkey/node_modules/@portkey-ai/gateway/build/start-server.js"

GATEWAYS = {
    "vllm-router": _router("vllm_router.launch_router", "--vllm-pd-disaggregation"),
    "smg": _router("smg launch", "--pd-disaggregation", "--shutdown-grace-period-secs", "1"),
    "sglang-router": _router("sglang_router launch", "--pd-disaggregation"),
}
"""The gateways of the tests."""

OTHERS = {"litellm": _litellm, "portkey": _portkey}
"""Gateways that take long to install: ``make gateways-others``."""

HEADERS: dict[str, Callable[[str], dict[str, str]]] = {
    "litellm": lambda url: {"authorization": f"Bearer {KEY}"},
    "portkey": lambda url: {
        "x-portkey-provider": "openai",
        "x-portkey-custom-host": f"{url}/v1",
        "authorization": "Bearer -",
    },
}
"""Of a client's requests, by the URL of the server."""
