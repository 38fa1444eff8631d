"""The matrix of gateways: what becomes of specs on each route, with each carrier."""

from collections.abc import Sequence
from contextlib import ExitStack

from .asks import CARRIERS, MODEL, Ask, Outcome, asks, send
from .gateway import GATEWAYS, OTHERS, Gateway
from .recorder import recorders

Matrix = dict[tuple[str, Ask], tuple[Outcome, str]]
"""By gateway and request: the outcome and the reason."""

DIRECT = "none"
"""No gateway: the client asks the server."""


def matrix(
    engine: str, urls: Sequence[str], gateways: Sequence[str] = (DIRECT, *GATEWAYS)
) -> Matrix:
    """Send all requests through all gateways.

    Args:
        engine: of the servers.
        urls: one server, or a prefill and a decode server; without ``/v1``.
        gateways: names; those that know no pairs are left out before one.
    """
    found: Matrix = {}
    for name in gateways:
        if len(urls) > 1 and name in (DIRECT, *OTHERS):
            continue
        with ExitStack() as stack:
            url, headers = urls[0], {}
            if name != DIRECT:
                gateway = stack.enter_context(Gateway(name, urls, MODEL))
                url, headers = gateway.base_url.removesuffix("/v1"), gateway.headers
            for ask in asks(engine):
                found[name, ask] = send(url, engine, ask, headers)
    return found


def before_recorders(engine: str, gateways: Sequence[str] = (DIRECT, *GATEWAYS)) -> list[Matrix]:
    """Make the matrices before one recorder, and before two as prefill and decode."""
    found = []
    for number in (1, 2):
        with recorders(engine, number) as urls:
            found.append(matrix(engine, urls, gateways))
    return found


def table(*matrices: Matrix) -> str:
    """Make a Markdown table of matrices of one engine. A cell has each outcome once.

    The outcome of streamed requests comes second, that before a pair of servers last.
    """
    lines = [f"| gateway | route | {' | '.join(CARRIERS)} |", "| --- " * (2 + len(CARRIERS)) + "|"]
    for name, route in dict.fromkeys(
        (name, ask.route) for found in matrices for name, ask in found
    ):
        cells = []
        for carrier in CARRIERS:
            asked = [(name, Ask(route, streamed, carrier)) for streamed in (False, True)]
            outcomes = (found[at][0] for found in matrices for at in asked if at in found)
            cells.append(" / ".join(dict.fromkeys(outcomes)))
        lines.append(f"| {name} | `{route}` | {' | '.join(cells)} |")
    return "\n".join(lines)
