"""What became of requests with specs, counted for Prometheus where its client is installed.

``logitport_requests_total``, with the labels ``decision`` and ``stage``, is in the default registry
of ``prometheus_client``, which the servers of vLLM and SGLang show at ``/metrics``. Where that is
not installed, nothing is counted.
"""

from functools import cache
from typing import Any, Literal

from ..spec import Stage

Decision = Literal["attached", "admitted", "refused", "gated", "failed"]


def count(decision: Decision, stage: Stage, amount: float = 1) -> None:
    """Count a request.

    Args:
        decision: ``attached`` by a client or gateway, ``admitted`` or ``refused`` by an engine, or
            ``gated``: on its way without specs, or in an engine where they do not act. ``failed``
            counts a request once more, in the worker that could not realize its specs.
        stage: of the worker that the request is meant for or has reached.
        amount: the part of a request, where several decide alike on one.
    """
    if (requests := _requests()) is not None:
        requests.labels(decision, stage.value).inc(amount)


@cache
def _requests() -> Any:
    """Imports the client when the first request is counted.

    Whether it counts for one process or for several it decides when it is imported, by a variable
    that engines set while they start.
    """
    try:
        from prometheus_client import Counter
    except ImportError:
        return None
    return Counter(
        "logitport_requests",
        "Requests with specs, by what was decided and for which stage: specs attached to a "
        "request, admitted by an engine, refused by it, or gated, by either; failed in a worker.",
        ("decision", "stage"),
    )
