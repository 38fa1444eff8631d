"""A real server under many clients for a while (``python -m tests.tools.soak --engine vllm``).

Clients ask at random, at once: with good specs, whose replies are held to the conformance suite's
checkers; with bad and huge ones from the fuzzer's corpus; with those that used to be slow; with a
plugin that raises; without specs, at temperature 0, for replies that are known; and streams that
are left half-way. The cache for keys and values is small. In runs of five minutes and more, prompts
are long enough that requests are preempted, and SGLang is asked to retract some.

It prints figures. The status is 1 if the server ends or hangs, if it leaves a request without an
answer, answers a good request wrongly or a bad one with anything but 400, if a request without
specs gets another reply than alone, or, in runs of five minutes and more, if memory grows in the
second half.

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
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
import typer
from logitport import spec as lp
from logitport.adapters import extra_body
from logitport.adapters.reference import obeys
from logitport.spec.limits import MAX_TOKEN_IDS
from rich.console import Console
from rich.table import Table

from examples._support import ending, v2_on_cpu
from examples._support.server import Server
from examples._support.smollm2 import prepare
from tests.adapters.packages import plugin_package
from tests.tools.fuzz import payloads
from tests.tools.neighbours import CASES

BEFORE = "The cat sat on the mat and looked at the sea. " * 9
"""What prompts of long runs begin with. Their replies need a second block of the cache half-way."""
ASKED = ["The capital of France is", "Name three rivers:", "Once upon a time", "2, 4, 6,"]
FREE_TOKENS = 24
EOS = 2
TIMEOUT_S = 120.0
"""After this time without an answer, the engine's progress decides: a machine may be slow."""
LONG_S = 300.0
"""From this length on, memory has had the time to become flat."""
FLAT = 1.02
"""The most that memory may grow from the third quarter to the fourth."""

PREEMPTIONS = "vllm:num_preemptions_total", "sglang:num_retracted_requests_total"
GENERATED = "vllm:generation_tokens_total", "sglang:realtime_tokens_total"
"""Metrics of the servers. The last two grow in every step; SGLang's also counts prompts apart."""

RAISING = """
def make_rule(params):
    def rule(output_ids, logits):
        if len(output_ids) == params["after"]:
            raise RuntimeError("no more")
    return rule
"""
"""A plugin that raises."""
ADAPTER = """
from raising import make_rule
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

class Adapter(AdapterLogitsProcessor):
    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params):
        after = (params.extra_args or {}).get("raises_after")
        if after is None:
            return None
        rule = make_rule({"after": after})
        return lambda output_ids, logits: rule(output_ids, logits) or logits
"""
"""The same for vLLM's own adapter."""


def good(chance: random.Random) -> lp.LogitsProcessorSpec:
    """Specs that the model obeys in few tokens."""
    tokens = [chance.randrange(100, 40_000) for _ in range(8)]
    return chance.choice(
        [
            lp.ForcedTokenSequenceSpec(tuple(tokens), EOS),
            lp.ForcedEndSpec(4, tuple(tokens[:3]), EOS),
            lp.AllowedTokensSpec(tuple(set(tokens))),
            lp.BannedTokensSpec(tuple(range(200, 200 + MAX_TOKEN_IDS))),
            lp.ChoiceSpec(((*tokens[:2],), (*tokens[2:6],)), EOS),
            lp.MinTokensSpec(8, (EOS,)),
            lp.NoRepeatNgramSpec(chance.randrange(1, 4)),
            lp.TriggerSpec((tokens[0],), tuple(tokens[1:4]), 2),
            lp.ThinkingBudgetSpec(3, (tokens[0],), (tokens[1],), tuple(tokens[2:4])),
        ]
    )


def bad() -> list[str]:
    """Payloads that are refused, whatever the engine: most are of the fuzzer's corpus."""
    found = [
        "Hello",
        '{"version": 2, "specs": []}',
        lp.encode(lp.ForcedTokenSequenceSpec((10**6,))),
    ]
    for _, payload in payloads.load():
        text = payloads.text_of(payload)
        try:
            lp.decode(text)
        except lp.SpecError:
            found.append(text)
    return [text for text in found if text.isprintable() and len(text) < 1 << 21]


