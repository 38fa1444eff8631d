"""A real server under many clients for a while (``python -m tests.tools.soak --engine vllm``).

Clients ask at random, at once: with good specs, whose replies are held to the conformance suite's
checkers; with bad and huge ones from the fuzzer's corpus; with those that used to be slow; with a
plugin that raises; without specs, at temperature 0, for replies that are known; and streams that
are left half-way. The cache for keys and values is small. In runs of five minutes and more, prompts
are long enough that requests are preempted, and SGLang is asked to retract some.

It prints figures. The status is 1 if the server ends or hangs, if it leaves a request without an
answer while it works for others, answers a good request wrongly or a bad one with anything but 400,
if a request without specs gets another reply than alone, or, in runs of five minutes and more, if
memory grows in the second half.

``--contrast`` asks vLLM's own adapter for the same callable that raises. The status is 1 if the
server survives that.
"""

import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
import typer
from logitport.adapters import extra_body
from logitport.adapters.conformance.reference import obeys
from logitport.adapters.core import plugins
from logitport.spec import (
    AllowedTokensSpec,
    BannedTokensSpec,
    ChoiceSpec,
    ForcedEndSpec,
    ForcedTokenSequenceSpec,
    LogitsProcessorSpec,
    MinTokensSpec,
    NoRepeatNgramSpec,
    PluginSpec,
    SpecError,
    ThinkingBudgetSpec,
    TriggerSpec,
    decode,
    encode,
)
from logitport.spec.limits import MAX_TOKEN_IDS
from rich.console import Console
from rich.table import Table

from examples._support import ending
from examples._support.server import Server
from examples._support.smollm2 import prepare

BEFORE = "The cat sat on the mat and looked at the sea. " * 9
"""What prompts of long runs begin with. Their replies need a second block of the cache half-way."""
ASKED = ["The capital of France is", "Name three rivers:", "Once upon a time", "2, 4, 6,"]
FREE_TOKENS = 24
VOCABULARY = 49_152
EOS = 2
TIMEOUT_S = 120.0
"""After this time without an answer, the engine's progress decides."""
STARVED_TOKENS = 4000
"""The most tokens that the engine may still generate before it answers such a request.

SGLang 0.5.23 answers each request within 50 steps of at most 8 tokens, even if it is asked for a
retraction every 3 steps, and so retracts a request 7 times: a retracted request keeps its output.
But a step that takes 0.2 s on free cores was seen to take 22 s on cores that other programs use.
"""
LONG_S = 300.0
"""From this length on, memory has had the time to become flat."""
FLAT = 1.02
"""The most that memory may grow from the third quarter to the fourth."""

PREEMPTIONS = "vllm:num_preemptions_total", "sglang:num_retracted_requests_total"
QUEUES = (
    *("vllm:num_requests_running", "vllm:num_requests_waiting"),
    *("sglang:num_running_reqs", "sglang:num_queue_reqs"),
)
GENERATED = "vllm:generation_tokens_total", "sglang:realtime_tokens_total"
"""Metrics of the servers. The last two grow in every step; SGLang's also counts prompts apart."""

PACKAGE = """
def make_rule(params):
    def rule(output_ids, logits):
        if len(output_ids) == params["after"]:
            raise RuntimeError("no more")
    return rule


def make_adapter():
    from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

    class Adapter(AdapterLogitsProcessor):
        def is_argmax_invariant(self):
            return False

        def new_req_logits_processor(self, params):
            if (after := (params.extra_args or {}).get("raises_after")) is None:
                return None
            rule = make_rule({"after": after})

            def processor(output_ids, logits):
                rule(output_ids, logits)
                return logits

            return processor

    return Adapter


def __getattr__(name):
    if name == "Adapter":
        return make_adapter()
    raise AttributeError(name)
"""
"""A plugin that raises, and the same callable for vLLM's own adapter."""
console = Console()


