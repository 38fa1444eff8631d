"""A policy that changes while vLLM serves: what a request brings to the workers."""

import asyncio
import json
import os
from contextvars import Context
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from logitport import spec as lp
from logitport.adapters import reload
from logitport.adapters.core import Realizer
from logitport.adapters.vllm import (
    BACKEND,
    KEY,
    LogitportProcessor,
    SpecMiddleware,
    admission,
    processor,
)
from logitport.adapters.vllm.admission import Admitting, backend_of
from logitport.adapters.vllm.engine_config import Role
from logitport.adapters.vllm.names import ACTING
from logitport.hooks import configuration
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from transformers import AutoTokenizer
from vllm.sampling_params import StructuredOutputsParams

from examples._support.vllm_server import LOGITPORT, VllmServer
from tests.adapters import reloaded

from .in_process import params
from .stand_ins import configuration as engine_config
from .test_guard import AGGREGATED, DECODES_ELSEWHERE, EITHER, words

ONE_RUNNER = pytest.mark.only("v1", reason="no runner is involved")


def content(token: int, **others: Any) -> dict[str, Any]:
    """A configuration of which each part has the token."""
    return {
        "guard": [{"kind": "banned_tokens", "token_ids": [token]}],
        "default": [{"kind": "forced_sequence", "token_ids": [token + 10]}],
        "presets": {"p": [{"kind": "forced_sequence", "token_ids": [token + 20]}]},
        **others,
    }


FIRST, SECOND = content(40), content(50)
LESS = {"presets": SECOND["presets"]}
PRESET, BIAS = lp.PluginSpec("p"), lp.LogitBiasSpec({8: 1.0})
EVERYWHERE = {KEY: lp.encode(BIAS, generation_only=False)}


class Engine:
    """A front end and a worker, which begin with a configuration."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch, begin: Any) -> None:
        self.file, self.now = file, 0.0
        self._write(begin)
        monkeypatch.setattr(admission, "tokenizer_of", lambda _: words)
        monkeypatch.setattr(reload, "monotonic", lambda: self.now)
        self.config = engine_config(additional_config={KEY: str(file)})
        monkeypatch.setattr(processor, "admitting_engine", lambda: Admitting(self.config))
        self.in_worker = backend_of(self.config)

    def _write(self, content: Any) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(content))
        os.replace(new, self.file)

    def change(self, content: Any) -> None:
        self._write(content)
        for _ in range(2):
            self.now += reload.EVERY_S
            Context().run(backend_of, self.config)
        admission._live(self.config)._loading.join()

    def admit(self, asked: Any) -> Any:
        LogitportProcessor.validate_params(asked)
        return asked.clone()

    def rows(self, asked: Any, role: Role = AGGREGATED) -> list[list[float]]:
        """The worker's edits of two steps."""
        program = processor._program_of(role, self.in_worker, 100, None, asked)
        return edits(program)


def edits(program: Any) -> list[list[float]]:
    realizer, output, rows = Realizer(100), list[int](), list[list[float]]()
    if program is not None:
        realizer.add(0, program, [1, 2], output)
    for _ in range(2):
        logits = torch.zeros(1, 100)
        realizer.apply(logits)
        rows.append(logits[0].tolist())
        output.append(int(logits.argmax()))
    return rows


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda begin: Engine(tmp_path / "logitport.json", monkeypatch, begin)


# a request | the worker's role
REQUESTS: dict[str, tuple[dict[str, Any], Role]] = {
    "no specs": ({}, AGGREGATED),
    "a preset": ({"extra_args": {KEY: lp.encode(PRESET)}}, AGGREGATED),
    "own": ({"extra_args": {KEY: lp.encode((BIAS, PRESET))}}, AGGREGATED),
    "a grammar": ({"structured_outputs": StructuredOutputsParams(regex="a+")}, AGGREGATED),
    "labels": ({"max_tokens": 1, "logprob_token_ids": [5]}, AGGREGATED),
    "decoded elsewhere": ({"extra_args": {KEY: lp.encode(BIAS), **DECODES_ELSEWHERE}}, EITHER),
    "acts everywhere": ({"extra_args": {**EVERYWHERE, **DECODES_ELSEWHERE}}, EITHER),
    "continued": ({"extra_args": {KEY: lp.encode((BIAS, PRESET), continued=1)}}, AGGREGATED),
}


@ONE_RUNNER
@pytest.mark.parametrize("second", [SECOND, LESS], ids=["other", "less"])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_worker_obeys_the_policy_of_admission(start: Any, name: str, second: Any):
    """As a worker does that has begun with it, and that gets nothing else than a request."""
    fields, role = REQUESTS[name]
    made = [configuration.policy(lambda: words, each) for each in (FIRST, second)]
    expected = [
        edits(
            processor._program_of(role, replace(BACKEND, policy=each), 100, None, params(**fields))
        )
        for each in made
    ]
    assert expected[0] != expected[1]
    running = start(FIRST | {"reload": True})
    before = running.admit(params(**fields))
    running.change(second | {"reload": True})
    after = running.admit(params(**fields))
    assert [running.rows(each, role) for each in (before, after)] == expected
    assert running.rows(before, role) == expected[0]  # after a preemption


