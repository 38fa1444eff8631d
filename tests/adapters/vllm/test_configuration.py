"""The operator's configuration on the real engine, under either runner."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from logitport import spec as lp
from logitport.adapters import extra_body
from vllm.sampling_params import StructuredOutputsParams

from examples._support.vllm_server import VllmServer
from tests.adapters.configured import (
    ACTS,
    BAN,
    BANNED,
    CONFIGURATION,
    PROBLEMS,
    REFUSED,
    SEEN,
    WRONG,
)

from .in_process import engine, params, refused

GUARDED, NO_BEAMS = "the server's guard[0]", "no beam search"
ONE_RUNNER = pytest.mark.only("v1", reason="both runners have the same front end")


def test_what_acts(model: Path, runner: str):
    with engine(model, additional_config={"logitport": CONFIGURATION}) as running:
        prompts = ["The capital of Italy is"] * len(ACTS)
        sampling = [params(specs, max_tokens=8) for specs, _ in ACTS]
        outputs = running.generate(prompts, sampling)
        assert [output.text for output in outputs] == [text for _, text in ACTS]

        grammar = StructuredOutputsParams(regex=BANNED)
        for more in ({}, {"ignore_eos": True}):
            fields: dict[str, Any] = {"max_tokens": 8, "structured_outputs": grammar, **more}
            sampling = [params(specs, **fields) for specs in (None, BAN)]
            for output in running.generate(["The capital of Norway is"] * 2, sampling):
                assert output.finish_reason in ("stop", "error")
                assert SEEN.strip() not in output.text


@pytest.mark.slow
@ONE_RUNNER
def test_the_models_tags(model: Path, runner: str):
    """The operator states what no tokenizer tells: this model does not think."""
    thinks = {"kind": "thinking_budget", "budget": 4, "tags": "model"}
    sampling = params(thinks, max_tokens=12, ignore_eos=True)
    tags = {"start": "Thoughts:", "end": " Reply:", "then": " It is"}
    with engine(model, additional_config={"logitport": {"tags": tags}}) as running:
        for prompt in ("Thoughts:", "Where? Thoughts: I wonder"):
            (output,) = running.generate([prompt], [sampling])
            thought, reply = output.text.split(" Reply: It is")
            assert thought
            assert reply
    with (
        engine(model) as running,
        refused("thinking tags are not known: send them"),
    ):
        running.generate(["Hi"], [sampling])


@ONE_RUNNER
def test_a_wrong_file_stops_the_start(
    model: Path, runner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "wrong.yaml"
    file.write_text(WRONG)
    monkeypatch.setenv("LOGITPORT_CONFIG", str(file))
    with pytest.raises(ValueError, match="3 problems") as raised, engine(model):
        pass
    for problem in PROBLEMS:
        assert problem in str(raised.value)


@pytest.mark.slow
@ONE_RUNNER
def test_over_http(model: Path, runner: str, tmp_path: Path):
    """The front end and the engine are processes of their own, which read the same file."""
    file = tmp_path / "bot.json"
    file.write_text(json.dumps(CONFIGURATION | {"effort": {"high": 4}}))
    middleware = "--middleware", "logitport.adapters.vllm.SpecMiddleware"
    env = {"LOGITPORT_CONFIG": str(file), "VLLM_LOGGING_LEVEL": "INFO"}
    statuses = list[int]()
    with VllmServer(model, *middleware, env=env) as server:

        def ask(specs: Any, **more: Any) -> httpx.Response:
            body = {"model": server.model_name, "prompt": "Hello", "max_tokens": 8}
            body |= {"temperature": 0, **extra_body("vllm", specs), **more}
            answer = httpx.post(f"{server.base_url}/completions", json=body, timeout=600)
            statuses.append(answer.status_code)
            return answer

        for specs, text in ACTS:
            assert ask(specs).json()["choices"][0]["text"] == text
        for specs in ((), BAN):  # beside a grammar of what the guard bans
            for more in ({}, {"ignore_eos": True}):
                answer = ask(specs, structured_outputs={"regex": BANNED}, **more)
                assert answer.status_code == 200 or "error" in answer.json()
                assert SEEN.strip() not in answer.text
        for specs, fields, message in [
            *((specs, {"stream": s}, message) for specs, message in REFUSED for s in (False, True)),
            (BAN, {"use_beam_search": True, "n": 2}, NO_BEAMS),
            *((specs, {"structured_outputs": {"regex": SEEN}}, GUARDED) for specs in ((), BAN)),
        ]:
            answer = ask(specs, **fields)
            assert answer.status_code == 400
            assert message in answer.json()["error"]["message"]
        assert NO_BEAMS in server.log.read_text()
        assert "add --reasoning-parser or" in server.log.read_text()
        chat = {"model": server.model_name, "messages": [{"role": "user", "content": "Count."}]}
        body = chat | extra_body("vllm", [lp.PluginSpec("rome"), BAN])
        answer = httpx.post(f"{server.base_url}/chat/completions", json=body, timeout=600).json()
        assert answer["logitport"]["presets"] == ["rome"]
        metrics = httpx.get(
            server.base_url.removesuffix("v1") + "metrics", timeout=600, trust_env=False
        ).text
        refused = f'decision="refused",stage="agg"}} {statuses.count(400)}.0'
        assert refused in metrics  # those of the guard without specs, too
