"""The Prometheus counters of decisions on requests, and the log of refusals.

``logitport_requests_total`` has the labels ``decision`` and ``stage``; ``_COUNTERS`` has all. The
gauge ``logitport_policy`` is 1 for the ``digest`` of the server's policy, and
``logitport_last_reload_successful`` is 0 while its file is wrong. They are in the default
registry of ``prometheus_client``. The servers of vLLM and SGLang show this registry at
``/metrics``. Without ``prometheus_client``, nothing is counted.
"""

import logging
from collections import deque
from collections.abc import Sequence
from functools import cache
from time import monotonic
from typing import Any, Literal

from ..spec import SpecError, Stage

logger = logging.getLogger(__name__)

Decision = Literal["attached", "admitted", "refused", "gated", "failed"]


def count(
    decision: Decision,
    stage: Stage,
    amount: float = 1,
    error: SpecError | None = None,
    may_lose: Sequence[str] = (),
) -> None:
    """Count a request. A refusal is logged with its reason; see ``RefusalLog``.

    Args:
        decision: ``attached`` by a client or gateway; ``admitted`` or ``refused`` by an engine;
            ``gated`` if it was sent without specs, or if specs do not act in its engine.
            ``failed`` counts a request again, in the worker that could not realize its specs.
        stage: stage of the worker that the request is meant for or has reached.
        amount: less than 1 where several processors decide alike on the same request.
        error: why the request is refused.
        may_lose: the kinds of an admitted request that its others may override.
    """
    if error is not None:
        _REFUSALS.add(error)
    count_by("requests", amount, decision, stage.value)
    for kind in may_lose:
        count_by("may_lose", amount, kind)


class RefusalLog:
    """The log of refusals: at most ``per_minute`` lines, since a client can cause any number.

    A line says how many had none before it. The counter has them all.
    """

    def __init__(self, per_minute: int = 60) -> None:
        self._times = deque[float](maxlen=per_minute)
        self._without_line = 0

    def add(self, error: SpecError) -> None:
        """Log a refusal, unless the minute has its lines."""
        now = monotonic()
        if len(self._times) == self._times.maxlen and now - self._times[0] < 60:
            self._without_line += 1
            return
        self._times.append(now)
        before, self._without_line = self._without_line, 0
        what = f", and {before} more since the line before" if before else ""
        logger.info("logitport: refused a request%s: %s", what, error)


_REFUSALS = RefusalLog()

_COUNTERS = {
    "requests": (
        "Requests with specs, by what was decided and for which stage: specs attached to a "
        "request, admitted by an engine, refused by it, or gated, by either; failed in a worker. "
        "Refused are also requests whose own fields the server's specs do not admit.",
        ("decision", "stage"),
    ),
    "may_lose": (
        "Requests admitted with a kind that other specs of the request may override.",
        ("kind",),
    ),
    "kinds": (
        "Admitted requests on which a kind acts, be it the client's or the server's.",
        ("kind", "model"),
    ),
    "presets": ("Admitted requests with a preset.", ("preset", "model")),
    "reloads": (
        "Changes of the configuration's file: the policy has changed, or the file was refused.",
        ("result",),
    ),
}
"""The descriptions of the counters, and their labels."""


def count_by(name: str, amount: float, *labels: str) -> None:
    """Count in the counter of a name, see ``_COUNTERS``, under the values of its labels."""
    if (series := _series(name, *labels)) is not None:
        series.inc(amount)


@cache
def _series(name: str, *labels: str) -> Any:
    counter = _counter(name)
    return None if counter is None else counter.labels(*labels)


@cache
def _counter(name: str) -> Any:
    """Import the client when the first request is counted.

    On import, the client chooses between one process and several, by an environment variable. An
    engine sets this variable while it starts, so an earlier import could choose wrongly.
    """
    try:
        from prometheus_client import Counter
    except ImportError:
        return None
    try:
        return Counter(f"logitport_{name}", *_COUNTERS[name])
    except ValueError:
        # In Dynamo's worker, a collector of the engine's metrics has this name in the registry. It
        # reads the values of all processes from files, this counter's too.
        return Counter(f"logitport_{name}", *_COUNTERS[name], registry=None)


def begin(stage: Stage, digest: str) -> None:
    """Begin the series that alerts need before the first request: an increase has two samples.

    Args:
        stage: stage of the worker.
        digest: the digest of the policy, see ``show_policy``.
    """
    for decision in ("admitted", "refused"):
        count(decision, stage, 0)
    show_policy(digest)


@cache
def show_policy(digest: str) -> None:
    """Show the digest of this process's policy, if it has one: servers of a fleet have the same."""
    if digest and (gauge := _gauge("policy")) is not None:
        gauge.labels(digest).set(1)


def change_policy(before: str, digest: str) -> None:
    """Show another digest in place of one."""
    for each in (before, digest):
        show_policy(each)  # from now on, no request shows it again
    if (gauge := _gauge("policy")) is not None:
        gauge.labels(before).set(0)
        gauge.labels(digest).set(1)


def show_reload(*, is_successful: bool) -> None:
    """Show whether the configuration's file, as it is now, is what acts."""
    if (gauge := _gauge("last_reload_successful")) is not None:
        gauge.set(is_successful)


_GAUGES = {
    "policy": ("The digest of the server's policy.", ("digest",), "livemax"),
    "last_reload_successful": (
        "Whether the server goes by the configuration's file as it is now, or has refused it.",
        (),
        "livemin",
    ),
}


@cache
def _gauge(name: str) -> Any:
    """Make a gauge; ``_counter`` says when."""
    try:
        from prometheus_client import Gauge

        what, labels, mode = _GAUGES[name]
        return Gauge(f"logitport_{name}", what, labels, multiprocess_mode=mode)
    except (ImportError, ValueError):
        return None
