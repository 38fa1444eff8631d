"""Specs behind Ray Serve LLM: two replicas of vLLM, then a prefill and a decode deployment.

``make demo-ray``. Everything runs on loopback and on CPUs; no process is left.
"""

# pyright: reportMissingImports=false
# Ray is in an environment of its own.

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from logitport.adapters import extra_body, receipt
from logitport.spec import BannedTokensSpec, LogitsProcessorSpec
from openai import AsyncOpenAI, BadRequestError, DefaultAsyncHttpxClient
from rich.console import Console

from .._support.ending import run
from .._support.server import HOST, free_port
from .._support.smollm2 import prepare
from ..demo import Stopwatch
from ..disaggregated.__main__ import requests

MARK = "LOGITPORT_DEMO_RAY"
"""A variable that all processes of the demo have."""

ENVIRONMENT = {
    MARK: str(os.getpid()),
    "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "examples.ray_serve.middlewares:middlewares",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # and not 15
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    # NIXL from memory to memory, on loopback.
    "UCX_TLS": "tcp,shm,self",
    "UCX_NET_DEVICES": "lo",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": HOST,
}

ENGINE = {
    "logits_processors": ["logitport.adapters.vllm:LogitportProcessor"],
    "dtype": "float32",  # rounding must not decide between two tokens
    "block_size": 32,
    "enable_prefix_caching": False,
    "enforce_eager": True,
    "max_model_len": 1024,
}
"""The arguments of vLLM. With the first, a replica without logitport does not start."""

NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}

BAD = BannedTokensSpec((10**6,))
"""The model has no such token."""

Asked = dict[str, tuple[str, LogitsProcessorSpec | None]]

console = Console(highlight=False, soft_wrap=True)


def config(model: Path, *, replicas: int = 1, **engine: Any) -> dict[str, Any]:
    """Make the ``LLMConfig`` of a deployment.

    Args:
        model: folder of the checkpoint.
        replicas: the number of engines.
        engine: more arguments for vLLM.
    """
    return {
        "model_loading_config": {"model_id": model.name, "model_source": str(model)},
        "deployment_config": {"num_replicas": replicas, "ray_actor_options": {"num_cpus": 0}},
        "placement_group_config": {"bundles": [{"CPU": 0.5}]},  # no GPU: vLLM on CPUs
        "engine_kwargs": ENGINE | engine,
    }


@contextmanager
def ray_serve() -> Iterator[str]:
    """Run Ray with an HTTP proxy on loopback; yield the URL of the OpenAI API."""
    import ray
    from ray import serve

    ray.init(num_cpus=4, include_dashboard=False, _node_ip_address=HOST, log_to_driver=False)
    try:
        port = free_port()
        serve.start(http_options={"host": HOST, "port": port})
        yield f"http://{HOST}:{port}/v1"
    finally:
        with suppress(Exception):
            serve.shutdown()
        ray.shutdown()


async def ask(base_url: str, model: str, asked: Asked) -> dict[str, str]:
    """Send all requests at once, with each carrier; return the texts by name and carrier."""
    async with AsyncOpenAI(
        base_url=base_url,
        api_key="-",
        max_retries=0,
        timeout=600,
        http_client=DefaultAsyncHttpxClient(trust_env=False),
    ) as client:

        async def one(prompt: str, spec: LogitsProcessorSpec | None, carrier: Any) -> str:
            body = extra_body("vllm", spec, carrier=carrier) if spec else None
            try:
                reply = await client.completions.create(
                    model=model, prompt=prompt, temperature=0, max_tokens=32, extra_body=body
                )
            except BadRequestError as error:
                return f"HTTP 400: {error.message}".partition(" (Request ID")[0]
            if spec:
                receipt(reply, spec, carrier=carrier)
            return reply.choices[0].text

        sent = [
            (f"{name}, {carrier}", one(prompt, spec, carrier))
            for name, (prompt, spec) in asked.items()
            for carrier in (("field", "schema") if spec else ("none",))
        ]
        texts = await asyncio.gather(*(reply for _, reply in sent))
    return dict(zip((name for name, _ in sent), texts, strict=True))


EXPECTED = {
    "free": ("Paris",),
    "forced sequence": ("I would rather not say.",),
    "choice": (" London", " Berlin", " Belgrade"),
    "thinking budget": ("That is enough.</think>",),
    "bad": ("logitport: ",),
}
"""What a reply has one of, by the name of the request."""


def is_right(replies: dict[str, str]) -> bool:
    """Whether each reply is as its spec says; both carriers have the same."""
    right = True
    for name, text in replies.items():
        kind, _, carrier = name.partition(", ")
        is_expected = any(each in text for each in EXPECTED[kind])
        if not is_expected or (carrier == "schema" and text != replies[f"{kind}, field"]):
            console.print(f"WRONG: {name}: expected {EXPECTED[kind]}, got {text!r}", style="red")
            right = False
    return right


def left() -> list[psutil.Process]:
    """Find processes of the demo other than this one."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == ENVIRONMENT[MARK]:
                found.append(process)
    return found


def main() -> int:
    """Run both deployments; return the exit status, 0 if every answer is as expected."""
    watch = Stopwatch()
    os.environ |= ENVIRONMENT
    with watch.part("prepare the model"):
        model = prepare()
        from transformers import AutoTokenizer

        asked: Asked = requests(AutoTokenizer.from_pretrained(model))
        asked["bad"] = ("?", BAD)
    with watch.part("Ray: start"):
        running = ray_serve()
        base_url = running.__enter__()
    try:
        from ray import serve
        from ray.serve.llm import build_openai_app, build_pd_openai_app

        with watch.part("two replicas: start"):
            serve.run(build_openai_app({"llm_configs": [config(model, replicas=2)]}))
        with watch.part("two replicas: ask"):
            replicas = asyncio.run(ask(base_url, model.name, asked))
        serve.delete("default")
        with watch.part("prefill + decode: start"):
            pair = {f"{role}_config": config(model, kv_transfer_config=NIXL) for role in ROLES}
            serve.run(build_pd_openai_app(pair))
        with watch.part("prefill + decode: ask"):
            apart = asyncio.run(ask(base_url, model.name, asked))
    finally:
        with watch.part("stop"):
            running.__exit__(None, None, None)
            for process in psutil.wait_procs(left(), timeout=10)[1]:  # which Ray has left behind
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left(), timeout=10)
    for name, text in replicas.items():
        console.print(f"{name}\n      two replicas: {text!r}", markup=False)
        console.print(f"  prefill + decode: {apart[name]!r}", markup=False)
    console.print(watch.table())
    remain = left()
    if right := is_right(replicas) and is_right(apart) and replicas == apart and not remain:
        console.print("\nEvery answer is as expected, with a receipt; no process is left.")
    elif remain:
        console.print(f"\nLeft behind: {remain}", style="red")
    return 0 if right else 1


ROLES = "prefill", "decode"

if __name__ == "__main__":
    run(main)
