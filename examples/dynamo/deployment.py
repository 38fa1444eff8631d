"""Dynamo's frontend and its workers, with service discovery through a folder."""

import json
import os
import shutil
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

from .._support.ending import CannotRunError
from .._support.server import failed_start

HOST, PORT = "127.0.0.1", 8000
FRONTEND = f"http://{HOST}:{PORT}"
SIDE_CHANNEL_PORT = 5600  # of the first worker; later workers count up from it
METRICS_PORT = 9090

PLANES = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")
"""Planes that need neither etcd nor NATS."""

PLANES_OF_SERVERS = (
    *("--discovery-backend", "etcd", "--request-plane", "tcp", "--event-plane", "nats"),
)
SERVERS = {
    "etcd": ("--data-dir", "{folder}/etcd"),
    "nats-server": ("--addr", HOST, "--jetstream", "--store_dir", "{folder}/nats"),
}
"""The servers of a deployment in production, and their arguments; Debian has both."""

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
    "ETCD_LEASE_TTL": "60",
}

START_TIMEOUT_S = 600
STOP_TIMEOUT_S = 12

HELLO = {"role": "user", "content": "Hello."}


class Deployment:
    """A frontend, and one worker for each of ``modes``.

    Dynamo's event sockets listen on all interfaces: run this in a separate network namespace.

    Attributes:
        model_name: the model's name in requests.
        modes: the modes of the workers.
        names: the names of the workers: the mode, with a number if several have it.
        logs: folder with the output of each process.
    """

    def __init__(
        self,
        model: Path,
        modes: Sequence[str],
        *,
        env: Mapping[str, str],
        logs: Path,
        worker: str = "examples.dynamo.worker",
        frontend: Sequence[str] = (),
        servers: bool = False,
        warm: bool = False,
    ) -> None:
        """Prepare a deployment without starting it.

        Args:
            model: folder of the checkpoint.
            modes: values of ``DisaggregationMode``: ``["agg"]``, or ``["prefill", "decode"]``.
            env: more environment variables, for all processes.
            logs: folder for the output of all processes.
            worker: the module of the workers; ``dynamo.vllm`` is Dynamo's own worker.
            frontend: more arguments for the frontend.
            servers: whether the processes find each other through etcd and NATS.
            warm: whether workers start from a process that has imported everything.
        """
        self.model_name = model.name
        self.logs = logs
        self._model = model
        self.modes = modes
        self.names = [
            mode if modes.count(mode) == 1 else f"{mode}-{modes[:i].count(mode)}"
            for i, mode in enumerate(modes)
        ]
        self._module, self._frontend = worker, frontend
        self._planes = PLANES_OF_SERVERS if servers else PLANES
        self._servers = SERVERS if servers else {}
        self._env = ENVIRONMENT | os.environ | dict(env)
        self._processes: dict[str, psutil.Process] = {}
        self._is_warm = warm
        self._warm: psutil.Popen | None = None
        self._running = ExitStack()

    def start(self) -> None:
        """Start all processes, and wait until the model is served.

        Raises:
            CannotRunError: if a process ends early, or the model is not served in time; no process
                is left running then.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        for log in self.logs.glob("*.log"):
            log.unlink()
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dynamo-"))
            self._env["DYN_FILE_KV"] = f"{folder}/discovery"
            stack.callback(self._end_processes)
            for name, arguments in self._servers.items():
                self._spawn(
                    name, [server(name), *(each.format(folder=folder) for each in arguments)]
                )
            address = ("--http-host", HOST, "--http-port", str(PORT))
            home = f"{folder}/home"  # the frontend stores copies of tokenizers there
            frontend = ["-m", "dynamo.frontend", *self._planes, *address, *self._frontend]
            self._spawn("frontend", [sys.executable, *frontend], HOME=home)
            if self._is_warm:
                self._warm = self._start_warm()
            for name in self.names:
                self._spawn_worker(name)
            self._wait_until_served()
            self._running = stack.pop_all()

    def kill(self, name: str) -> None:
        """Kill a worker with SIGKILL, with its engine, in the middle of all that it does."""
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def replace(self, *names: str) -> None:
        """Start killed workers again, and wait until the frontend has all workers.

        Raises:
            CannotRunError: as ``start`` does.
        """
        for name in names:
            self._spawn_worker(name)
        self._wait_until_served()

    def stop(self) -> None:
        """End all processes. This is safe in every state, and more than once."""
        self._running.close()

    def log(self, name: str) -> Path:
        """Return the log of ``frontend``, or of a worker."""
        return self.logs / f"{name}.log"

    def metric(self, worker: str, name: str, **labels: str) -> float:
        """Return the sum of the Prometheus samples of ``frontend`` or a worker; 0 for none."""
        port = PORT if worker == "frontend" else METRICS_PORT + self.names.index(worker)
        url = f"http://{HOST}:{port}/metrics"
        page = httpx.get(url, trust_env=False).raise_for_status().text
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def _spawn_worker(self, name: str) -> None:
        i = self.names.index(name)
        mode = self.modes[i]
        arguments = [
            *("--model", str(self._model), "--served-model-name", self.model_name),
            *("--disaggregation-mode", mode, *kv_transfer(mode), *ENGINE, *self._planes),
        ]
        env = {
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(SIDE_CHANNEL_PORT + i),
            "DYN_SYSTEM_PORT": str(METRICS_PORT + i),
        }
        if self._warm is None:
            self._spawn(name, [sys.executable, "-m", self._module, *arguments], **env)
            return
        order = {"arguments": arguments, "env": env, "log": str(self.log(name))}
        self._warm.stdin.write(f"{json.dumps(order)}\n".encode())
        self._warm.stdin.flush()
        self._processes[name] = psutil.Process(int(self._warm.stdout.readline()))

    def _start_warm(self) -> psutil.Popen:
        """Start the process that forks workers; see ``warm``."""
        self._spawn("warm", [sys.executable, "-m", "examples.dynamo.warm", self._module])
        warm = self._processes.pop("warm")
        assert isinstance(warm, psutil.Popen)
        while (line := warm.stdout.readline()) != b"ready\n":
            if not line:
                raise failed_start("The process that starts workers ended", self.log("warm"))
        return warm

    def _spawn(self, name: str, command: Sequence[str], **env: str) -> None:
        with self.log(name).open("ab") as log:
            piped = name == "warm"
            self._processes[name] = psutil.Popen(
                command,
                env=self._env | env,
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else log,
                stderr=log,
                start_new_session=True,
            )

    def _wait_until_served(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        with httpx.Client(base_url=FRONTEND, trust_env=False, timeout=5) as client:
            while time.monotonic() < deadline:
                for name, process in self._processes.items():
                    if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                        status = process.wait()
                        what = f"Dynamo's {name} ended with status {status}"
                        raise failed_start(what, self.log(name))
                self._unpin()
                with suppress(httpx.TransportError):
                    models = client.get("/v1/models").json()["data"]
                    instances = client.get("/health").json().get("instances", [])
                    workers = [one for one in instances if one["endpoint"] == "generate"]
                    if models and len(workers) == len(self.modes) and self._are_ready():
                        # The frontend may know all workers, and not yet route between them.
                        asked = {"model": self.model_name, "messages": [HELLO], "max_tokens": 1}
                        chat = "/v1/chat/completions"
                        if client.post(chat, json=asked, timeout=60).is_success:
                            return
                time.sleep(0.25)
        what = f"Dynamo did not serve the model within {START_TIMEOUT_S} s"
        raise failed_start(what, self.log(self.names[-1]))

    def _are_ready(self) -> bool:
        """Whether all workers answer, and not some that were killed are still listed."""
        with suppress(httpx.HTTPError), httpx.Client(trust_env=False, timeout=5) as client:
            ports = range(METRICS_PORT, METRICS_PORT + len(self.names))
            pages = [client.get(f"http://{HOST}:{port}/health") for port in ports]
            return all(page.is_success for page in pages)
        return False

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
        if self._warm is not None:
            self._warm.kill()
        for process in reversed(self._processes.values()):
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in self._processes.values():
            with suppress(psutil.TimeoutExpired):
                process.wait(max(0, deadline - time.monotonic()))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def server(name: str) -> str:
    """Find the program of a server.

    Raises:
        CannotRunError: if it is not installed.
    """
    if (program := shutil.which(name)) is None:
        raise CannotRunError(
            f"{name} is not installed: on Debian, it is in etcd-server, nats-server"
        )
    return program


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
