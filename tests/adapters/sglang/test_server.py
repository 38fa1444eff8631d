"""SGLang's OpenAI server, asked with the ``openai`` client."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any

import httpx
import pytest
from logitport import spec as lp
from logitport.adapters import Support, extra_body, probe
from logitport.adapters.sglang import KEY
from openai import OpenAI

from examples._support.sglang_server import SglangServer
from tests.support.curl import check_choice, commands
from tests.support.texts import BANNED, is_free_of_banned

pytestmark = pytest.mark.engine

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def client(server: SglangServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        yield client


def complete(client: OpenAI, specs: Any, prompt: Any = PROMPT) -> str:
    body = extra_body("sglang", specs)
    asked = {"model": "any", "prompt": prompt, "max_tokens": 12}
    if "temperature" not in body:
        asked["temperature"] = 0
    return client.completions.create(**asked, extra_body=body).choices[0].text


def test_probe(client: OpenAI):
    assert probe(client, "any", "sglang") is Support.ACTS


def test_texts_of_a_client_without_a_tokenizer(client: OpenAI):
    """As with curl: a chat, and no helper of ours."""
    specs = [{"kind": "choice", "texts": ["under the oak", "in the cellar"]}]
    body = {
        "model": "any",
        "messages": [{"role": "user", "content": "Where is the treasure?"}],
        "custom_params": {KEY: json.dumps(specs)},
    }
    address = f"{str(client.base_url).rstrip('/')}/chat/completions"
    reply = httpx.post(address, json=body, timeout=600).json()
    assert reply["choices"][0]["message"]["content"] in specs[0]["texts"]
    specs[0]["texts"] = ["yes", ""]
    reply = httpx.post(address, json=body | {"custom_params": {KEY: specs}}, timeout=600)
    assert (reply.status_code, "$[0].texts[1]" in reply.text) == (400, True)


def test_the_chat_by_curl(client: OpenAI):
    check_choice(commands()[1], str(client.base_url), "any")


def test_requests_side_by_side(client: OpenAI, tokenizer: Any):
    """Of different lengths, with and without specs, more than the server runs at once."""
    words = [" London", " Rome", " Berlin", " Madrid"]
    hot = lp.SamplingSpec(temperature=1)
    kinds: list[Sequence[lp.LogitsProcessorSpec]] = [
        (),
        (lp.ChoiceSpec.from_text(words, tokenizer),),
        (lp.BannedSequencesSpec.from_words(["Paris"], tokenizer),),
        (lp.TriggerSpec.from_text(" Paris", " or so they say", tokenizer),),
        (lp.ForcedTokenSequenceSpec.from_text(" nowhere", tokenizer),),
    ]
    specs = kinds * 2 + [(BANNED, hot)] * 2
    prompts = [PROMPT if i % 3 else "word " * 150 + PROMPT for i in range(len(specs))]
    alone = [complete(client, *each) for each in zip(specs[:10], prompts, strict=False)]
    with ThreadPoolExecutor(len(specs)) as threads:
        together = [*threads.map(complete, repeat(client), specs, prompts)]
    assert together[:10] == alone
    assert together[1] in words
    assert "Paris" not in together[2]
    assert together[4] == " nowhere"
    assert all(map(is_free_of_banned, together[10:]))


# a grammar | what it takes
GRAMMARS: list[tuple[lp.GrammarSpec, tuple[str, ...]]] = [
    (lp.GrammarSpec(regex="(Rome|Oslo)!"), ("Rome!", "Oslo!")),
    (lp.GrammarSpec(choices=('a "quoted" one', "Grüße")), ('a "quoted" one', "Grüße")),
    (lp.GrammarSpec(ebnf='root ::= "x" "y"'), ("xy",)),
    (lp.GrammarSpec(json_schema={"enum": [1, 2]}), ("1", "2")),
    (
        lp.GrammarSpec(
            structural_tag={
                "type": "structural_tag",
                "format": {"type": "json_schema", "json_schema": {"enum": [1, 2]}},
            }
        ),
        ("1", "2"),
    ),
]


def test_grammars(client: OpenAI):
    for grammar, expected in GRAMMARS:
        assert complete(client, (grammar, lp.SamplingSpec(temperature=0, top_k=0))) in expected


def test_metrics(client: OpenAI, tokenizer: Any):
    complete(client, lp.ForcedTokenSequenceSpec.from_text("Exactly this", tokenizer))
    line = 'logitport_requests_total{decision="admitted",stage="agg"}'
    assert (
        line in httpx.get(str(client.base_url.join("/metrics")), timeout=600, trust_env=False).text
    )
