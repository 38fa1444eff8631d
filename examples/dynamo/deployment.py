"""Dynamo's frontend and its workers, with service discovery through a folder."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from .._support.server import failed_start

HOST, PORT = "127.0.0.1", 8000
FRONTEND = f"http://{HOST}:{PORT}"
SIDE_CHANNEL_PORT = 5600  # of the first worker; later workers count up from it
METRICS_PORT = 9090

PLANES = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")
"""Planes that need neither etcd nor NATS."""

ENGINE = (
    *("--logits-processors", "logitport.adapters.vllm:LogitportProcessor"),
    *("--max-model-len", "1024", "--enforce-eager"),
    # In bfloat16, CPU builds of vLLM give different outputs on different CPUs.
    *("--dtype", "float32"),
)

KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; read by CPU builds alone
    # One thread, on any core: otherwise engines that share cores wait for each other so long that
    # Dynamo considers their workers dead (the leases of file discovery last 10 seconds).
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "UCX_TLS": "tcp,shm,self",  # the transports of NIXL
    "UCX_NET_DEVICES": "lo",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": HOST,
    "DYN_SYSTEM_HOST": HOST,
    "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "0",
    "DYN_PREFILL_DRAIN_TIMEOUT_S": "1",
}

START_TIMEOUT_S = 600
STOP_TIMEOUT_S = 12


class Deployment:
    """A frontend, and one worker for each of ``modes``.

    Dynamo's event sockets listen on all interfaces: run this in a separate network namespace.

    Attributes:
        model_name: the model's name in requests.
        modes: the modes of the workers.
        logs: folder with the output of each process.
    """

    def __init__(
        self, model: Path, modes: Sequence[str], *, env: Mapping[str, str], logs: Path
    ) -> None:
        """Prepare a deployment without starting it.

        Args:
            model: folder of the checkpoint.
            modes: values of ``DisaggregationMode``: ``["agg"]``, or ``["prefill", "decode"]``.
            env: more environment variables, for all processes.
            logs: folder for the output of all processes.
        """
        self.model_name = model.name
        self.logs = logs
        self._model = model
        self.modes = modes
        self._env = ENVIRONMENT | os.environ | dict(env)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._running = ExitStack()

    def start(self) -> None:
        """Start all processes, and wait until the model is served.

        Raises:
            CannotRunError: if a process ends early, or the model is not served in time; no process
                is left running then.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dynamo-"))
            self._env["DYN_FILE_KV"] = f"{folder}/discovery"
            stack.callback(self._end_processes)
            address = ("--http-host", HOST, "--http-port", str(PORT))
            home = f"{folder}/home"  # the frontend stores copies of tokenizers there
            self._spawn("frontend", "dynamo.frontend", *address, HOME=home)
            for i, mode in enumerate(self.modes):
                self._spawn(
                    mode,
                    "examples.dynamo.worker",
                    *("--model", str(self._model), "--served-model-name", self.model_name),
                    *("--disaggregation-mode", mode, *kv_transfer(mode), *ENGINE),
                    VLLM_NIXL_SIDE_CHANNEL_PORT=str(SIDE_CHANNEL_PORT + i),
                    DYN_SYSTEM_PORT=str(METRICS_PORT + i),
                )
            self._wait_until_served()
            self._running = stack.pop_all()

    def stop(self) -> None:
        """End all processes. This is safe in every state, and more than once."""
        self._running.close()

    def log(self, name: str) -> Path:
        """Return the log of ``frontend``, or of the worker with the given mode."""
        return self.logs / f"{name}.log"

    def metric(self, mode: str, name: str, **labels: str) -> float:
        """Return the sum of a worker's Prometheus samples; 0 if there are none."""
        url = f"http://{HOST}:{METRICS_PORT + self.modes.index(mode)}/metrics"
        page = httpx.get(url, trust_env=False).raise_for_status().text
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def _spawn(self, name: str, module: str, *arguments: str, **env: str) -> None:
        with self.log(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", module, *PLANES, *arguments],
                env=self._env | env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_until_served(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        with httpx.Client(base_url=FRONTEND, trust_env=False, timeout=5) as client:
            while time.monotonic() < deadline:
                for name, process in self._processes.items():
                    if (status := process.poll()) is not None:
                        what = f"Dynamo's {name} ended with status {status}"
                        raise failed_start(what, self.log(name))
                self._unpin()
                with suppress(httpx.TransportError):
                    models = client.get("/v1/models").json()["data"]
                    instances = client.get("/health").json().get("instances", [])
                    workers = [one for one in instances if one["endpoint"] == "generate"]
                    if models and len(workers) == len(self.modes):
                        return
                time.sleep(0.25)
        what = f"Dynamo did not serve the model within {START_TIMEOUT_S} s"
        raise failed_start(what, self.log(self.modes[-1]))

    def _unpin(self) -> None:
        """Undo vLLM's binding of each process with a NIXL connector to the machine's last core.

        vLLM binds them so on CPUs (``nixl/base_worker.py``), for machines with cores to spare. On a
        small machine both workers would share that core, and an answer would take 20 seconds.
        """
        cores = os.sched_getaffinity(0)
        for worker in self._processes.values():
            with suppress(psutil.NoSuchProcess):
                for process in psutil.Process(worker.pid).children(recursive=True):
                    for thread in process.threads():
                        with suppress(ProcessLookupError):
                            os.sched_setaffinity(thread.id, cores)

    def _end_processes(self) -> None:
        """End the workers, then the frontend; kill any that do not end, with their children."""
        for process in reversed(self._processes.values()):
            process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0, deadline - time.monotonic()))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def kv_transfer(mode: str) -> Sequence[str]:
    """Make the arguments that hand a prompt's KV cache from one vLLM to another over NIXL."""
    if mode not in KV_ROLES:
        return ()
    connector = {
        "kv_connector": "NixlConnector",
        "kv_role": KV_ROLES[mode],
        "kv_buffer_device": "cpu",
    }
    return "--kv-transfer-config", json.dumps(connector)
