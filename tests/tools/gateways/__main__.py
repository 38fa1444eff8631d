"""Print what becomes of specs behind gateways: ``python -m tests.tools.gateways --help``."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from examples._support.ending import run
from examples._support.server import Server

from .asks import Outcome
from .gateway import GATEWAYS
from .matrix import DIRECT, before_recorders, matrix, table

ROOT = Path(__file__).parents[3]
MODEL = ROOT / ".models" / "SmolLM2-135M-Instruct"


class Servers(StrEnum):
    """What is behind the gateways."""

    RECORDERS = "recorders"
    VLLM = "vllm"
    VLLM_PAIR = "vllm-pair"
    SGLANG = "sglang"


@contextmanager
def _running(servers: Servers) -> Iterator[Sequence[Server]]:
    """Start real servers."""
    python = ROOT / (".venv-sglang" if servers is Servers.SGLANG else ".venv") / "bin" / "python"
    if servers is Servers.VLLM_PAIR:
        from examples.disaggregated.deployment import Deployment

        with Deployment(MODEL, python=python) as pair:
            yield pair.prefill, pair.decode
    elif servers is Servers.VLLM:
        from examples._support.vllm_server import LOGITPORT, VllmServer

        with VllmServer(MODEL, *LOGITPORT, "--enable-scale-out", python=python) as server:
            yield (server,)
    else:
        from examples._support.sglang_server import SglangServer

        with SglangServer(MODEL, python=python) as server:
            yield (server,)


def main(
    servers: Annotated[
        Servers, typer.Option(help="What is behind the gateways; recorders are no engines.")
    ] = Servers.RECORDERS,
    gateway: Annotated[
        list[str] | None, typer.Option(help="A gateway; by default, all that are wheels.")
    ] = None,
    why: Annotated[bool, typer.Option("--why", help="Print the reason of every cell.")] = False,
) -> None:
    """Print a matrix of gateways, routes and carriers. The status is 1 if a cell is WRONG.

    A cell is obeyed (with a receipt), refused (an error), or not ours (the client's `receipt`
    raises). Before recorders, it counts for one server, and for a pair that prefills and decodes.
    """
    names = gateway or (DIRECT, *GATEWAYS)
    began, is_wrong = time.monotonic(), False
    if servers is Servers.RECORDERS:
        results = {engine: before_recorders(engine, names) for engine in ("vllm", "sglang")}
    else:
        with _running(servers) as running:
            urls = [server.base_url.removesuffix("/v1") for server in running]
            results = {str(servers): [matrix(servers.partition("-")[0], urls, names)]}
    for title, matrices in results.items():
        print(f"\n{title}\n\n{table(*matrices)}")
        for (name, ask), (outcome, reason) in chain(*(found.items() for found in matrices)):
            is_wrong |= outcome is Outcome.WRONG
            if why or outcome is Outcome.WRONG:
                print(f"{name}, {ask}: {outcome}: {reason}")
    print(f"\n{time.monotonic() - began:.0f} s")
    raise typer.Exit(is_wrong)


if __name__ == "__main__":
    run(lambda: typer.run(main))
