"""A prefill and a decode server of SGLang, which hands the first token over with the KV cache."""

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from logitport import spec as lp
from logitport.adapters import extra_body

from examples._support.server import HOST, free_port
from examples._support.sglang_server import SglangServer

pytestmark = pytest.mark.slow

PROMPT = "The capital of France is a city that everybody knows and likes, namely"
KEEPS_RETRACTED = ("--disaggregation-decode-retraction-backup", "cpu_tensor")
"""Where there is no GPU: the default copies from one."""

ARGUMENTS = (
    "--enable-metrics",
    "--disable-radix-cache",  # where a prefix is known, a worker asks for an event of a GPU
    *("--disaggregation-transfer-backend", "nixl"),
    *(() if shutil.which("nvidia-smi") else KEEPS_RETRACTED),
)
TRANSPORT = {"UCX_TLS": "tcp,shm,self", "UCX_NET_DEVICES": "lo"}


@dataclass
class Pair:
    """Two servers, which are both asked for each request, as a router of SGLang does."""

    prefill: SglangServer
    decode: SglangServer
    bootstrap_port: int

    def __post_init__(self) -> None:
        self._rooms = count(1)

    def ask(self, body: dict[str, Any]) -> list[httpx.Response]:
        where = {"bootstrap_host": HOST, "bootstrap_port": self.bootstrap_port}
        room = {"bootstrap_room": next(self._rooms)}
        request = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, **where, **room, **body}

        async def both() -> list[httpx.Response]:
            async with httpx.AsyncClient(timeout=600, trust_env=False) as client:
                urls = [f"{server.base_url}/completions" for server in (self.prefill, self.decode)]
                return await asyncio.gather(*(client.post(url, json=request) for url in urls))

        return asyncio.run(both())

    def says(self, specs: Any, generation_only: bool = True) -> tuple[str, str]:
        """What prefill says, which is one token, and what decode says, which begins with it."""
        body = extra_body("sglang", specs, generation_only=generation_only)
        replies = [reply.json() for reply in self.ask({"model": "", **body})]
        first, whole = (reply["choices"][0]["text"] for reply in replies)
        return first, whole


@pytest.fixture(scope="module")
def pair(model: Path) -> Iterator[Pair]:
    port = free_port()
    prefill, decode = (
        SglangServer(
            model,
            *ARGUMENTS,
            *("--disaggregation-mode", mode, "--disaggregation-bootstrap-port", str(port)),
            env=TRANSPORT,
        )
        for mode in ("prefill", "decode")
    )
    try:
        prefill.launch()
        decode.launch()
        prefill.wait()
        decode.wait()
        yield Pair(prefill, decode, port)
    finally:
        prefill.stop()
        decode.stop()


def test_specs_act_on_decode_alone(pair: Pair, tokenizer: Any):
    """As ``docs/disaggregation.md`` has it of tokens that are handed over."""
    _, free = pair.says(())
    first, second, *_ = tokenizer.encode(free)
    text = lambda words: tuple(tokenizer.encode(words))  # noqa: E731
    eos = tokenizer.eos_token_id
    fits = lp.ForcedTokenSequenceSpec((first, *text(" or Rome")), eos)
    cases: list[tuple[lp.LogitsProcessorSpec, str]] = [
        (fits, " Paris or Rome"),
        (lp.ForcedTokenSequenceSpec(text("Hello world!"), eos), " ParisHello world!"),
        (lp.ChoiceSpec((text(" Paris, of course"), text(" Rome")), eos), " Paris, of course"),
        (lp.ChoiceSpec((text(" Oslo"), text(" Rome")), eos), " Paris Rome"),
        (lp.TriggerSpec((first,), text(" or Oslo")), " Paris or Oslo"),
        (lp.BannedTokensSpec((first,)), free),  # too late for that one
    ]
    assert free.startswith(" Paris")
    for spec, expected in cases:
        said, whole = pair.says(spec)
        assert said == " Paris"
        assert whole.startswith(expected), spec
    _, unlike = pair.says((lp.BannedTokensSpec((second,)), lp.NoRepeatNgramSpec(2)))
    assert unlike.startswith(" Paris")
    assert unlike != free


def test_the_explicit_choice_shapes_the_first_token_too(pair: Pair, tokenizer: Any):
    spec = lp.ForcedTokenSequenceSpec.from_text("Hello world!", tokenizer)
    assert pair.says(spec, generation_only=False) == ("Hello", "Hello world!")


def test_each_worker_refuses_and_counts(pair: Pair):
    refused = pair.ask({"model": "", **extra_body("sglang", lp.BannedTokensSpec((49152,)))})
    assert [each.status_code for each in refused] == [400, 400]
    pair.says(lp.BannedTokensSpec((1,)))
    for server, counted in (
        (pair.prefill, 'decision="gated",stage="prefill"'),
        (pair.decode, 'decision="admitted",stage="decode"'),
    ):
        url = f"http://{HOST}:{server.port}/metrics"
        metrics = httpx.get(url, timeout=600, trust_env=False).text
        assert f"logitport_requests_total{{{counted}}}" in metrics
