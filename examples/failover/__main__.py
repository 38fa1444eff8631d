"""Kill vLLM servers in the middle of replies: ``make demo-failover``.

Two servers and the proxy run on loopback. Each reply must be the same as without a kill.
"""

import json
import logging
import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import httpx
import psutil
import typer
from rich.console import Console

from .._support.ending import run
from .._support.server import HOST
from .._support.serving import serving
from .._support.smollm2 import prepare
from .._support.vllm_server import LOGITPORT, VllmServer
from ..demo import Stopwatch
from .proxy import proxy

LOGS = Path(__file__).resolve().parents[2] / "build" / "failover"

# Two servers share the cores, and rounding must not decide between two tokens.
ARGUMENTS = *LOGITPORT, *("--dtype", "float32")
ENVIRONMENT = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
MAX_MODEL_LEN = 1024

SHEEP = "".join(f"{i} sheep, " for i in range(1, 31)) + "good night. 🐑🐑🐑"
RIVER = (
    "The Danube passes Vienna, Bratislava, Budapest and Belgrade on its way to the Black Sea; the"
)

console = Console(highlight=False, markup=False, soft_wrap=True)


def request(prompt: str, *specs: dict[str, Any], is_chat: bool = False) -> dict[str, Any]:
    """Make the body of a greedy request."""
    body: dict[str, Any] = {"max_tokens": 96, "temperature": 0, "stream": True}
    body |= {"return_token_ids": True, "stream_options": {"include_usage": True}}
    body |= {"vllm_xargs": {"logitport": [*specs]}} if specs else {}
    if is_chat:
        return body | {"messages": [{"role": "user", "content": prompt}]}
    return body | {"prompt": prompt}


REQUESTS = {
    "forced_sequence": request(
        "Count sheep.", {"kind": "forced_sequence", "text": SHEEP}, is_chat=True
    )
    | {"max_tokens": 400},
    "no specs": request("Tell me about rivers. 🌊", is_chat=True),
    "phases": request(
        RIVER,
        {
            "kind": "phases",
            "phases": [
                {"ends": [{"n": 32}]},
                {"specs": [{"kind": "forced_sequence", "text": " (Now a list: Rhône, Saône.)"}]},
            ],
        },
    ),
    "thinking_budget": request(
        "Which river is the longest?\n<think>\nI know that",
        {
            "kind": "thinking_budget",
            "budget": 12,
            "start_text": "<think>",
            "end_text": "</think>",
            "message_text": " That is enough.",
        },
    ),
    "choice": request(
        "Where is the sheep?",
        {"kind": "choice", "texts": [f"It is {SHEEP[:150]} 🐑", f"It was {SHEEP[:150]} 🌊"]},
        is_chat=True,
    ),
    "trigger": request(
        RIVER,
        {"kind": "trigger", "trigger_text": " the", "text": " blue 🌊", "times": 8},
    ),
    "no_loop": request(
        "a b c a b c a b c", {"kind": "no_loop", "times": 3, "min_tokens": 12, "max_period": 24}
    ),
    "banned_text": request(
        "Tell me about rivers.",
        {"kind": "banned_text", "texts": ["river", "water"], "ignore_case": True},
        is_chat=True,
    ),
    "automaton": request(
        RIVER,
        {
            "kind": "automaton",
            "states": [{"default": 1, "timer": 5}, {"timeout": 2}, {"force": 28, "default": 0}],
        },
    ),
    "no specs, completion": request(RIVER),
}


@dataclass
class Received:
    """What a client has of a reply in the end.

    Attributes:
        text, token_ids, reason, usage: what must be equal.
        server: the URL of the server that began the reply.
    """

    server: str = field(compare=False)
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    reason: str = ""
    usage: dict[str, Any] = field(default_factory=dict)


