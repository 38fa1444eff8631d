"""The Prometheus counter of decisions on requests with specs.

``logitport_requests_total``, with the labels ``decision`` and ``stage``, is in the default registry
of ``prometheus_client``. The servers of vLLM and SGLang show this registry at ``/metrics``. Without
``prometheus_client``, nothing is counted.
"""

from functools import cache
from typing import Any, Literal

from ..spec import Stage

Decision = Literal["attached", "admitted", "refused", "gated", "failed"]


def count(decision: Decision, stage: Stage, amount: float = 1) -> None:
    """Count a request.

    Args:
        decision: ``attached`` by a client or gateway; ``admitted`` or ``refused`` by an engine;
            ``gated`` if it was sent without specs, or if specs do not act in its engine.
            ``failed`` counts a request again, in the worker that could not realize its specs.
        stage: stage of the worker that the request is meant for or has reached.
        amount: less than 1 where several processors decide alike on the same request.
    """
    if (requests := _requests()) is not None:
        requests.labels(decision, stage.value).inc(amount)


@cache
def _requests() -> Any:
    """Import the client when the first request is counted.

    On import, the client chooses between one process and several, by an environment variable. An
    engine sets this variable while it starts, so an earlier import could choose wrongly.
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