Ask = Callable[[random.Random], Coroutine[Any, Any, None]]


class Soak:
    """One server, its clients, and what they saw.

    Args:
        engine: ``vllm`` or ``sglang``.
        client: for its server.
        model: the served model's name.
        prompts: of the requests.
        contrast: whether the clients ask vLLM's own adapter for what raises, and for nothing else.

    Attributes:
        counts: of requests, by what was asked.
        wrong: what was not as it should be.
        memory: bytes of all processes of the server, second by second.
        late: answers that came after ``TIMEOUT_S``, from an engine that was working.
        preempted: preemptions that the engine reports.
        alive: whether the server answered at the end.
    """

    def __init__(
        self,
        engine: str,
        client: httpx.AsyncClient,
        model: str,
        prompts: Sequence[str],
        *,
        contrast: bool,
    ) -> None:
        self._engine, self._client, self._model = engine, client, model
        self._prompts, self._contrast = prompts, contrast
        self._bad = bad()
        self._alone: dict[str, str] = {}
        self._asks: dict[str, Ask] = {"neighbours": self._ask_free, "raised": self._ask_raising}
        if not contrast:
            self._asks |= {"obeyed": self._ask_good, "refused": self._ask_bad}
            self._asks |= {"once slow": self._ask_slow, "left": self._leave}
        self.counts = Counter[str]()
        self.wrong = list[str]()
        self.memory = list[int]()
        self.late = self.preempted = 0
        self.alive = False

    async def run(self, seconds: float, clients: int, process: psutil.Process) -> None:
        """Ask for so long."""
        for prompt in self._prompts:
            await self._answered(self._learn(prompt), "alone")
        deadline = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(deadline, process))
            for seed in range(clients):
                group.create_task(self._ask_on(random.Random(seed), deadline))
        with suppress(httpx.HTTPError):
            self.alive = (await self._client.get("/health", timeout=TIMEOUT_S)).is_success
        self.preempted = int(sum((await self._metrics(PREEMPTIONS)).values()))

    def quarters(self) -> tuple[float, float]:
        """The median of the memory in the third quarter of the time, and in the fourth."""
        held = self.memory or [0]
        half, three = len(held) // 2, len(held) * 3 // 4
        return median(held[half:three] or held), median(held[three:])

    async def _watch(self, deadline: float, process: psutil.Process) -> None:
        while time.monotonic() < deadline and process.is_running():
            held = 0
            for each in [process, *process.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    held += each.memory_info().rss
            self.memory.append(held)
            await asyncio.sleep(1)

    async def _ask_on(self, chance: random.Random, deadline: float) -> None:
        often = ("obeyed", "neighbours")
        while time.monotonic() < deadline and len(self.wrong) < 20:
            what = chance.choice([*self._asks, *(each for each in often if each in self._asks)])
            try:
                await self._answered(self._asks[what](chance), what)
                self.counts[what] += 1
            except httpx.HTTPError as error:
                self.wrong.append(f"{what}: {error!r}")
                await asyncio.sleep(1)

    async def _answered(self, asking: Awaitable[None], what: str) -> None:
        """Wait for an answer for as long as the engine generates anything, however slowly."""
        task, before = asyncio.ensure_future(asking), -1.0
        while not (await asyncio.wait([task], timeout=TIMEOUT_S))[0]:
            metrics = await self._metrics(GENERATED)
            generated = sum(metrics[name] for name in metrics if "prefill" not in name)
            if generated == before:
                task.cancel()
                self.wrong.append(f"{what}: no answer, and no token in {TIMEOUT_S:g} s")
                return
            before = generated
        await task
        self.late += before >= 0

    async def _metrics(self, names: tuple[str, ...]) -> dict[str, float]:
        """Read the server's metrics of these names; without an answer there are none."""
        try:
            lines = (await self._client.get("/metrics", timeout=TIMEOUT_S)).text.splitlines()
        except httpx.HTTPError:
            return {}
        found = (line.rsplit(maxsplit=1) for line in lines if line.startswith(names))
        return {name: float(value) for name, value in found}

    async def _post(self, prompt: str, **fields: Any) -> httpx.Response:
        body = {"model": self._model, "prompt": prompt, "return_token_ids": True, **fields}
        return await self._client.post("/v1/completions", json=body)

    async def _say_free(self, prompt: str) -> str:
        reply = await self._post(prompt, max_tokens=FREE_TOKENS, temperature=0)
        return reply.json()["choices"][0]["text"] if reply.is_success else reply.text

    async def _learn(self, prompt: str) -> None:
        self._alone[prompt] = await self._say_free(prompt)

    async def _ask_free(self, chance: random.Random) -> None:
        prompt = chance.choice(self._prompts)
        said, alone = await self._say_free(prompt), self._alone.get(prompt)
        if said != alone:
            self.wrong.append(f"a neighbour said {said!r}, alone {alone!r}")

    async def _ask_good(self, chance: random.Random) -> None:
        spec, prompt = good(chance), chance.choice(self._prompts)
        prompt_ids = [100 + ord(each) for each in prompt]
        body = extra_body(self._engine, [spec])
        if self._engine == "sglang":  # which has the ids of an output on its own route alone
            sampling = {"max_new_tokens": 16, "temperature": 1.0}
            sampling |= {name: body.pop(name) for name in ("custom_params",) if name in body}
            body |= {"input_ids": prompt_ids, "sampling_params": sampling}
            reply = await self._client.post("/generate", json=body)
        else:
            reply = await self._post(prompt, max_tokens=16, temperature=1.0, **body)
        if not reply.is_success:
            self.wrong.append(f"{spec.kind}: {reply.status_code} {reply.text[:200]}")
            return
        output = (answer := reply.json()).get("output_ids")
        if self._engine == "vllm":
            (choice,) = answer["choices"]
            prompt_ids, output = choice["prompt_token_ids"], choice["token_ids"]
        if not output or not obeys(spec, prompt_ids, output):
            self.wrong.append(f"{spec} was not obeyed: {output}")

    async def _ask_bad(self, chance: random.Random) -> None:
        payload = chance.choice(self._bad)
        place = "custom_params" if self._engine == "sglang" else "vllm_xargs"
        reply = await self._post("Hi", max_tokens=4, **{place: {"logitport": payload}})
        if reply.status_code != 400:
            self.wrong.append(f"{payload[:200]}: {reply.status_code}")

    async def _ask_slow(self, chance: random.Random) -> None:
        body = extra_body(self._engine, chance.choice(CASES).specs(0))
        reply = await self._post("11 " * 300, max_tokens=16, temperature=1.0, **body)
        if reply.status_code != 200:
            self.wrong.append(f"slow: {reply.status_code} {reply.text[:200]}")

    async def _ask_raising(self, chance: random.Random) -> None:
        """A callable that raises after some tokens: its request alone is ended."""
        after = chance.randrange(6)
        # Without EOS, so that nothing but the callable ends the request.
        specs = lp.PluginSpec("raises", {"after": after}), lp.MinTokensSpec(16, (EOS,))
        body: Any = {"vllm_xargs": {"raises_after": after}}
        if not self._contrast:
            body = extra_body(self._engine, specs)
        reply = await self._post(chance.choice(self._prompts), max_tokens=16, **body)
        # vLLM has no way to fail one request from a worker; SGLang answers with the message.
        ended = (
            reply.status_code == 400 and "no more" in reply.text
            if self._engine == "sglang"
            else reply.is_success and reply.json()["choices"][0]["finish_reason"] == "stop"
        )
        if not ended:
            self.wrong.append(f"raises: {reply.status_code} {reply.text[:200]}")

    async def _leave(self, chance: random.Random) -> None:
        """A stream that its client leaves after some tokens."""
        body = {"model": self._model, "prompt": chance.choice(self._prompts), "max_tokens": 64}
        body |= {"stream": True, **extra_body(self._engine, lp.MinTokensSpec(60, (EOS,)))}
        left = chance.randrange(2, 40)
        async with self._client.stream("POST", "/v1/completions", json=body) as reply:
            async for line in reply.aiter_lines():
                left -= line.startswith("data:")
                if not left:
                    break


def server_of(engine: str, stack: ExitStack, *, contrast: bool, preempts: bool) -> Server:
    """The engine's server, with everything of ours loaded, and little memory."""

    def folder() -> Path:
        return Path(stack.enter_context(tempfile.TemporaryDirectory()))

    model, plugins = prepare(), folder()
    modules = {"raising": RAISING, "adapter": ADAPTER}
    stack.enter_context(plugin_package(plugins, {"raises": "raising:make_rule"}, modules))
    path = [str(plugins), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment: dict[str, str] = {}
    if engine == "sglang":
        from examples._support.sglang_server import SglangServer

        if preempts:  # SGLang keeps so much memory free that it retracts hardly any by itself
            environment |= {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "20"}
        environment["PYTHONPATH"] = os.pathsep.join(path)
        arguments = "--enable-metrics", "--max-total-tokens", "2048"
        return SglangServer(model, *arguments, env=environment)
    from examples._support.vllm_server import VllmServer

    environment["VLLM_USE_V2_MODEL_RUNNER"] = "1" if engine == "vllm-v2" else "0"
    if engine == "vllm-v2" and v2_on_cpu.is_needed():
        environment |= v2_on_cpu.environment_of_children(folder())
        path.insert(0, environment["PYTHONPATH"])
        environment["TRITON_INTERPRET"] = "1"
        # Between the interpreter's arrays of all sizes, glibc would keep more and more free memory.
        environment["MALLOC_MMAP_THRESHOLD_"] = str(1 << 16)
    environment["PYTHONPATH"] = os.pathsep.join(path)
    arguments = ["--logits-processors", "adapter:Adapter"]
    if not contrast:
        arguments = ["--logits-processors", "logitport.adapters.vllm:LogitportProcessor"]
        arguments += ["--middleware", "logitport.adapters.vllm.SpecMiddleware"]
    # A block has 128 tokens on a CPU: two long requests do not fit together.
    arguments += ["--num-gpu-blocks-override", "12", "--no-enable-prefix-caching"]
    return VllmServer(model, *arguments, "--dtype", "float32", env=environment)


async def soak(engine: str, seconds: float, clients: int, *, contrast: bool) -> Soak:
    """Run a server and its clients, and return what was seen."""
    preempts = seconds >= LONG_S
    with ExitStack() as stack:
        server = server_of(engine, stack, contrast=contrast, preempts=preempts)
        stack.enter_context(server)
        assert server.process is not None  # it answers
        url = server.base_url.removesuffix("/v1")
        async with httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as client:
            prompts = [BEFORE * preempts + each for each in ASKED]
            name = engine.partition("-")[0]
            seen = Soak(name, client, server.model_name, prompts, contrast=contrast)
            await seen.run(seconds, clients, server.process)
        if not seen.alive:
            seen.wrong.append(f"the server does not answer any more; {server.log}")
        third, fourth = seen.quarters()
        if preempts and fourth > FLAT * third:
            seen.wrong.append(f"memory grows by {fourth / third - 1:.1%} in the second half")
    return seen


def main(
    engine: str = "vllm", seconds: float = 600, clients: int = 8, contrast: bool = False
) -> None:
    """Soak one engine: vllm, vllm-v2 or sglang."""
    seen = asyncio.run(soak(engine, seconds, clients, contrast=contrast))
    if contrast:
        seen.wrong.clear()  # each request after the first that raises
    third, fourth = seen.quarters()
    table = Table("figure", "value", title=f"{engine}, {seconds:g} s")
    for what, value in [
        ("tried", seen.counts.total()),
        *sorted(seen.counts.items()),
        ("answered late", seen.late),
        ("preempted", seen.preempted),
        ("memory, third quarter", f"{third / 2**20:.0f} MiB"),
        ("memory, fourth quarter", f"{fourth / 2**20:.0f} MiB"),
        ("engine deaths", int(not seen.alive)),
        ("wrong", len(seen.wrong)),
    ]:
        table.add_row(what, str(value))
    console = Console()
    console.print(table)
    for what in seen.wrong:
        console.print(f"  {what}", markup=False, highlight=False)
    sys.exit(seen.alive if contrast else bool(seen.wrong))


if __name__ == "__main__":
    ending.run(lambda: typer.run(main))
