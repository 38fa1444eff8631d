"""Specs on a prefill and a decode server, compared with one server that does both.

``make demo-disaggregated``, or ``python -m examples.disaggregated --help``.
"""

import asyncio
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from logitport.adapters import extra_body
from logitport.spec import (
    ChoiceSpec,
    ForcedTokenSequenceSpec,
    LogitsProcessorSpec,
    ThinkingBudgetSpec,
)
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from rich.console import Console

from .._support.ending import CannotRunError, run
from .._support.smollm2 import prepare
from .._support.vllm_server import VllmServer
from ..demo import Stopwatch
from .deployment import ARGUMENTS, Connector, Deployment, counted

LOGS = Path(__file__).resolve().parents[2] / "build" / "disaggregated"

FACTS = (
    "The Seine flows through Paris, the Thames through London and the Spree through Berlin. The "
    "Danube passes Vienna, Bratislava, Budapest and Belgrade on its way to the Black Sea; the "
    "Rhine comes from the Alps, touches Basel, Strasbourg and Cologne, and reaches the North Sea "
    "near Rotterdam. The Vltava is the river of Prague, the Vistula that of Warsaw and Cracow, "
    "the Tiber that of Rome, and the Manzanares that of Madrid. "
)

console = Console(highlight=False, soft_wrap=True)


def requests(tokenizer: Any) -> dict[str, tuple[str, LogitsProcessorSpec | None]]:
    """Make prompts of a few KV blocks, each with the spec of its request."""
    return {
        "free": (FACTS + "The capital of France is", None),
        "forced sequence": (
            FACTS + "Where is the treasure? Answer:",
            ForcedTokenSequenceSpec.from_text(" I would rather not say.", tokenizer),
        ),
        "choice": (
            FACTS + "Which city lies on the Spree? Answer:",
            ChoiceSpec.from_text([" London", " Berlin", " Belgrade"], tokenizer),
        ),
        "thinking budget": (
            FACTS + "Which river is the longest?\n<think>\nI know that",
            ThinkingBudgetSpec.from_text(
                8, tokenizer, start="<think>", end="</think>", message=" That is enough."
            ),
        ),
    }


async def completions(
    base_url: str, model: str, asked: dict[str, tuple[str, LogitsProcessorSpec | None]]
) -> dict[str, str]:
    """Send all requests at the same time and return their greedy completions."""
    async with AsyncOpenAI(
        base_url=base_url,
        api_key="not needed",
        max_retries=0,
        timeout=300,
        http_client=DefaultAsyncHttpxClient(trust_env=False),  # no proxy to the loopback
    ) as client:
        replies = await asyncio.gather(
            *(
                client.completions.create(
                    model=model,
                    prompt=prompt,
                    temperature=0,
                    max_tokens=32,
                    extra_body=extra_body("vllm", spec) if spec else None,
                )
                for prompt, spec in asked.values()
            )
        )
    return {name: reply.choices[0].text for name, reply in zip(asked, replies, strict=True)}


def main(
    connector: Annotated[
        Connector, typer.Option(help="How the KV cache gets from prefill to decode.")
    ] = Connector.EXAMPLE,
    copy_specs: Annotated[
        bool, typer.Option(help="Whether the proxy sends specs to the prefill server too.")
    ] = True,
    serve: Annotated[
        bool, typer.Option("--serve", help="Keep the deployment running until Ctrl-C.")
    ] = False,
) -> None:
    """Run a prefill and a decode server of vLLM behind a proxy, on loopback."""
    if connector is Connector.NIXL and find_spec("nixl") is None:
        raise CannotRunError("NIXL is not installed here: .venv/bin/pip install nixl")
    watch = Stopwatch()
    with watch.part("prepare the model"):
        model = prepare()
        from transformers import AutoTokenizer

        asked = requests(AutoTokenizer.from_pretrained(model))
    deployment = Deployment(model, connector=connector, logs=LOGS)
    with (
        watch.part("prefill + decode: start, ask, stop"),
        deployment,
        deployment.proxy(copies_specs=copy_specs) as base_url,
    ):
        console.print(f"Model: {model}\nLogs: {LOGS}\nProxy: {base_url}\n")
        if serve:
            console.print("Serving until Ctrl-C.")
            signal.pause()
        apart = asyncio.run(completions(base_url, model.name, asked))
        sources = counted(deployment.decode, "vllm:prompt_tokens_by_source", "source")
        for name, worker in (("prefill", deployment.prefill), ("decode", deployment.decode)):
            decisions = counted(worker, "logitport_requests", "decision")
            console.print(f"Requests with specs, {name}: {_line(decisions) or 'none'}")
    server = VllmServer(model, *ARGUMENTS, log=LOGS / "aggregated.log")
    with watch.part("aggregated: start, ask, stop"), server:
        together = asyncio.run(completions(server.base_url, model.name, asked))

    for name, (_, spec) in asked.items():
        console.print(f"{name}: {spec.kind if spec else 'no spec'}", style="bold")
        console.print(f"  prefill + decode: {apart[name]!r}", markup=False)
        console.print(f"        aggregated: {together[name]!r}", markup=False)
    handed_over = sources["external_kv_transfer"]
    console.print(f"\nPrompt tokens of the decode server: {_line(sources)}")
    console.print(watch.table())
    if apart != together:
        console.print("\nOutputs differ.", style="red")
        raise typer.Exit(1)
    if not handed_over:
        console.print("\nNo KV was handed over.", style="red")
        raise typer.Exit(1)
    console.print(f"\nEqual outputs; {handed_over} of {sum(sources.values())} tokens handed over.")


def _line(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


if __name__ == "__main__":
    run(lambda: typer.run(main))
