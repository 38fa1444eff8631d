"""A real server under many clients for a while (``python -m tests.soak --engine vllm``).

Clients ask at random, at once: with good specs, whose replies are held to the conformance suite's
checkers; with bad and huge ones from the fuzzer's corpus; with those that used to be slow; without
specs, at temperature 0, for replies that are known; and streams that are left half-way. The
cache for keys and values is small, so that requests are preempted.

It prints figures, and ends with status 1 if the server ends, hangs, answers a good request wrongly
or a bad one with anything but 400, or if a request without specs gets another reply than alone.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import typer
from logitport.adapters import extra_body
from logitport.adapters.conformance.obeys import obeys
from logitport.spec import (
    AllowedTokensSpec,
    BannedTokensSpec,
    ChoiceSpec,
    ForcedEndSpec,
    ForcedTokenSequenceSpec,
    LogitsProcessorSpec,
    MinTokensSpec,
    NoRepeatNgramSpec,
    SpecError,
    ThinkingBudgetSpec,
    TriggerSpec,
    decode,
    encode,
)
from rich.console import Console
from rich.table import Table

from examples.server import Server
from examples.smollm2 import prepare

PROMPTS = ["The capital of France is", "Name three rivers:", "Once upon a time", "2, 4, 6,"]
FREE_TOKENS = 24
VOCABULARY = 49_152
EOS = 2
TIMEOUT_S = 120.0
console = Console()


def good(chance: random.Random) -> LogitsProcessorSpec:
    """Specs that the model obeys in few tokens."""
    tokens = [chance.randrange(100, 40_000) for _ in range(8)]
    return chance.choice(
        [
            ForcedTokenSequenceSpec(tuple(tokens), EOS),
            ForcedEndSpec(4, tuple(tokens[:3]), EOS),
            AllowedTokensSpec(tuple(set(tokens))),
            BannedTokensSpec(tuple(range(200, 20_000))),
            ChoiceSpec(((*tokens[:2],), (*tokens[2:6],)), EOS),
            MinTokensSpec(8, (EOS,)),
            NoRepeatNgramSpec(chance.randrange(1, 4)),
            TriggerSpec((tokens[0],), tuple(tokens[1:4]), 2),
            ThinkingBudgetSpec(3, (tokens[0],), (tokens[1],), tuple(tokens[2:4])),
        ]
    )


def slow(chance: random.Random) -> Sequence[LogitsProcessorSpec]:
    """Specs that once took seconds a step, or hundreds of megabytes."""
    ones = (11,) * 64
    return chance.choice(
        [
            [NoRepeatNgramSpec(n) for n in (61, 62, 63, 64)],
            [TriggerSpec(ones, (12,) * 64, 1024)],
            [*[AllowedTokensSpec(tuple(range(i, 2000 + i))) for i in range(15)]],
            [ThinkingBudgetSpec(3, (11,), (12,), (13,)) for _ in range(8)],
        ]
    )


@dataclass
class Figures:
    """What was seen.

    Attributes:
        counts: of requests, by what became of them.
        wrong: what was not as it should be.
        refusal_s: how long the slowest refusal took, and its bytes.
        gap_s: the longest time between two tokens of a stream.
        memory: bytes of all processes of the server, by the time.
    """

    counts: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    refusal_s: tuple[float, int] = (0.0, 0)
    gap_s: float = 0.0
    memory: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])


class Soak:
    """One server, its clients, and what they saw.

    Args:
        engine: ``vllm`` or ``sglang``.
        client: for its server.
        model: the served model's name.
        bad: payloads of which each is refused.

    Attributes:
        free: the replies without specs, by prompt.
        figures: what was seen so far.
    """

    def __init__(self, engine: str, client: httpx.AsyncClient, model: str, bad: list[str]) -> None:
        self.engine = engine
        self.client = client
        self.model = model
        self.free: dict[str, str] = {}
        self.bad = bad
        self.figures = Figures()

    async def run(self, deadline: float, clients: int, process: psutil.Process) -> None:
        """Ask until it is time."""
        for prompt in PROMPTS:
            reply = await self._ask(prompt, [], max_tokens=FREE_TOKENS, temperature=0)
            self.free[prompt] = reply.json()["choices"][0]["text"]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(deadline, process))
            for seed in range(clients):
                group.create_task(self._client(random.Random(seed), deadline))

    async def _client(self, chance: random.Random, deadline: float) -> None:
        actions: list[Callable[[random.Random], Awaitable[None]]] = [
            self._obeyed,
            self._obeyed,
            self._free,
            self._free,
            self._refused,
            self._slow,
            self._left,
        ]
        while time.monotonic() < deadline and len(self.figures.wrong) < 20:
            action = chance.choice(actions)
            try:
                await action(chance)
            except httpx.TimeoutException:
                self.figures.wrong.append(f"{action.__name__}: no answer in {TIMEOUT_S:g} s")
            except httpx.HTTPError as error:
                self.figures.wrong.append(f"{action.__name__}: {error!r}")
                await asyncio.sleep(1)

    async def _ask(
        self, prompt: str, specs: Sequence[LogitsProcessorSpec], **fields: Any
    ) -> httpx.Response:
        return await self._post(
            {"prompt": prompt, **(extra_body(self.engine, specs) if specs else {}), **fields}
        )

    async def _post(self, fields: dict[str, Any]) -> httpx.Response:
        return await self.client.post(
            "/v1/completions", json={"model": self.model, "return_token_ids": True, **fields}
        )

    async def _obeyed(self, chance: random.Random) -> None:
        spec, prompt = good(chance), chance.choice(PROMPTS)
        reply = await self._ask(prompt, [spec], max_tokens=16, temperature=1.0)
        if reply.status_code != 200:
            self.figures.wrong.append(f"{spec.kind}: {reply.status_code} {reply.text[:200]}")
            return
        choice = reply.json()["choices"][0]
        if (output := choice.get("token_ids")) is not None:
            known = obeys(spec, choice.get("prompt_token_ids") or [], output)
            if not known and choice["finish_reason"] != "length":
                self.figures.wrong.append(f"{spec} was not obeyed: {output}")
        self.figures.counts["served right"] += 1

    async def _free(self, chance: random.Random) -> None:
        prompt = chance.choice(PROMPTS)
        reply = await self._ask(prompt, [], max_tokens=FREE_TOKENS, temperature=0)
        text = reply.json()["choices"][0]["text"] if reply.status_code == 200 else reply.text
        if text != self.free[prompt]:
            self.figures.wrong.append(f"a neighbour said {text!r}, alone {self.free[prompt]!r}")
        self.figures.counts["neighbours"] += 1

    async def _refused(self, chance: random.Random) -> None:
        payload = chance.choice(self.bad)
        (place, specs), *_ = extra_body(self.engine, ForcedTokenSequenceSpec((1,))).items()
        if self.engine == "sglang":
            place, specs = "custom_params", {"logitport": ""}
        began = time.monotonic()
        body = {"prompt": "Hi", "max_tokens": 4, place: {**specs, "logitport": payload}}
        reply = await self._post(body)
        took = time.monotonic() - began
        self.figures.refusal_s = max(self.figures.refusal_s, (took, len(payload)))
        if reply.status_code != 400:
            self.figures.wrong.append(f"{payload[:200]}: {reply.status_code}")
        self.figures.counts["refused"] += 1

    async def _slow(self, chance: random.Random) -> None:
        reply = await self._ask("11 " * 300, slow(chance), max_tokens=16, temperature=1.0)
        if reply.status_code not in (200, 400):
            self.figures.wrong.append(f"slow: {reply.status_code} {reply.text[:200]}")
        self.figures.counts["once slow"] += 1

    async def _left(self, chance: random.Random) -> None:
        """A stream that its client leaves after some tokens."""
        body = {"model": self.model, "prompt": chance.choice(PROMPTS), "max_tokens": 64}
        body |= {"stream": True, **extra_body(self.engine, MinTokensSpec(60, (EOS,)))}
        async with self.client.stream("POST", "/v1/completions", json=body) as reply:
            last, tokens = time.monotonic(), 0
            async for line in reply.aiter_lines():
                if line.startswith("data:"):
                    now = time.monotonic()
                    if tokens:
                        self.figures.gap_s = max(self.figures.gap_s, now - last)
                    last, tokens = now, tokens + 1
                    if tokens >= chance.randrange(2, 40):
                        break
        self.figures.counts["left"] += 1

    async def _watch(self, deadline: float, process: psutil.Process) -> None:
        began = time.monotonic()
        while time.monotonic() < deadline and process.is_running():
            processes = [process, *process.children(recursive=True)]
            held = 0
            for each in processes:
                try:
                    held += each.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.figures.memory.append((time.monotonic() - began, held))
            await asyncio.sleep(1)


def bad_payloads() -> list[str]:
    """The payloads of the fuzzer's corpus that are refused, whatever the engine."""
    from tests.fuzz.payloads import load, text_of

    found = ["Hello", '{"version": 2, "specs": []}', encode(ForcedTokenSequenceSpec((10**6,)))]
    for _, payload in load():
        text = text_of(payload)
        try:
            decode(text)
        except SpecError:
            found.append(text)
    return [text for text in found if text.isprintable() and len(text) < 1 << 21]


