"""An engine's OpenAI server as a context manager that always cleans up after itself."""

import atexit
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import httpx
import psutil
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from .ending import CannotRunError

HOST = "127.0.0.1"

START_TIMEOUT_S = 600
TERM_TIMEOUT_S = 5  # an engine that is starting does not listen; one that serves needs 1
KILL_TIMEOUT_S = 60

console = Console(stderr=True)
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


class Server:
    """An engine's server on a free loopback port, in its own process session.

    The server ends with the ``with`` block, or at the latest with this Python process. If this
    process is killed, or the thread that started the server ends, Linux ends a server that answers
    already. A server whose engine is just starting may be left.

    Attributes:
        model: folder of the checkpoint; its name is the served model's name, ``model_name``.
        log: file with the output of the server.
        port: 0 before the first start, then the same at each start.
        process: the process of the latest start, or ``None`` before any.
        engine: the engine's name, set by a subclass.
        arguments: the Python module to run and its first arguments, set by a subclass.
        model_argument: the engine's option for the model.
        environment: variables that the caller's environment may override.
    """

    engine: ClassVar[str]
    arguments: ClassVar[Sequence[str]]
    environment: ClassVar[Mapping[str, str]]
    model_argument: ClassVar[str] = "--model"

    def __init__(
        self,
        model: Path,
        *args: str,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
        timeout_s: float = START_TIMEOUT_S,
        python: str | Path = sys.executable,
    ):
        """Prepare a server without starting it.

        Args:
            model: folder of the checkpoint.
            args: more arguments for the server; later arguments win.
            env: more environment variables; they override the variables of this process.
            log: file for the output of the server, overwritten; a temporary file by default.
            timeout_s: seconds that the server may take to start.
            python: the Python of the engine's environment; by default, this process's Python.
        """
        self.model = model
        self.model_name = model.name
        self.port = 0
        self.process: psutil.Popen | None = None
        if log is None:
            handle, name = tempfile.mkstemp(prefix=f"{self.engine.lower()}-server-", suffix=".log")
            os.close(handle)
            log = Path(name)
        self.log = log
        self._args = args
        self._env = {**self.environment, **os.environ, **(env or {})}
        self._timeout_s = timeout_s
        self._python = str(python)
        self._running = False

    @property
    def base_url(self) -> str:
        """The URL of the OpenAI API."""
        return f"http://{HOST}:{self.port}/v1"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it answers; if it fails, leave no process behind.

        Raises:
            CannotRunError: if it ends early or does not answer in time; the last lines of its log
                are the error's note.
            RuntimeError: if it runs already.
        """
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start the server without waiting for it, so that several can start at once.

        Raises:
            RuntimeError: if it runs already.
        """
        if self._running:
            raise RuntimeError(f"The server runs already, at {self.base_url}")
        self.port = self.port or free_port()
        command = self._command()
        atexit.register(self.stop)
        try:
            self._running = True
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("wb") as log:
                self.process = psutil.Popen(
                    command,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
        except BaseException:  # Ctrl-C too
            self.stop()
            raise

    def _command(self) -> list[str]:
        command = [self._python, "-m", *self.arguments, "--host", HOST, "--port", str(self.port)]
        command += [self.model_argument, str(self.model)]
        return [*command, "--served-model-name", self.model_name, *self._args]

    def wait(self) -> None:
        """Wait until the launched server answers; if it fails, leave no process behind.

        Raises:
            CannotRunError: if it ends early or does not answer in time; the last lines of its log
                are the error's note.
        """
        if self.process is None:
            raise RuntimeError("The server has not been launched")
        try:
            self._wait_until_healthy(self.process)
        except BaseException:  # Ctrl-C too
            self.stop()
            raise

    def stop(self) -> None:
        """End the server with all its processes. This is safe in every state, and more than once.

        Raises:
            RuntimeError: if a process survives or the port is still in use.
        """
        if not self._running:
            return
        with _signals_ignored():  # a second Ctrl-C leaves nothing behind
            left: set[psutil.Process] = set()
            for number, patience_s in (
                (signal.SIGTERM, TERM_TIMEOUT_S),
                (signal.SIGKILL, KILL_TIMEOUT_S),
            ):
                left |= self._processes()
                for process in left:
                    with suppress(psutil.NoSuchProcess):
                        process.send_signal(number)
                left = _wait(left, patience_s)
            if self.process is not None:
                self.process.poll()  # reaps it
            atexit.unregister(self.stop)
            self._running = False
            if left or not _closes(self.port, KILL_TIMEOUT_S):
                raise RuntimeError(f"Left behind: {left or 'no process'}, port {self.port}")

    def _processes(self) -> set[psutil.Process]:
        """Find the processes of the server's session, and their children in any session."""
        if self.process is None:
            return set()
        found: set[psutil.Process] = set()
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
                if os.getsid(process.pid) == self.process.pid:
                    found |= {process, *process.children(recursive=True)}
        return {process for process in found if _lives(process)}

    def _wait_until_healthy(self, process: psutil.Popen) -> None:
        began = time.monotonic()
        said = began
        with (
            httpx.Client(trust_env=False, timeout=5) as client,  # no proxy to the loopback
            Progress(
                SpinnerColumn(),
                TextColumn(self.engine + " is starting, port {task.fields[port]}"),
                TimeElapsedColumn(),
                console=console,
                transient=True,
                disable=not console.is_terminal,
            ) as progress,
        ):
            progress.add_task("", total=None, port=self.port)
            while True:
                if (status := process.poll()) is not None:
                    raise failed_start(f"{self.engine} ended with status {status}", self.log)
                with suppress(httpx.TransportError):
                    if client.get(f"http://{HOST}:{self.port}/health").is_success:
                        return
                now = time.monotonic()
                if now - began > self._timeout_s:
                    what = f"{self.engine} did not answer within {self._timeout_s:g} s"
                    raise failed_start(what, self.log)
                if not console.is_terminal and now - said >= 10:
                    said = now
                    console.print(
                        f"{self.engine} is starting, port {self.port}: {now - began:.0f} s"
                    )
                time.sleep(0.25)


def failed_start(what: str, log: Path, lines: int = 30) -> CannotRunError:
    """Make the error for a process that did not start, with the end of its log as a note."""
    error = CannotRunError(f"{what} when it was started: its output, with the reason, is in {log}")
    error.add_note("\n".join(log.read_text(errors="replace").splitlines()[-lines:]))
    return error


def _end_with_parent() -> None:
    """Ask, in the new process, for SIGTERM when the parent ends, for example when it is killed.

    SIGKILL would end the server alone, and leave its engine behind.
    """
    if _prctl is not None:
        pr_set_pdeathsig = 1
        _prctl(pr_set_pdeathsig, signal.SIGTERM)


def free_port() -> int:
    """Find a free loopback port."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return listener.getsockname()[1]


def _is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((HOST, port)) == 0


def _closes(port: int, timeout_s: float) -> bool:
    """Wait until nothing listens: threads of a dead process may take a moment to end."""
    deadline = time.monotonic() + timeout_s
    while (is_open := _is_open(port)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not is_open


def _lives(process: psutil.Process) -> bool:
    """Whether a process lives. A zombie does not: it may wait for an init that never reaps."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait(processes: set[psutil.Process], timeout_s: float) -> set[psutil.Process]:
    """Wait for processes to end; return the processes that still live after the timeout."""
    deadline = time.monotonic() + timeout_s
    while (left := {process for process in processes if _lives(process)}) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.1)
    return left


@contextmanager
def _signals_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals in the main thread
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
