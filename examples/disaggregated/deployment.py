"""A prefill server and a decode server behind a proxy."""

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from .._support.server import HOST, free_port
from .._support.serving import serving
from .._support.vllm_server import LOGITPORT, VllmServer
from .proxy import proxy

_HAS_GPU = shutil.which("nvidia-smi") is not None

ARGUMENTS = (
    *LOGITPORT,
    # Transferred KV and computed KV differ in rounding. The rounding must not decide between two
    # tokens when outputs are compared.
    *("--dtype", "float32"),
    *("--block-size", "32"),  # tokens; whole blocks of the prompt are handed over
    "--no-enable-prefix-caching",  # a repeated prompt is handed over again
    # Two servers share one GPU. On a CPU, VLLM_CPU_KVCACHE_SPACE sets the size of the KV cache.
    *(("--gpu-memory-utilization", "0.4") if _HAS_GPU else ()),
)
"""The arguments of both servers."""


class Connector(StrEnum):
    """How the KV cache gets from one server to the other."""

    EXAMPLE = "example"
    """vLLM's ``ExampleConnector``, through files. The server with role ``kv_producer`` prefills."""
    NIXL = "nixl"
    """vLLM's ``NixlConnector``, from memory to memory. Both servers have the role ``kv_both``, and
    a field of the request marks it for prefill."""


class Deployment:
    """Two servers on free loopback ports, until the ``with`` block ends.

    Attributes:
        prefill, decode: the servers.
    """

    def __init__(
        self,
        model: Path,
        *,
        connector: Connector = Connector.EXAMPLE,
        env: Mapping[str, str] | None = None,
        logs: Path | None = None,
        python: str | Path = sys.executable,
    ):
        """Prepare the servers without starting them.

        Args:
            model: folder of the checkpoint.
            connector: the KV connector between the servers.
            env: more environment variables for the servers.
            logs: folder for the servers' output; temporary files by default.
            python: the Python of vLLM's environment.
        """
        self._connector = connector
        self._running = ExitStack()
        self._folder = tempfile.TemporaryDirectory(prefix="logitport-kv-")
        self.prefill, self.decode = (
            VllmServer(
                model,
                *ARGUMENTS,
                *("--kv-transfer-config", self._transfer(role)),
                env=self._environment() | dict(env or {}),
                log=logs and logs / f"{name}.log",
                python=python,
            )
            for name, role in (("prefill", "kv_producer"), ("decode", "kv_consumer"))
        )

    def __enter__(self) -> Self:
        with ExitStack() as started:  # stops the servers if one of them fails
            started.enter_context(self._folder)
            for server in (self.prefill, self.decode):
                started.callback(server.stop)
                server.launch()
            for server in (self.prefill, self.decode):
                server.wait()
            self._running = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @contextmanager
    def proxy(self, *, copies_specs: bool) -> Iterator[str]:
        """Run a proxy in front of the servers and yield the URL of its OpenAI API.

        Args:
            copies_specs: whether the proxy also sends specs to the prefill server.
        """
        application = proxy(
            f"http://{HOST}:{self.prefill.port}",
            f"http://{HOST}:{self.decode.port}",
            copies_specs=copies_specs,
            hands_over=self._connector is Connector.NIXL,
        )
        with serving(application) as url:
            yield f"{url}/v1"

    def _transfer(self, role: str) -> str:
        config: dict[str, Any] = {
            Connector.EXAMPLE: {
                "kv_connector": "ExampleConnector",
                "kv_role": role,
                "kv_connector_extra_config": {"shared_storage_path": self._folder.name},
            },
            Connector.NIXL: {
                "kv_connector": "NixlConnector",
                "kv_role": "kv_both",
                "kv_buffer_device": "cuda" if _HAS_GPU else "cpu",
            },
        }[self._connector]
        return msgspec.json.encode(config).decode()

    def _environment(self) -> dict[str, str]:
        # CPU builds would bind the threads of both servers to the same cores.
        environment = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        if self._connector is Connector.NIXL:
            environment |= {
                "VLLM_NIXL_SIDE_CHANNEL_HOST": HOST,
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
            }
            if not _HAS_GPU:
                environment |= {"UCX_TLS": "tcp,shm,self", "UCX_NET_DEVICES": "lo"}
        return environment


def counted(server: VllmServer, name: str, label: str) -> dict[str, int]:
    """Read a counter from a server's ``/metrics``.

    Args:
        server: a running server.
        name: name of the counter, without ``_total``.
        label: the label whose values are the keys of the result.
    """
    text = httpx.get(f"http://{HOST}:{server.port}/metrics", timeout=60, trust_env=False).text
    return {
        sample.labels[label]: round(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"{name}_total"
    }