def server_of(engine: str, stack: AsyncExitStack, model: Path) -> Server:
    """The engine's server, with everything of ours loaded, and little memory."""
    if engine == "sglang":
        from examples.sglang_server import SglangServer

        return SglangServer(model)
    from examples import v2_on_cpu
    from examples.vllm_server import VllmServer

    environment = {"VLLM_USE_V2_MODEL_RUNNER": "1" if engine == "vllm-v2" else "0"}
    if engine == "vllm-v2" and v2_on_cpu.is_needed():
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        environment |= {"TRITON_INTERPRET": "1"}
        environment |= v2_on_cpu.environment_of_children(Path(folder))
    arguments = ["--logits-processors", "logitport.adapters.vllm:LogitportProcessor"]
    arguments += ["--middleware", "logitport.adapters.vllm.SpecMiddleware", "--dtype", "float32"]
    # A block has 128 tokens on a CPU: four long requests do not fit together.
    arguments += ["--num-gpu-blocks-override", "24", "--no-enable-prefix-caching"]
    return VllmServer(model, *arguments, env=environment)


async def soak(engine: str, seconds: float, clients: int) -> Figures:
    """Run a server and its clients, and return what was seen."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(server_of(engine, stack, prepare()))
        process = server.process
        assert process is not None  # it answers
        url = server.base_url.removesuffix("/v1")
        client = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False)
        await stack.enter_async_context(client)
        name = engine.partition("-")[0]
        run = Soak(name, client, server.model_name, bad_payloads())
        await run.run(time.monotonic() + seconds, clients, process)
        try:
            alive = (await client.get("/health")).is_success
        except httpx.HTTPError:
            alive = False
        if not alive:
            run.figures.wrong.append(f"the server does not answer any more; {server.log}")
        return run.figures


def report(engine: str, seconds: float, figures: Figures) -> bool:
    """Print the figures; whether all was right."""
    table = Table("figure", "value", title=f"{engine}, {seconds:g} s")
    for what, number in sorted(figures.counts.items()):
        table.add_row(what, str(number))
    took, size = figures.refusal_s
    table.add_row("slowest refusal", f"{took * 1000:.0f} ms, {size} bytes")
    table.add_row("longest gap between tokens", f"{figures.gap_s * 1000:.0f} ms")
    half = [held for at, held in figures.memory if at > seconds / 2] or [0]
    for what, held in (("at half time", half[0]), ("at the end", half[-1]), ("most", max(half))):
        table.add_row(f"memory {what}", f"{held / 2**20:.0f} MiB")
    table.add_row("wrong", str(len(figures.wrong)))
    console.print(table)
    for what in figures.wrong:
        console.print(f"  {what}", markup=False, highlight=False)
    return not figures.wrong


def main(engine: str = "vllm", seconds: float = 600, clients: int = 8) -> None:
    """Soak one engine: vllm, vllm-v2 or sglang."""
    figures = asyncio.run(soak(engine, seconds, clients))
    sys.exit(0 if report(engine, seconds, figures) else 1)


if __name__ == "__main__":
    typer.run(main)
