"""Every public route of SGLang's server that generates, or reads what the model would say."""

import json
from functools import partial
from typing import Any

import httpx
import jsonschema
import pytest
from logitport import spec as lp
from logitport.adapters import extra_body
from logitport.adapters.sglang import KEY, PROCESSOR, attach
from logitport.adapters.sglang.admission import REFUSED

from tests.adapters.routes import BAD, BEYOND, TOOLS, Json, Route, RouteTests, chat, completions
from tests.support.grammars import LONGEST, SCHEMA, thinking
from tests.support.texts import BANNED, is_free_of_banned

PROMPT = "The capital of France is"
TEXT = " treasure"
OLLAMA = {"options": {"num_predict": 6, "temperature": 0}}


def extra(payload: Any) -> Json:
    return {"custom_logit_processor": PROCESSOR, "custom_params": {KEY: payload}}


def generate(extra: Json, text: Any = PROMPT) -> Json:
    """A body for SGLang's own route, with what goes into the body of others."""
    sampling_params: Json = {"temperature": 0, "max_new_tokens": 6}
    if "custom_params" in extra:
        sampling_params["custom_params"] = extra["custom_params"]
    others = {name: value for name, value in extra.items() if name != "custom_params"}
    return {"text": text, "sampling_params": sampling_params, **others}


def each_its_own(extra: Json) -> Json:
    """Two prompts, of which the second alone has the specs."""
    first, second = generate({}), generate(extra)
    names = ("text", "sampling_params", "custom_logit_processor")
    return {name: [first.get(name), second.get(name)] for name in names}


def vertex(extra: Json) -> Json:
    body = generate(extra)
    return {"instances": [{"text": body.pop("text")}], "parameters": body}


def of_generate(replies: list[Any], tokenizer: Any) -> list[str]:
    """The texts; streamed, each event has all of one so far."""
    texts: dict[int, str] = {}
    for reply in replies:
        whole = reply.get("predictions", reply) if isinstance(reply, dict) else reply
        for i, each in enumerate(whole if isinstance(whole, list) else [whole]):
            texts[each.get("index", i)] = each["text"]
    return [texts[i] for i in sorted(texts)]


own = partial(Route, read=of_generate, carries=False)
twice = partial(Route, obeying=(True, True), carries=False)

TAKES = {
    "generate": own("/generate", generate),
    "generate, two prompts": own(
        "/generate", partial(generate, text=[PROMPT] * 2), obeying=(True, True)
    ),
    "generate, each its own": own("/generate", each_its_own, obeying=(False, True)),
    "Vertex": own("/vertex_generate", vertex),
    "completions": Route("/v1/completions", completions),
    "completions, two prompts": twice("/v1/completions", partial(completions, prompt=[PROMPT] * 2)),
    "completions, n": twice("/v1/completions", partial(completions, n=2)),
    "chat": Route("/v1/chat/completions", chat),
    "chat, n": twice("/v1/chat/completions", partial(chat, n=2)),
    "SageMaker": Route("/invocations", chat),
}

# path | body | what it answers without specs; ``None`` where this model has nothing to say
TAKES_NONE: dict[str, tuple[str, Json, int | None]] = {
    "Responses": ("/v1/responses", {"input": "Where?", "max_output_tokens": 6}, 200),
    "Anthropic": ("/v1/messages", chat({}), 200),
    "Ollama chat": ("/api/chat", OLLAMA | {"messages": chat({})["messages"]}, 200),
    "Ollama": ("/api/generate", OLLAMA | {"prompt": PROMPT}, 200),
    "score": ("/v1/score", {"query": PROMPT, "items": [" Paris"], "label_token_ids": [7, 8]}, 200),
    "decisions": (
        "/v1/decisions",
        {"input": "x", "questions": [{"id": "a", "type": "yes_no", "question": "Is it?"}]},
        None,
    ),
    "System One": ("/v1/systemone", {}, None),
    "embeddings": ("/v1/embeddings", {"input": PROMPT}, None),
    "classify": ("/v1/classify", {"input": PROMPT}, None),
    "its own embeddings": ("/encode", {"text": PROMPT}, None),
    "its own classify": ("/classify", {"text": PROMPT}, None),
    "rerank": ("/v1/rerank", {"query": PROMPT, "documents": ["a"]}, None),
}

WRONG: dict[str, tuple[Json, str]] = {
    "bad": (extra([{"kind": "choice", "choices": [[]]}]), "$[0].choices[0]"),
    "no kind": (extra(BAD), "logitport: Invalid value 'mind_reader'"),
    "vocabulary": (extra(BEYOND), "beyond the vocabulary of 49152 tokens"),
    "misspelt": ({"custom_params": {"logit_port": BEYOND}}, "key `logitport`, got 'logit_port'"),
    # With what a route has around it.
    "without the key": ({"custom_params": {"payload": BEYOND}}, "custom_params.payload`"),
    "code": ({"custom_logit_processor": '{"callable": "00"}'}, REFUSED),
}

JSON_FIELD = ("request's json_schema", "$.specs[0]")
EARLY_EOS = ("`min_new_tokens`, which bans token 2", "$.specs[0].eos_token_id")

