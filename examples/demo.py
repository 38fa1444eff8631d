"""The main job on a real engine, with a real model: ``make demo``.

The demo asks two servers in turn through the OpenAI client. The first shows that the wiring works.
The second shows that specs act on their own request and on no other.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logitport.adapters import extra_body
from logitport.hooks.hello_world import TEXT, VARIABLES
from logitport.spec import ForcedTokenSequenceSpec
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from rich.console import Console
from rich.table import Table

from ._support.ending import run
from ._support.smollm2 import prepare
from ._support.vllm_server import VllmServer

LOGS = Path(__file__).resolve().parent.parent / "build" / "demo"

# vLLM finds the installed package anyway. With this option, a server without logitport does not
# start. The two instances of the processor act once.
ARGUMENTS = ("--logits-processors", "logitport.adapters.vllm:LogitportProcessor")

# In bfloat16, vLLM on a CPU with AMX generates nonsense with this model; float32 works everywhere.
DTYPE = ("--dtype", "float32")

QUESTION = "What is the capital of France?"
SECRET = "I could tell you, but logitport has put these words into my mouth."

console = Console(highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class Chat:
    """One question and the expected answer."""

    question: str
    expected: str
    exact: bool = True  # if False, the answer must only contain `expected`
    extra_body: dict[str, Any] | None = None

    def accepts(self, answer: str) -> bool:
        """Whether the answer is as expected."""
        return answer == self.expected if self.exact else self.expected in answer


class Stopwatch:
    """A record of the seconds that each part takes."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time the ``with`` block."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - began

    def table(self) -> Table:
        """Make a table with one line for each part."""
        table = Table("part", box=None, pad_edge=False)
        table.add_column("seconds", justify="right")
        for name, seconds in self.seconds.items():
            table.add_row(name, f"{seconds:.1f}")
        table.add_row("all", f"{sum(self.seconds.values()):.1f}")
        return table


def main() -> int:
    """Run both parts; return the exit status, 0 if every answer is as expected."""
    watch = Stopwatch()
    with watch.part("prepare the model"):
        model = prepare()
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model)
    console.print(f"Model: {model}")

    spec = ForcedTokenSequenceSpec.from_text(SECRET, tokenizer)
    parts = (
        serve(
            "(a) The wiring check: an environment variable, and every request says the same.",
            model,
            hook=True,
            chats=[Chat(QUESTION, TEXT)],
            watch=watch,
        ),
        serve(
            "(b) The check off, two chats in one batch: the first carries a spec.",
            model,
            hook=False,
            chats=[
                Chat("Where is the treasure?", SECRET, extra_body=extra_body("vllm", spec)),
                Chat(QUESTION, "Paris", exact=False),
            ],
            watch=watch,
        ),
    )
    right = all(parts)
    console.print()
    console.print(watch.table())
    console.print()
    console.print("Every answer was as expected." if right else "An answer was wrong.")
    return 0 if right else 1


def serve(title: str, model: Path, *, hook: bool, chats: Sequence[Chat], watch: Stopwatch) -> bool:
    """Start a server, run all chats at once and stop it; return whether all answers are right.

    Raises:
        CannotRunError: if the server does not start.
        RuntimeError: if it leaves a process or its port behind.
    """
    name = title.split()[0]
    env = dict.fromkeys(VARIABLES, "0") | {VARIABLES[0]: str(int(hook))}
    console.print(f"\n{title}")
    console.print(f"      server: {VARIABLES[0]}={env[VARIABLES[0]]} {' '.join(ARGUMENTS)}")
    log = LOGS / f"hook-{'on' if hook else 'off'}.log"
    server = VllmServer(model, *ARGUMENTS, *DTYPE, env=env, log=log)
    with watch.part(f"{name} start the server"):
        server.start()
    try:
        with watch.part(f"{name} chat"):
            answers = asyncio.run(ask(server, chats))
    finally:
        with watch.part(f"{name} stop the server"):
            server.stop()
    right = True
    for chat, answer in zip(chats, answers, strict=True):
        console.print(f"    question: {chat.question}")
        if chat.extra_body:
            console.print(f"  extra_body: {chat.extra_body}", style="dim")
        console.print(f"      answer: {answer}", style="bold")
        if not chat.accepts(answer):
            right = False
            console.print(f"       WRONG: expected {chat.expected}", style="red")
    console.print(f"     stopped: port {server.port} is free, no process is left")
    return right


async def ask(server: VllmServer, chats: Sequence[Chat]) -> list[str]:
    """Send all chats at the same time and return the answers."""
    async with AsyncOpenAI(
        base_url=server.base_url,
        api_key="not needed",
        max_retries=0,
        timeout=120,
        http_client=DefaultAsyncHttpxClient(trust_env=False),  # no proxy to the loopback
    ) as client:
        completions = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model=server.model_name,
                    messages=[{"role": "user", "content": chat.question}],
                    temperature=0,
                    max_tokens=64,
                    extra_body=chat.extra_body,
                )
                for chat in chats
            )
        )
    return [completion.choices[0].message.content or "" for completion in completions]


if __name__ == "__main__":
    run(main)
