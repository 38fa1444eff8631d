"""Prefill on one real server, decode on another: the same outputs as from one engine."""

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from logitport import spec as lp
from logitport.adapters.vllm import KEY
from openai import BadRequestError, OpenAI

from examples.disaggregated.deployment import Deployment, counted
from tests.adapters.packages import plugin_package
from tests.support.doctor import findings

from .in_process import FLAG, engine, params

pytestmark = [
    pytest.mark.slow,
    pytest.mark.only("v1", reason="test_stages.py hands a prompt over under V2, too"),
]

PROMPT = (
    "The Seine flows through Paris, the Thames through London and the Spree through Berlin. The "
    "Danube passes Vienna, Bratislava, Budapest and Belgrade on its way to the Black Sea; the "
    "Rhine comes from the Alps, touches Basel, Strasbourg and Cologne.\n<think>\nI know that"
)
LENGTH = 16  # tokens of an output

PLUGIN = """
def make_rule(params):
    def rule(output_ids, logits):
        logits[len(output_ids) % 2 :: 2] -= params["by"]
    return rule
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A folder in which a package with a plugin is installed, for all Python processes."""
    folder = tmp_path_factory.mktemp("site")
    with plugin_package(folder, {"odd": "odd:make_rule"}, {"odd": PLUGIN}):
        yield str(folder)


class Aggregated(NamedTuple):
    """Specs by their kind, and what one engine says with each and, by "free", without any."""

    specs: dict[str, lp.LogitsProcessorSpec]
    outputs: dict[str, list[int]]


@pytest.fixture(scope="module")
def aggregated(model: Path, tokenizer: Any, plugin: str) -> Aggregated:
    with engine(model, block_size=32, logits_processors=FLAG) as running:
        (free,) = running.generate([PROMPT], [params(max_tokens=LENGTH)])
        specs = {spec.kind: spec for spec in _one_of_each(tokenizer, free.token_ids)}
        results = running.generate(
            [PROMPT] * len(specs), [params(spec, max_tokens=LENGTH) for spec in specs.values()]
        )
    outputs = {kind: result.token_ids for kind, result in zip(specs, results, strict=True)}
    assert all(output != free.token_ids for output in outputs.values())
    return Aggregated(specs, outputs | {"free": free.token_ids})


def _one_of_each(tokenizer: Any, free: list[int]) -> list[lp.LogitsProcessorSpec]:
    """One for each way in which specs act. Each changes what the model says by itself."""
    return [
        lp.ForcedTokenSequenceSpec.from_text(" made of paper.", tokenizer),
        lp.ThinkingBudgetSpec.from_text(6, tokenizer, message=" Enough."),  # reads the prompt
        lp.NoRepeatNgramSpec(1),
        lp.BannedTextSpec((tokenizer.decode(free[1:3]).strip(),)),
        lp.PluginSpec("odd", {"by": 50}),
        lp.GrammarSpec(regex=r" [a-z]{4,9}\."),
        lp.SamplingSpec(temperature=0, repetition_penalty=1.8),
    ]


@pytest.fixture(scope="module")
def deployment(
    aggregated: Aggregated, model: Path, plugin: str, server_environment: dict[str, str]
) -> Iterator[Deployment]:
    paths = os.pathsep.join([plugin, server_environment["PYTHONPATH"]])
    with Deployment(model, env={"PYTHONPATH": paths}) as deployment:
        yield deployment


@pytest.fixture(scope="module", params=[True, False], ids=["copied whole", "decode alone"])
def proxied(request: pytest.FixtureRequest, deployment: Deployment) -> Iterator[OpenAI]:
    """A client of a proxy that sends specs to both servers, or to the decode server alone."""
    with deployment.proxy(copies_specs=request.param) as url:
        yield OpenAI(base_url=url, api_key="none", max_retries=0, timeout=600)


def test_outputs_are_those_of_one_engine(
    proxied: OpenAI, deployment: Deployment, aggregated: Aggregated, request: Any, tokenizer: Any
):
    before = _counts(deployment)
    asked = {kind: _body(spec) for kind, spec in aggregated.specs.items()} | {"free": {}}
    with ThreadPoolExecutor(len(asked)) as pool:
        outputs = [*pool.map(lambda body: _ask(proxied, **body), asked.values())]
    assert dict(zip(asked, outputs, strict=True)) == aggregated.outputs

    decided, tokens = (new - old for new, old in zip(_counts(deployment), before, strict=True))
    with_payload = sum("vllm_xargs" in body for body in asked.values())
    is_copied = "copied whole" in request.node.name
    assert decided == Counter({"decode admitted": with_payload}) + (
        Counter({"prefill gated": with_payload}) if is_copied else Counter()
    )
    blocks = (len(tokenizer.encode(PROMPT)) - 1) // 32
    assert tokens["external_kv_transfer"] == len(asked) * blocks * 32
    assert tokens["local_compute"] < len(asked) * 33


def test_bad_payload_is_a_400(proxied: OpenAI):
    with pytest.raises(BadRequestError, match="not valid JSON"):
        _ask(proxied, vllm_xargs={KEY: "{"})


def _body(spec: lp.LogitsProcessorSpec) -> dict[str, Any]:
    """The fields with which an HTTP client says what ``attach`` says in ``SamplingParams``."""
    match spec:
        case lp.GrammarSpec():
            return {"structured_outputs": {"regex": spec.regex}}
        case lp.SamplingSpec():
            return {"repetition_penalty": spec.repetition_penalty}
        case _:
            return {"vllm_xargs": {KEY: lp.encode(spec)}}


def _ask(client: OpenAI, **fields: Any) -> list[int]:
    completion = client.completions.create(
        model="SmolLM2-135M-Instruct",
        prompt=PROMPT,
        max_tokens=LENGTH,
        temperature=0,
        extra_body={"return_token_ids": True, **fields},
    )
    return getattr(completion.choices[0], "token_ids")  # noqa: B009 (a field of vLLM's own)


def _counts(deployment: Deployment) -> tuple[Counter[str], Counter[str]]:
    """Decisions of both servers, and where the decode server's prompt tokens came from."""
    decided = Counter[str]()
    for name in ("prefill", "decode"):
        counts = counted(getattr(deployment, name), "logitport_requests", "decision")
        decided.update({f"{name} {decision}": count for decision, count in counts.items()})
    return decided, Counter(counted(deployment.decode, "vllm:prompt_tokens_by_source", "source"))


def test_doctor_names_the_stage(deployment: Deployment):
    for server, found in (
        (deployment.prefill, "not acted on at the stage prefill"),
        (deployment.decode, "obeyed"),
    ):
        assert findings(server.base_url) == [found, "refused", "refused"]