def good(chance: random.Random) -> LogitsProcessorSpec:
    """Specs that the model obeys in few tokens."""
    tokens = [chance.randrange(100, 40_000) for _ in range(8)]
    return chance.choice(
        [
            ForcedTokenSequenceSpec(tuple(tokens), EOS),
            ForcedEndSpec(4, tuple(tokens[:3]), EOS),
            AllowedTokensSpec(tuple(set(tokens))),
            BannedTokensSpec(tuple(range(200, 200 + MAX_TOKEN_IDS))),
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
            [NoRepeatNgramSpec(n) for n in (63, 64)],
            [TriggerSpec(ones, (12,) * 64, 1024)],
            [*[AllowedTokensSpec(tuple(range(i, 1000 + i))) for i in range(15)]],
            [ThinkingBudgetSpec(3, (11,), (12,), (13,))] * 3,
            [BannedTokensSpec(tuple(range(100, 100 + MAX_TOKEN_IDS)))],
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
        late: answers that came after ``TIMEOUT_S``, from an engine that was working.
        preempted: preemptions that the engine reports.
        alive: whether the server answered at the end.
    """

    counts: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    refusal_s: tuple[float, int] = (0.0, 0)
    gap_s: float = 0.0
    memory: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    late: int = 0
    preempted: int = 0
    alive: bool = True

    def quarters(self) -> tuple[float, float]:
        """The median of the memory in the third quarter of the time, and in the fourth."""
        held = [each for _, each in self.memory] or [0]
        half, three = len(held) // 2, len(held) * 3 // 4
        return median(held[half:three] or held), median(held[three:])


class Soak:
    """One server, its clients, and what they saw.

    Args:
        engine: ``vllm`` or ``sglang``.
        client: for its server.
        model: the served model's name.
        bad: payloads of which each is refused.
        prompts: of the requests.
        contrast: whether the clients ask vLLM's own adapter for what raises, and for nothing else.

    Attributes:
        free: the replies without specs, by prompt.
        figures: what was seen so far.
    """

    def __init__(
        self,
        engine: str,
        client: httpx.AsyncClient,
        model: str,
        bad: list[str],
        prompts: list[str],
        *,
        contrast: bool,
    ) -> None:
        self.engine = engine
        self.client = client
        self.model = model
        self.free: dict[str, str] = {}
        self.bad = bad
        self._prompts = prompts
        self.figures = Figures()
        self._actions: list[Callable[[random.Random], Coroutine[Any, Any, None]]] = (
            [self._free, self._raises]
            if contrast
            else [
                self._obeyed,
                self._obeyed,
                self._free,
                self._free,
                self._refused,
                self._slow,
                self._raises,
                self._left,
            ]
        )
        self._contrast = contrast

    async def run(self, seconds: float, clients: int, process: psutil.Process) -> None:
        """Ask for so long."""
        for prompt in self._prompts:
            await self.answered(self._alone(prompt), "alone")
        deadline = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(deadline, process))
            for seed in range(clients):
                group.create_task(self._client(random.Random(seed), deadline))
        await self._ask_at_the_end()

    async def _ask_at_the_end(self) -> None:
        try:
            self.figures.alive = (await self.client.get("/health", timeout=TIMEOUT_S)).is_success
        except httpx.HTTPError:
            self.figures.alive = False
        self.figures.preempted = int(sum((await self._metrics(PREEMPTIONS)).values()))

    async def _metrics(self, names: tuple[str, ...]) -> dict[str, float]:
        """Read the server's metrics of these names; without an answer there are none."""
        try:
            lines = (await self.client.get("/metrics", timeout=TIMEOUT_S)).text.splitlines()
        except httpx.HTTPError:
            return {}
        found = (line.rsplit(maxsplit=1) for line in lines if line.startswith(names))
        return {name: float(value) for name, value in found}

    async def _generated(self) -> float:
        """How many tokens the engine has generated."""
        metrics = await self._metrics(GENERATED)
        return sum(value for name, value in metrics.items() if "prefill" not in name)

    async def _client(self, chance: random.Random, deadline: float) -> None:
        while time.monotonic() < deadline and len(self.figures.wrong) < 20:
            action = chance.choice(self._actions)
            try:
                await self.answered(action(chance), action.__name__)
            except httpx.HTTPError as error:
                self.figures.wrong.append(f"{action.__name__}: {error!r}")
                await asyncio.sleep(1)

    async def answered(self, asking: Coroutine[Any, Any, None], what: str) -> None:
        """Wait for an answer for as long as the engine may need, however slow the machine is.

        Time alone does not show that a request is lost or starved, see ``STARVED_TOKENS``. After
        ``TIMEOUT_S``, a request is wrong if the engine generates nothing for as long again, or more
        tokens than that.
        """
        began = time.monotonic()
        generated: list[float] = []
        task = asyncio.create_task(asking)
        try:
            while not (await asyncio.wait([task], timeout=TIMEOUT_S))[0]:
                generated.append(await self._generated())
                new = generated[-1] - generated[0]
                if new > STARVED_TOKENS or generated[-1:] == generated[-2:-1]:
                    self.figures.wrong.append(
                        f"{what}: no answer in {time.monotonic() - began:.0f} s; after the first "
                        f"{TIMEOUT_S:g} s the engine generated {new:g} tokens; it has "
                        f"{await self._metrics(QUEUES)}"
                    )
                    return
            await task
        finally:
            task.cancel()
        self.figures.late += bool(generated)

    async def _alone(self, prompt: str) -> None:
        reply = await self._ask(prompt, [], max_tokens=FREE_TOKENS, temperature=0)
        self.free[prompt] = reply.json()["choices"][0]["text"]

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

    async def _ids(
        self, prompt: str, specs: Sequence[LogitsProcessorSpec], **fields: Any
    ) -> tuple[httpx.Response, list[int], list[int]]:
        """A reply, and the token ids of prompt and output, where it has them."""
        if self.engine == "vllm":
            reply = await self._ask(prompt, specs, **fields)
            if reply.is_success:
                choice = reply.json()["choices"][0]
                return reply, choice["prompt_token_ids"], choice["token_ids"]
            return reply, [], []
        # SGLang has the ids of an output on its own route alone; the prompt's are ours.
        prompt_ids = [100 + ord(each) for each in prompt]
        body = extra_body("sglang", specs)
        sampling = {"max_new_tokens": fields["max_tokens"], "temperature": fields["temperature"]}
        sampling |= {name: body.pop(name) for name in ("custom_params",) if name in body}
        reply = await self.client.post(
            "/generate", json={"input_ids": prompt_ids, "sampling_params": sampling, **body}
        )
        return reply, prompt_ids, reply.json()["output_ids"] if reply.is_success else []

    async def _obeyed(self, chance: random.Random) -> None:
        spec, prompt = good(chance), chance.choice(self._prompts)
        reply, prompt_ids, output = await self._ids(prompt, [spec], max_tokens=16, temperature=1.0)
        if not reply.is_success:
            self.figures.wrong.append(f"{spec.kind}: {reply.status_code} {reply.text[:200]}")
        elif not output or not obeys(spec, prompt_ids, output):
            self.figures.wrong.append(f"{spec} was not obeyed: {output}")
        self.figures.counts["obeyed"] += 1

    async def _free(self, chance: random.Random) -> None:
        prompt = chance.choice(self._prompts)
        reply = await self._ask(prompt, [], max_tokens=FREE_TOKENS, temperature=0)
        text = reply.json()["choices"][0]["text"] if reply.status_code == 200 else reply.text
        if text != (alone := self.free.get(prompt)):
            self.figures.wrong.append(f"a neighbour said {text!r}, alone {alone!r}")
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
        if reply.status_code != 200:
            self.figures.wrong.append(f"slow: {reply.status_code} {reply.text[:200]}")
        self.figures.counts["once slow"] += 1

    async def _raises(self, chance: random.Random) -> None:
        """A callable that raises after some tokens: its request alone is ended."""
        after = chance.randrange(6)
        fields: dict[str, Any] = {"prompt": chance.choice(self._prompts), "max_tokens": 16}
        if self._contrast:
            fields["vllm_xargs"] = {"raises_after": after}
        else:
            # Without EOS, so that nothing but the callable ends the request.
            specs = PluginSpec("raises", {"after": after}), MinTokensSpec(16, (EOS,))
            fields |= extra_body(self.engine, specs)
        reply = await self._post(fields)
        # vLLM has no way to fail one request from a worker; SGLang answers with the message.
        ended = (
            reply.status_code == 400 and "no more" in reply.text
            if self.engine == "sglang"
            else reply.is_success and reply.json()["choices"][0]["finish_reason"] == "stop"
        )
        if not ended:
            self.figures.wrong.append(f"raises: {reply.status_code} {reply.text[:200]}")
        self.figures.counts["raised"] += 1

    async def _left(self, chance: random.Random) -> None:
        """A stream that its client leaves after some tokens."""
        body = {"model": self.model, "prompt": chance.choice(self._prompts), "max_tokens": 64}
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
            held = 0
            for each in [process, *process.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    held += each.memory_info().rss
            self.figures.memory.append((time.monotonic() - began, held))
            await asyncio.sleep(1)


def bad_payloads() -> list[str]:
    """The payloads of the fuzzer's corpus that are refused, whatever the engine."""
    from tests.tools.fuzz.payloads import load, text_of

    found = ["Hello", '{"version": 2, "specs": []}', encode(ForcedTokenSequenceSpec((10**6,)))]
    for _, payload in load():
        text = text_of(payload)
        try:
            decode(text)
        except SpecError:
            found.append(text)
    return [text for text in found if text.isprintable() and len(text) < 1 << 21]


def install(folder: Path) -> dict[str, str]:
    """Install a package with a plugin that raises; returns the environment that has it."""
    (folder / "raising.py").write_text(PACKAGE)
    information = folder / "raising-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: raising\nVersion: 1\n")
    entries = f"[{plugins.GROUP}]\nraises = raising:make_rule\n"
    (information / "entry_points.txt").write_text(entries)
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    }


def server_of(
    engine: str, stack: AsyncExitStack, model: Path, *, contrast: bool, preempts: bool
) -> Server:
    """The engine's server, with everything of ours loaded, and little memory."""
    environment = install(Path(stack.enter_context(tempfile.TemporaryDirectory())))
    if engine == "sglang":
        from examples._support.sglang_server import SglangServer

        if preempts:  # SGLang keeps so much memory free that it retracts hardly any by itself
            environment |= {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "20"}
        return SglangServer(
            model, "--enable-metrics", "--max-total-tokens", "2048", env=environment
        )
    from examples._support import v2_on_cpu
    from examples._support.vllm_server import VllmServer

    environment["VLLM_USE_V2_MODEL_RUNNER"] = "1" if engine == "vllm-v2" else "0"
    if engine == "vllm-v2" and v2_on_cpu.is_needed():
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        children = v2_on_cpu.environment_of_children(folder)
        children["PYTHONPATH"] = os.pathsep.join(
            [children["PYTHONPATH"], environment["PYTHONPATH"]]
        )
        environment |= {"TRITON_INTERPRET": "1", **children}
        # Between the interpreter's arrays of all sizes, glibc would keep more and more free memory.
        environment["MALLOC_MMAP_THRESHOLD_"] = str(1 << 16)
    if contrast:
        arguments = ["--logits-processors", "raising:Adapter"]
    else:
        arguments = ["--logits-processors", "logitport.adapters.vllm:LogitportProcessor"]
        arguments += ["--middleware", "logitport.adapters.vllm.SpecMiddleware"]
    # A block has 128 tokens on a CPU: two long requests do not fit together.
    arguments += ["--num-gpu-blocks-override", "12", "--no-enable-prefix-caching"]
    return VllmServer(model, *arguments, "--dtype", "float32", env=environment)


async def soak(engine: str, seconds: float, clients: int, *, contrast: bool = False) -> Figures:
    """Run a server and its clients, and return what was seen."""
    async with AsyncExitStack() as stack:
        preempts = seconds >= LONG_S
        server = stack.enter_context(
            server_of(engine, stack, prepare(), contrast=contrast, preempts=preempts)
        )
        process = server.process
        assert process is not None  # it answers
        url = server.base_url.removesuffix("/v1")
        client = httpx.AsyncClient(base_url=url, timeout=None, trust_env=False)
        await stack.enter_async_context(client)
        name = engine.partition("-")[0]
        prompts = [BEFORE * preempts + each for each in ASKED]
        run = Soak(name, client, server.model_name, bad_payloads(), prompts, contrast=contrast)
        await run.run(seconds, clients, process)
        if not (run.figures.alive or contrast):
            run.figures.wrong.append(f"the server does not answer any more; {server.log}")
        return run.figures


def report(engine: str, seconds: float, figures: Figures) -> None:
    """Print the figures."""
    table = Table("figure", "value", title=f"{engine}, {seconds:g} s")
    table.add_row("tried", str(figures.counts.total()))
    for what, number in sorted(figures.counts.items()):
        table.add_row(what, str(number))
    table.add_row("answered late", str(figures.late))
    table.add_row("preempted", str(figures.preempted))
    took, size = figures.refusal_s
    table.add_row("slowest refusal", f"{took * 1000:.0f} ms, {size} bytes")
    table.add_row("longest gap between tokens", f"{figures.gap_s * 1000:.0f} ms")
    third, fourth = figures.quarters()
    table.add_row("memory, third quarter", f"{third / 2**20:.0f} MiB")
    table.add_row("memory, fourth quarter", f"{fourth / 2**20:.0f} MiB")
    table.add_row("engine deaths", str(int(not figures.alive)))
    table.add_row("wrong", str(len(figures.wrong)))
    console.print(table)
    for what in figures.wrong:
        console.print(f"  {what}", markup=False, highlight=False)


def main(
    engine: str = "vllm", seconds: float = 600, clients: int = 8, contrast: bool = False
) -> None:
    """Soak one engine: vllm, vllm-v2 or sglang."""
    figures = asyncio.run(soak(engine, seconds, clients, contrast=contrast))
    third, fourth = figures.quarters()
    if seconds >= LONG_S and not contrast and fourth > FLAT * third:
        figures.wrong.append(f"memory grows by {fourth / third - 1:.1%} in the second half")
    if contrast:
        figures.wrong.clear()  # each request after the first that raises
    report(engine, seconds, figures)
    sys.exit(figures.alive if contrast else bool(figures.wrong))


if __name__ == "__main__":
    ending.run(lambda: typer.run(main))