def ask(
    url: str, body: dict[str, Any], *, after: int = -1, strike: Callable[[str], None] = print
) -> Received:
    """Send a request and return its reply.

    Args:
        url: the proxy's URL.
        body: the request.
        after: the number of tokens after which ``strike`` is called, with the server's URL.
        strike: kills this server.
    """
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    with httpx.stream("POST", url + path, json=body, timeout=600, trust_env=False) as answer:
        if answer.is_error:
            raise RuntimeError(answer.read().decode())
        received = Received(answer.headers["x-server"])
        for line in answer.iter_lines():
            if 0 <= after <= len(received.token_ids):
                strike(received.server)
                after = -1
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                raise RuntimeError(chunk["error"])
            received.usage = chunk.get("usage") or received.usage
            for choice in chunk["choices"]:
                received.text += choice["delta"]["content"] if "delta" in choice else choice["text"]
                received.token_ids += choice.get("token_ids") or ()
                received.reason = choice["finish_reason"] or received.reason
    return received


def kill(servers: dict[str, VllmServer], url: str, *, engine_alone: bool) -> None:
    """Kill a server with SIGKILL: all its processes, or those of its engine alone."""
    process = servers[url].process
    assert process is not None
    children = process.children(recursive=True)
    for each in children if engine_alone else [process, *children]:
        with suppress(psutil.NoSuchProcess):
            each.kill()


class Deaths(logging.Handler):
    """Counts and prints what the proxy logs of servers that died in the middle of a reply."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        console.print(f"  proxy: {record.getMessage()}", style="dim")


def main(
    kills: Annotated[int, typer.Option(min=1, help="How many servers are killed.")] = 1,
    seed: Annotated[int, typer.Option(help="Chooses the moments of the kills.")] = 0,
) -> None:
    """Run two servers of vLLM behind the proxy, on loopback, and kill the one that replies."""
    watch, chance = Stopwatch(), random.Random(seed)
    with watch.part("prepare the model"):
        model = prepare()
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model).backend_tokenizer
    pair = [
        VllmServer(model, *ARGUMENTS, env=ENVIRONMENT, log=LOGS / f"{name}.log")
        for name in ("one", "two")
    ]
    names = [[*REQUESTS][i % len(REQUESTS)] for i in range(kills)]
    equal, deaths = Counter[str](), Deaths()
    logging.getLogger(proxy.__module__).addHandler(deaths)
    with ExitStack() as stack:
        with watch.part("start two servers"):
            for server in pair:
                stack.callback(server.stop)
                server.launch()
            for server in pair:
                server.wait()
        servers = {f"http://{HOST}:{server.port}": server for server in pair}
        application = proxy([*servers], tokenizer, max_model_len=MAX_MODEL_LEN)
        url = stack.enter_context(serving(application))
        with watch.part("replies without a kill"):
            expected = {name: ask(url, REQUESTS[name]) for name in dict.fromkeys(names)}
        with watch.part("kills, with restarts"):
            for i, name in enumerate(names):
                for server in pair:
                    server.wait()
                tokens, engine_alone = len(expected[name].token_ids), i % 3 == 2
                after = chance.randrange(tokens)
                strike = partial(kill, servers, engine_alone=engine_alone)
                received = ask(url, REQUESTS[name], after=after, strike=strike)
                is_equal = received == expected[name]
                equal[name] += is_equal
                what = "its engine" if engine_alone else "its server"
                same = "the same reply" if is_equal else "ANOTHER REPLY"
                console.print(f"{name}: {what} killed after {after} of {tokens} tokens: {same}")
                if kills == 1 or not is_equal:
                    console.print(f"  without a kill: {expected[name].text!r}")
                    console.print(f"     with a kill: {received.text!r}")
                servers[received.server].stop()
                if i + 1 < kills:
                    servers[received.server].launch()
    console.print()
    for name, number in Counter(names).items():
        console.print(f"{name}: {equal[name]} of {number} replies equal")
    console.print(watch.table())
    if wrong := kills - equal.total():
        console.print(f"\n{wrong} of {kills} replies differ.", style="red")
        raise typer.Exit(1)
    console.print(f"\n{kills} of {kills} replies are the same as without a kill.")
    console.print(f"{deaths.count} of them were continued, after {kills} kills.")


if __name__ == "__main__":
    run(lambda: typer.run(main))
