"""Every public route of vLLM's server: specs are obeyed, or refused with 400, or it takes none."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from logitport.adapters.vllm.backend import ROUTES
from logitport.spec import ForcedTokenSequenceSpec, encode

from examples._support.vllm_server import LOGITPORT, VllmServer
from tests.adapters.routes import (
    BAD,
    BEYOND,
    MESSAGES,
    SCHEMA,
    TOOLS,
    Json,
    Route,
    RouteTests,
    chat,
    completions,
    events,
    texts_of,
)
from tests.support.paths import ROOT

pytestmark = pytest.mark.only("v1", reason="the front end is the same")


def extra(payload: Any) -> Json:
    return {"vllm_xargs": {"logitport": payload}}


def tokens(extra: Json) -> Json:
    others = {"max_tokens": 20, "extra_args": extra.get("vllm_xargs", {})}
    return {"token_ids": [1, 2, 3], "sampling_params": others}


def responses(extra: Json) -> Json:
    return {"input": "Hello", "max_output_tokens": 20, **extra}


BEAMS = {"max_tokens": 2, "n": 2, "use_beam_search": True}
NO_REPLY = {
    "/abort_requests",
    "/detokenize",
    "/inference/v1/abort_requests",
    "/is_scaling_elastic_ep",
    "/ping",
    "/scale_elastic_ep",
    "/tokenize",
    "/v1/messages/count_tokens",
    "/v1/responses/{response_id}/cancel",
}
"""What generates nothing. A payload is refused there as well, where it comes in a JSON body."""

FORMAT = {"type": "json_schema", "name": "s", "schema": SCHEMA}
CLAUDE_TOOLS = {"tools": [{"name": "f", "input_schema": SCHEMA}]}


TAKES = {
    "completions": Route("/v1/completions", completions),
    "chat": Route("/v1/chat/completions", chat),
    "batch": Route(
        "/v1/chat/completions/batch",
        partial(chat, messages=[MESSAGES]),
        streams=False,
        carries=False,
    ),
    "responses": Route("/v1/responses", responses),
    "messages": Route("/v1/messages", chat),
    "generate": Route("/inference/v1/generate", tokens, carries=False),
    "invocations": Route("/invocations", chat),
}
TAKES_NONE = {
    "beams, completions": ("/v1/completions", completions(BEAMS), 200),
    "beams, chat": ("/v1/chat/completions", chat(BEAMS), 200),
    "scores": (
        "/generative_scoring",
        {"query": "a", "items": ["b"], "label_token_ids": [5, 6]},
        200,
    ),
    # Another kind of model makes decisions.
    "decisions": ("/v1/systemone", {"state": "s", "questions": {"q": {"type": "yes_no"}}}, 501),
}

# The first two are found by the middleware, the third by the engine.
WRONG = {
    "no JSON": (extra("{"), "not valid JSON"),
    "no kind": (extra(BAD), "logitport: Invalid value 'mind_reader'"),
    "vocabulary": (extra(BEYOND), "beyond the vocabulary"),
}
CONFLICTS = {
    name: (route, fields, (f"the request's {field}",))
    for name, (route, fields, field) in {
        "required": ("chat", TOOLS | {"tool_choice": "required"}, "tool_choice"),
        "named": (
            "chat",
            TOOLS | {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice",
        ),
        "any": ("messages", CLAUDE_TOOLS | {"tool_choice": {"type": "any"}}, "tool_choice"),
        "tool": (
            "messages",
            CLAUDE_TOOLS | {"tool_choice": {"type": "tool", "name": "f"}},
            "tool_choice",
        ),
        "format": ("chat", {"response_format": {"type": "json_object"}}, "response_format"),
        "text": ("responses", {"text": {"format": FORMAT}}, "text"),
        "output_config": ("messages", {"output_config": {"format": FORMAT}}, "output_config"),
        "regex": ("chat", {"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        "EOS": ("chat", {"min_tokens": 12}, "`min_tokens`"),
    }.items()
}


@pytest.fixture(scope="module")
def server(vllm_server: VllmServer) -> VllmServer:
    return vllm_server


class TestRoutes(RouteTests):
    engine = "vllm"
    text = "Exactly this."
    takes, takes_none, wrong, conflicts = TAKES, TAKES_NONE, WRONG, CONFLICTS

    def extra(self, payload: Any) -> Json:
        return extra(payload)

    def is_silent(self, path: str) -> bool:
        return path in NO_REPLY or path in ROUTES or path.endswith("/derender")

    def test_every_route_is_documented(self):
        page = (ROOT / "docs" / "vllm.md").read_text(encoding="utf-8")
        paths = {path for path, *_ in self.takes_none.values()} | {
            route.path for route in self.takes.values()
        }
        assert [path for path in paths if f"`{path}`" not in page] == []

    @pytest.mark.parametrize(
        ("of", "fields"),
        [
            ("chat", TOOLS | {"tool_choice": "none"}),
            ("chat", {"response_format": {"type": "text"}}),
            ("responses", {"text": {}}),
            ("messages", {"output_config": {}}),
        ],
    )
    def test_what_is_no_grammar(self, ask: Any, spec: Any, tokenizer: Any, of: str, fields: Json):
        body = TAKES[of].body(extra(encode(spec))) | fields
        assert texts_of(events(ask(TAKES[of].path, body)), tokenizer) == [self.text]

    def test_specs_are_checked_where_a_request_is_rendered(self, ask: Any, spec: Any):
        """The rendered request has them where the route of tokens looks for them."""
        path, good = "/v1/chat/completions/render", encode(spec)
        assert ask(path, chat(extra(BAD))).status_code == 400
        rendered = ask(path, chat(extra(good))).json()
        assert rendered["sampling_params"]["extra_args"]["logitport"] == good
        assert "logitport" not in rendered  # it is the body of another request

    def test_forced_text_is_exact(self, ask: Any, tokenizer: Any):
        """In all of several outputs, with each token's probability, whatever the sampling."""
        text = 'Exactly this: "Grüße, 世界" 🙂\n\tand no more than 2 lines.'
        spec = ForcedTokenSequenceSpec.from_text(text, tokenizer)
        body = completions(extra(encode(spec)), max_tokens=60, n=3, logprobs=1, temperature=1.5)
        body |= {"top_p": 0.1, "min_p": 0.5, "repetition_penalty": 2.0, "return_token_ids": True}
        choices = ask("/v1/completions", body).json()["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2]
        for choice in choices:
            assert choice["text"] == text
            assert choice["token_ids"] == [*spec.token_ids, tokenizer.eos_token_id]
            assert len(choice["logprobs"]["token_logprobs"]) == len(choice["token_ids"])
            assert choice["finish_reason"] == "stop"

    @pytest.mark.slow
    def test_a_file_of_requests(self, model: Path, spec: Any, tokenizer: Any, tmp_path: Path):
        """``run-batch`` has no HTTP server: what is wrong is in the line of the answer."""
        extras = {"good": extra(encode(spec)), "bad": extra(BAD), "none": {}}
        request = {"method": "POST", "url": "/v1/chat/completions"}
        asked, answered = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        lines = (
            json.dumps(request | {"custom_id": name, "body": chat(extra, model=model.name)})
            for name, extra in extras.items()
        )
        asked.write_text("\n".join(lines))
        command = [sys.executable, "-m", "vllm.entrypoints.openai.run_batch", *LOGITPORT[:2]]
        command += ["-i", str(asked), "-o", str(answered), "--model", str(model)]
        command += ["--served-model-name", model.name, "--max-model-len", "1024", "--enforce-eager"]
        subprocess.run(command, check=True)
        answers = {line["custom_id"]: line for line in map(json.loads, answered.open())}
        replies = {name: answers[name]["response"] for name in extras}
        good, none = (texts_of([replies[name]["body"]], tokenizer) for name in ("good", "none"))
        assert good == [self.text]
        assert none not in ([""], good)
        assert "mind_reader" in json.dumps(answers["bad"])
        assert replies["bad"] is None or replies["bad"]["status_code"] == 400