# route | fields of the request | what both places are
CONFLICTS: dict[str, tuple[str, Json, tuple[str, ...]]] = {
    "EOS before min_new_tokens": ("generate", {"min_new_tokens": 4}, EARLY_EOS),
    "EOS before min_tokens": ("completions", {"min_tokens": 4}, EARLY_EOS),
    "a forced stop token": (
        "generate",
        {"min_new_tokens": 1, "stop_token_ids": [14226]},
        ("`min_new_tokens`, which bans token 14226", "$.specs[0].token_ids[0]"),
    ),
    "a grammar": ("generate", {"regex": "a+"}, ("request's regex", "$.specs[0]")),
    "a JSON reply": ("chat", {"response_format": {"type": "json_object"}}, JSON_FIELD),
    "a tool's call": ("chat", TOOLS | {"tool_choice": "required"}, JSON_FIELD),
    "beams": ("generate", {"beam_width": 2}, ("tokens of its beams", "logitport: ")),
}


TAG = {"type": "json_schema", "json_schema": {"enum": [1, 2]}}

# a grammar | what it takes
GRAMMARS: list[tuple[lp.GrammarSpec, tuple[str, ...]]] = [
    (lp.GrammarSpec(regex="(Rome|Oslo)!"), ("Rome!", "Oslo!")),
    (lp.GrammarSpec(choices=('a "quoted" one', "Grüße")), ('a "quoted" one', "Grüße")),
    (lp.GrammarSpec(ebnf='root ::= "x" "y"'), ("xy",)),
    (lp.GrammarSpec(json_schema={"enum": [1, 2]}), ("1", "2")),
    (lp.GrammarSpec(structural_tag={"type": "structural_tag", "format": TAG}), ("1", "2")),
]


class TestRoutes(RouteTests):
    engine, text = "sglang", TEXT
    takes, takes_none, wrong, conflicts = TAKES, TAKES_NONE, WRONG, CONFLICTS
    refusal = "logitport: {path} takes no specs"

    def extra(self, payload: Any) -> Json:
        return extra(payload)

    def is_silent(self, path: str) -> bool:
        silent = ("tokenize", "detokenize", "count_tokens", "transcriptions", "cancel", "/api/show")
        return not path.startswith(("/v1/", "/api/")) or path.endswith(silent)

    def test_no_front_end_makes_a_processor_of_a_client(self, client: httpx.Client):
        """With ``return_sampling_mask``, one makes it to see what it is. There are several."""
        body = generate({"custom_logit_processor": "{}", "return_sampling_mask": True})
        for _ in range(4):
            reply = client.post("/generate", json=body)
            assert (reply.status_code, REFUSED in reply.text) == (400, True)
        body = {"text": PROMPT, "sampling_params": {"custom_params": [1]}}
        assert client.post("/generate", json=body).status_code == 400

    def test_put(self, client: httpx.Client, spec: lp.ForcedTokenSequenceSpec):
        assert client.put("/generate", json=generate(extra(BAD))).status_code == 400
        body = generate(extra(lp.encode(spec)))
        assert client.put("/generate", json=body).json()["text"] == TEXT

    def test_own_fields_that_do_not_contradict(self, client: httpx.Client, tokenizer: Any):
        """The specs come last: a bias, however large, only moves what they leave."""
        spec = lp.ForcedTokenSequenceSpec.from_text(TEXT + " here", tokenizer)
        for fields in ({"min_new_tokens": 2}, {"logit_bias": {"14226": -100.0}}):
            body = attach(generate({}), spec)
            body["sampling_params"] |= fields
            assert client.post("/generate", json=body).json()["text"] == TEXT + " here"

    @pytest.mark.parametrize(("grammar", "expected"), GRAMMARS)
    def test_grammars(self, ask: Any, grammar: lp.GrammarSpec, expected: tuple[str, ...]):
        extra = extra_body("sglang", (grammar, lp.SamplingSpec(temperature=0, top_k=0)))
        body = {"prompt": PROMPT, "max_tokens": 12, **extra}
        assert ask("/v1/completions", body).json()["choices"][0]["text"] in expected

    def test_a_grammar_between_texts(self, ask: Any, tokenizer: Any):
        start, end, last = map(tokenizer.encode, ("<think>", "</think>", " Done."))
        spec = thinking(start, end, last, tokenizer.eos_token_id)
        extra = extra_body("sglang", (spec, lp.SamplingSpec(temperature=1)))
        prompt = [*tokenizer.encode(PROMPT), *start]
        body = {"prompt": prompt, "max_tokens": LONGEST, "n": 4, **extra}
        for choice in ask("/v1/completions", body).json()["choices"]:
            _, _, said = choice["text"].partition("</think>")
            jsonschema.validate(json.loads(said.removesuffix(" Done.")), SCHEMA)
            assert said.endswith(" Done.")

    def test_banned_text(self, ask: Any):
        body = completions(extra_body("sglang", (BANNED, lp.SamplingSpec(temperature=1))))
        text = ask("/v1/completions", body).json()["choices"][0]["text"]
        assert is_free_of_banned(text), text

    def test_metrics(self, client: httpx.Client, spec: lp.ForcedTokenSequenceSpec):
        client.post("/generate", json=generate(extra(lp.encode(spec))))
        line = 'logitport_requests_total{decision="admitted",stage="agg"}'
        assert line in client.get("/metrics").text