@ONE_RUNNER
def test_without_reload_nothing_is_sent_along(start: Any):
    running = start(FIRST)
    asked = params(PRESET)
    assert running.admit(asked).extra_args == {KEY: lp.encode(PRESET)}


@ONE_RUNNER
@pytest.mark.parametrize("reloads", [False, True])
def test_a_client_sends_no_policy_of_its_own(start: Any, reloads: bool):
    running = start(FIRST | ({"reload": True} if reloads else {}))
    forged = params(extra_args={ACTING: [None, None]})
    honest = running.admit(params())
    if reloads:  # parameters that are used again have that of the request before
        assert running.rows(running.admit(forged)) == running.rows(honest)
    else:
        with pytest.raises(
            ValueError, match="Expected the key `logitport`, got 'logitport_acting'"
        ):
            running.admit(forged)
        assert running.rows(forged) == running.rows(honest)


# the file instead | what the log has
@ONE_RUNNER
@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"effort": {"low": 5}}, "`effort` sets thinking_token_budget, which vLLM refuses"),
        (content(200), "beyond the vocabulary"),
        ({"default": [*FIRST["default"], *SECOND["default"]]}, "both force a token"),
    ],
)
def test_what_this_engine_cannot_realize_is_refused(
    start: Any, second: Any, message: str, caplog: pytest.LogCaptureFixture
):
    running = start(FIRST | {"reload": True})
    before = running.rows(running.admit(params()))
    running.change(SECOND | second | {"reload": True})
    assert message in caplog.text
    assert running.rows(running.admit(params())) == before


@ONE_RUNNER
def test_a_front_end_that_admits_nothing_does_not_start(
    start: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(processor.envs, "VLLM_USE_RUST_FRONTEND", True, raising=False)
    config = start(FIRST | {"reload": True}).config
    with pytest.raises(ValueError, match="`reload` needs vLLM's Python front end"):
        LogitportProcessor(config, torch.device("cpu"))


@ONE_RUNNER
def test_parameters_are_used_again(start: Any):
    """By a caller in this process, and by vLLM if it has loaded the class twice."""
    running = start(FIRST | {"reload": True})
    asked = params(PRESET)
    first = running.rows(running.admit(running.admit(asked)))
    bias = [{"kind": "logit_bias", "bias": {"8": 1.5}}]  # of which two would be 3
    running.change(SECOND | {"reload": True, "own": "add", "default": bias})
    again = running.rows(running.admit(running.admit(asked)))
    assert [row.index(max(row)) for row in (*first, *again)] == [60, 0, 70, 8]
    assert again[1][8] == 1.5


@ONE_RUNNER
def test_the_middleware_and_the_engine_see_one_policy(start: Any):
    """The file changes between the check of a body and that of vLLM, which is later."""
    running = start(FIRST | {"reload": True})
    sent = list[Any]()

    async def answer(request: Request) -> JSONResponse:
        await request.body()
        running.change(SECOND | {"reload": True})
        sent.append(running.admit(params(PRESET)))
        return JSONResponse({"text": ""})

    routes = [Route("/v1/completions", answer, methods=["POST"])]
    app = Starlette(middleware=[Middleware(SpecMiddleware)], routes=routes)
    app.state.vllm_config = running.config
    body = {"vllm_xargs": {KEY: lp.encode(PRESET)}}
    with TestClient(app) as client:
        first, second = (client.post("/v1/completions", json=body).json() for _ in range(2))
        shown = client.get("/logitport").json()["policy"]["digest"]
    assert [rows[0].index(max(rows[0])) for rows in map(running.rows, sent)] == [60, 70]
    assert first[KEY]["policy"] != second[KEY]["policy"] == shown


@pytest.mark.slow
def test_a_change_under_load(
    model: Path, runner: str, tmp_path: Path, server_environment: dict[str, str]
):
    """64 clients stream; each reply obeys one policy, that of its receipt, and none fails."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    file = tmp_path / "logitport.json"
    file.write_text(json.dumps(reloaded.content("first", tokenizer)))
    env = {"LOGITPORT_CONFIG": str(file), "VLLM_LOGGING_LEVEL": "INFO", **server_environment}
    env["LOGITPORT_RECEIPT"] = "all"
    env["VLLM_USE_V2_MODEL_RUNNER"] = "1" if runner == "v2" else "0"
    # A CPU without instructions for bfloat16 would take ten times longer.
    arguments = *LOGITPORT, "--max-num-seqs", "64", "--dtype", "float32"
    with VllmServer(model, *arguments, env=env) as server:
        load = reloaded.Load(server, file, tokenizer)
        load.check(asyncio.run(load.run()))
