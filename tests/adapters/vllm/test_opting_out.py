"""A client that does not want its text to be marked, on each route of vLLM's server."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples._support.vllm_server import LOGITPORT, VllmServer
from tests.adapters.marked import CONFIGURATION, KEY, p_values, prompts
from tests.adapters.routes import Json, texts_of

pytestmark = [pytest.mark.slow, pytest.mark.only("v1", reason="the front end is the same")]

PROMPT = prompts(1)[0]
MESSAGES = [{"role": "user", "content": "Tell a long story about a lighthouse and its keeper."}]
LONG = 90


def chat(fields: Json) -> Json:
    return {"messages": MESSAGES, "max_tokens": LONG, **fields}


def tokens(fields: Json) -> Json:
    sampling = {"max_tokens": LONG, "ignore_eos": True, **fields}
    return {"token_ids": [1, 9690, 198, 2683, 359], "sampling_params": sampling}


# route | the body of a request, with what its client adds
ROUTES: dict[str, Callable[[Json], Json]] = {
    "/v1/completions": lambda fields: {"prompt": PROMPT, "max_tokens": LONG, **fields},
    "/v1/chat/completions": chat,
    "/v1/chat/completions/batch": lambda fields: {**chat(fields), "messages": [MESSAGES]},
    "/v1/responses": lambda fields: {"input": PROMPT, "max_output_tokens": LONG, **fields},
    "/v1/messages": chat,
    "/inference/v1/generate": tokens,
    "/invocations": chat,
}
EVERYWHERE: list[Json] = [
    {"temperature": 0},
    {"temperature": 1e-9},
    {"temperature": 0.2},
    {"top_k": 1},
    {"top_p": 1e-9},
]
"""What a client may ask for on all routes."""
MORE: list[Json] = [
    {"min_p": 1},
    {"n": 2},
    {"repetition_penalty": 1.2},
    {"presence_penalty": 1},
    {"temperature": 0, "kv_transfer_params": {"do_remote_decode": True}},
    {"temperature": 0, "max_tokens": 1, "logprobs": 2},
]
HTTP: list[Json] = [
    {"use_beam_search": True, "n": 2},
    {"temperature": 0, "structured_outputs": {"regex": "(.|\\n)*"}},
    {"temperature": 0, "ignore_eos": True, "structured_outputs": {"json": {"type": "integer"}}},
    *(
        {"vllm_xargs": {"logitport": [{"kind": "watermark", "profile": profile, **more}]}}
        for profile, more in (("other", {}), ("mine", {}), ("news", {"key": 1}))
    ),
    *({"vllm_xargs": {"logitport": each}} for each in ("", "null", "[]", "x", 1)),
    {"temperature": 0, "vllm_xargs": {"logitport": [{"kind": "watermark", "profile": "news"}]}},
    {"temperature": 0, "vllm_xargs": {"logitport": [{"kind": "banned_tokens", "token_ids": [5]}]}},
]
OPTING_OUT = [
    *((path, fields) for path in ROUTES for fields in EVERYWHERE),
    *((path, fields) for path in ("/v1/completions", "/inference/v1/generate") for fields in MORE),
    *(("/v1/completions", fields) for fields in HTTP),
    ("/v1/chat/completions", {"temperature": 0, "response_format": {"type": "text"}}),
    ("/v1/responses", {"temperature": 0, "text": {"format": {"type": "text"}}}),
    ("/inference/v1/generate", {"trace_decode_token_ids": [5] * 99}),
]
NO_MATTER: list[tuple[str, Json]] = [
    *((path, {}) for path in ROUTES),
    *((path, {"stream": True}) for path in ROUTES if not path.endswith(("batch", "generate"))),
    ("/v1/completions", {"seed": 3, "watermarking": False, "logprobs": 3, "echo": False}),
    ("/v1/completions", {"kv_transfer_params": {"do_remote_decode": True}}),
    ("/v1/completions", {"vllm_xargs": {"watermark": "off"}, "do_sample": False, "greedy": True}),
    ("/v1/completions", {"logit_bias": {"500": -100}, "bad_words": ["the"], "top_p": 0.8}),
    ("/inference/v1/generate", {"output_kind": 2, "detokenize": False, "extra_args": None}),
]
"""What leaves a text marked, whatever a client may hope."""


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    file = tmp_path_factory.mktemp("required") / "bot.json"
    require = {"watermark": {"profile": "news", "unless": ["json"]}}
    file.write_text(json.dumps(CONFIGURATION | {"require": require}))
    with pytest.MonkeyPatch.context() as patch:
        for name, key in KEY.items():
            patch.setenv(name, key)
        env = {"LOGITPORT_CONFIG": str(file)}
        with VllmServer(model, *LOGITPORT, "--enable-scale-out", env=env) as server:
            yield server


def ask(server: VllmServer, path: str, fields: Json) -> httpx.Response:
    body = {"model": server.model_name, **ROUTES[path](fields)}
    url = server.base_url.removesuffix("/v1") + path
    return httpx.post(url, json=body, timeout=600, trust_env=False)


@pytest.mark.parametrize(("path", "fields"), OPTING_OUT)
def test_a_client_opts_out(server: VllmServer, path: str, fields: Json):
    answer = ask(server, path, fields)
    assert answer.status_code == 400, answer.text
    assert "logitport: " in answer.text
    for key in KEY.values():
        assert str(int(key, 0)) not in answer.text or len(key) == 1


@pytest.mark.parametrize(("path", "fields"), NO_MATTER)
def test_it_is_marked(server: VllmServer, tokenizer: Any, path: str, fields: Json):
    answer = ask(server, path, {"temperature": 1, **fields})
    assert answer.status_code == 200, answer.text
    lines = answer.text.splitlines() if fields.get("stream") else [f"data: {answer.text}"]
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    (text,) = texts_of(events, tokenizer)
    (p_value,) = p_values([tokenizer.encode(text, add_special_tokens=False)])
    assert p_value < 1e-6


def test_what_needs_no_mark(server: VllmServer):
    fields = {"temperature": 0, "structured_outputs": {"choice": ["yes", "no"]}}
    answer = ask(server, "/v1/completions", fields)
    assert answer.json()["choices"][0]["text"] in ("yes", "no")
