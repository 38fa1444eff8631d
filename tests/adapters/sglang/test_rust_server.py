"""SGLang's Rust server, which checks nothing: what is lost there, and who is told."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from logitport.adapters import Support, extra_body, probe
from logitport.adapters.sglang import KEY
from logitport.adapters.sglang.worker import RUST_SERVER, UNCHECKED
from logitport.spec import ForcedTokenSequenceSpec
from openai import OpenAI

from examples._support.sglang_server import SglangServer
from tests.adapters.routes import BAD, Json, chat, completions

from .test_routes import TEXT, extra, generate

pytestmark = pytest.mark.slow

pytest.importorskip("sglang.srt.rust_extensions._server")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[SglangServer]:
    with SglangServer(model, env={"SGLANG_RUST_SERVER": "1"}) as running:
        yield running


@pytest.fixture
def good(tokenizer: Any) -> Json:
    return extra_body("sglang", ForcedTokenSequenceSpec.from_text(TEXT, tokenizer))


def ask(server: SglangServer, path: str, body: Json) -> httpx.Response:
    url = server.base_url.removesuffix("/v1") + path
    return httpx.post(url, json={"model": "any"} | body, timeout=600, trust_env=False)


def test_the_log_says_so_once(server: SglangServer):
    assert server.log.read_text(encoding="utf-8").count(UNCHECKED % RUST_SERVER) == 1


@pytest.mark.parametrize("named", [True, False], ids=["named", "name lost"])
def test_specs_act(server: SglangServer, good: Json, named: bool):
    """The worker goes by the payload: this front end loses the name of our processor."""
    if not named:
        del good["custom_logit_processor"]
    assert ask(server, "/generate", generate(good)).json()["text"] == TEXT
    reply = ask(server, "/v1/chat/completions", chat(good)).json()
    assert reply["choices"][0]["message"]["content"] == TEXT


def test_the_worker_refuses_what_is_bad(server: SglangServer):
    reply = ask(server, "/generate", generate(extra(BAD)))
    assert reply.status_code == 400
    assert f"{KEY}: Invalid value 'mind_reader'" in reply.json()["error"]["message"]
    assert "$.specs[0]" in reply.json()["error"]["message"]


def test_completions_lose_their_specs(server: SglangServer, good: Json, model: Path):
    """As ``docs/sglang.md`` says. Nothing of ours sees such a request, and a client can ask."""
    with OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        assert probe(client, model.name, "sglang") is Support.IGNORED
    for each in (good, extra(BAD)):
        reply = ask(server, "/v1/completions", completions(each))
        assert reply.status_code == 200
        assert reply.json()["choices"][0]["text"] != TEXT
