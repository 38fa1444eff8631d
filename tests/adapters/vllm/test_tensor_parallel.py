"""Two workers that share a model say what one says, and a failure is reported once."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from logitport import spec as lp
from logitport.adapters import extra_body
from openai import OpenAI

from examples._support.vllm_server import VllmServer
from tests.adapters.packages import plugin_package
from tests.support.doctor import findings
from tests.support.tiny_model import tiny_model

from .in_process import FLAG, engine, params

pytestmark = pytest.mark.slow

PROMPT = "Once upon a time, there was a"
LENGTH = 12  # tokens of an output
Specs = list[lp.LogitsProcessorSpec]

PLUGIN = """
def make_rule(params):
    def rule(output_ids, logits):
        if len(output_ids) == params["after"]:
            raise RuntimeError("no more")
    return rule
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which a package with a plugin that fails is installed."""
    folder = tmp_path_factory.mktemp("site")
    with plugin_package(folder, {"fails": "failing:make_rule"}, {"failing": PLUGIN}):
        yield folder


@pytest.fixture(scope="module")
def divisible(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of chance, whose heads two workers can share; nine heads they cannot."""
    folder = tmp_path_factory.mktemp("model")
    tiny_model(0, len(tokenizer), heads=2).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def requests(tokenizer: Any) -> dict[str, Specs]:
    """The specs of each, by its name. What fails is between what does not."""

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    forced = lp.ForcedTokenSequenceSpec.from_text(" little boat.", tokenizer)
    return {
        "free": [],
        "forced": [forced],
        "fails at once": [lp.PluginSpec("fails", {"after": 0})],
        "allowed": [lp.AllowedTokensSpec(ids(" one two three four"))],
        "banned": [lp.BannedTokensSpec(ids(" little girl named named"))],
        "choice": [lp.ChoiceSpec.from_text([" cat", " dog"], tokenizer)],
        "fails later": [lp.PluginSpec("fails", {"after": 5})],
        "end": [lp.ForcedEndSpec(4, ids(" and so on."), tokenizer.eos_token_id)],
        "trigger": [lp.TriggerSpec(ids(" a")[-1:], ids(" very"))],
        "history": [lp.NoRepeatNgramSpec(1), lp.PromptBiasSpec(-5.0)],
    }


@pytest.fixture(scope="module")
def expected(divisible: Path, site: Path, requests: dict[str, Specs]) -> dict[str, list[int]]:
    """What one worker says."""
    with engine(divisible, logits_processors=FLAG) as running:
        sampling = [params(specs, max_tokens=LENGTH) for specs in requests.values()]
        outputs = running.generate([PROMPT] * len(requests), sampling)
    return {name: list(output.token_ids) for name, output in zip(requests, outputs, strict=True)}


@pytest.fixture(scope="module")
def server(
    divisible: Path,
    site: Path,
    expected: Any,  # one engine at a time
    server_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[VllmServer]:
    paths = os.pathsep.join([str(site), server_environment["PYTHONPATH"]])
    metrics = str(tmp_path_factory.mktemp("metrics"))
    environment = {"PROMETHEUS_MULTIPROC_DIR": metrics, "PYTHONPATH": paths}
    arguments = ["--logits-processors", *FLAG, "--tensor-parallel-size", "2"]
    arguments += ["--dtype", "float32", "--max-num-seqs", "16"]
    with VllmServer(divisible, *arguments, env=environment) as server:
        yield server


def test_two_workers(
    server: VllmServer, requests: dict[str, Specs], expected: dict[str, list[int]], tokenizer: Any
):
    client = OpenAI(base_url=server.base_url, api_key="none", max_retries=0)

    def ask(specs: Specs) -> Any:
        body = {"return_token_ids": True, "temperature": 0, **extra_body("vllm", specs)}
        asked = {"model": server.model_name, "prompt": PROMPT, "max_tokens": LENGTH}
        return client.completions.create(**asked, extra_body=body)

    def failures() -> list[str]:
        url = f"{server.base_url.removesuffix('/v1')}/metrics"
        metrics = httpx.get(url, timeout=600, trust_env=False).text
        pattern = r'^logitport_requests_total{decision="failed",stage="agg"} (.*)$'
        return re.findall(pattern, metrics, re.M)

    assert failures() == ["0.0"]  # before any, so that an alert sees the first
    with ThreadPoolExecutor(len(requests)) as pool:
        replies = dict(zip(requests, pool.map(ask, requests.values()), strict=True))
    assert {name: reply.choices[0].token_ids for name, reply in replies.items()} == expected

    failed = [replies["fails at once"], replies["fails later"]]
    for reply, tokens in zip(failed, (0, 5), strict=True):
        said = [*expected["free"][:tokens], tokenizer.eos_token_id]
        assert reply.choices[0].token_ids == said
        assert reply.choices[0].finish_reason == "stop"

    log = server.log.read_text()
    pattern = (
        r"^.*ERROR .* The specs of request (\S+)-\S+ cannot be realized: RuntimeError: no more"
    )
    assert sorted(re.findall(pattern, log, re.M)) == sorted(f"{reply.id}-0" for reply in failed), (
        log
    )
    assert failures() == ["2.0"]


def test_doctor_misses_the_middleware(server: VllmServer):
    assert findings(server.base_url) == ["obeyed", "refused", "not refused"]
