"""SGLang's OpenAI server, asked with the ``openai`` client."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import httpx
import pytest
from logitport import spec as lp
from logitport.adapters import Support, extra_body, probe
from logitport.adapters.conformance.reference import obeys
from logitport.adapters.sglang import KEY, attach
from logitport.adapters.sglang.admission import REFUSED
from openai import BadRequestError, OpenAI

from examples._support.sglang_server import SglangServer
from tests.support.curl import check_choice, commands
from tests.support.texts import BANNED, is_free_of_banned

pytestmark = pytest.mark.engine

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def client(model: Path) -> Iterator[OpenAI]:
    # Two front ends, which SGLang starts otherwise than the one that engines of other tests have.
    arguments = ("--enable-metrics", "--chunked-prefill-size", "64", "--tokenizer-worker-num", "2")
    with SglangServer(model, *arguments) as server:
        yield OpenAI(base_url=server.base_url, api_key="none", max_retries=0)


@pytest.fixture
def forced(tokenizer: Any) -> lp.ForcedTokenSequenceSpec:
    return lp.ForcedTokenSequenceSpec.from_text('Exactly this: "Grüße" 🙂', tokenizer)


def complete(client: OpenAI, specs: Any, prompt: Any = PROMPT) -> str:
    body = extra_body("sglang", specs)
    asked = {"model": "any", "prompt": prompt, "max_tokens": 16}
    if "temperature" not in body:
        asked["temperature"] = 0
    return client.completions.create(**asked, extra_body=body).choices[0].text


def test_probe(client: OpenAI, model: Path):
    assert probe(client, model.name, "sglang") is Support.ACTS
    with SglangServer(model, env={"SGLANG_PLUGINS": "none"}) as server:
        without = OpenAI(base_url=server.base_url, api_key="none", max_retries=0)
        assert probe(without, model.name, "sglang") is Support.IGNORED


def test_banned_text(client: OpenAI):
    for _ in range(3):
        text = complete(client, [BANNED, lp.SamplingSpec(temperature=1)])
        assert is_free_of_banned(text), text


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_chat(client: OpenAI, forced: lp.ForcedTokenSequenceSpec, stream: bool):
    reply = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "Where is the treasure?"}],
        max_tokens=32,
        stream=stream,
        extra_body=extra_body("sglang", forced),
    )
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in reply if chunk.choices)
    else:
        text = reply.choices[0].message.content
    assert text == 'Exactly this: "Grüße" 🙂'


@pytest.mark.parametrize("as_text", [False, True], ids=["object", "text"])
def test_texts_of_a_client_without_a_tokenizer(client: OpenAI, as_text: bool):
    """As with curl: a chat, and no helper of ours."""
    specs = [{"kind": "choice", "texts": ["under the oak", "in the cellar"]}]
    body = {
        "model": "any",
        "messages": [{"role": "user", "content": "Where is the treasure?"}],
        "custom_params": {KEY: json.dumps(specs) if as_text else specs},
    }
    address = f"{str(client.base_url).rstrip('/')}/chat/completions"
    reply = httpx.post(address, json=body, timeout=60).json()
    assert reply["choices"][0]["message"]["content"] in specs[0]["texts"]
    specs[0]["texts"] = ["yes", ""]
    reply = httpx.post(address, json=body | {"custom_params": {KEY: specs}}, timeout=60)
    assert (reply.status_code, "$[0].texts[1]" in reply.text) == (400, True)


def test_the_chat_by_curl(client: OpenAI):
    check_choice(commands()[1], str(client.base_url), "any")


def test_requests_side_by_side(client: OpenAI, tokenizer: Any):
    """Of different lengths, with and without specs, more than the server runs at once."""
    words = [" London", " Rome", " Berlin", " Madrid"]
    specs: list[Sequence[lp.LogitsProcessorSpec]] = [
        (),
        (lp.ChoiceSpec.from_text(words, tokenizer),),
        (lp.BannedSequencesSpec.from_words(["Paris"], tokenizer),),
        (lp.TriggerSpec.from_text(" Paris", " or so they say", tokenizer),),
        (lp.ForcedTokenSequenceSpec.from_text(" nowhere", tokenizer),),
    ] * 2
    prompts = [PROMPT if i % 3 else "word " * 150 + PROMPT for i in range(len(specs))]
    alone = [complete(client, each, prompt) for each, prompt in zip(specs, prompts, strict=True)]
    with ThreadPoolExecutor(len(specs)) as threads:
        together = [*threads.map(complete, repeat(client), specs, prompts)]
    assert together == alone
    assert together[1] in words
    assert "Paris" not in together[2]
    assert together[4] == " nowhere"


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
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
    ],
    ids=["regex", "choices", "ebnf", "json_schema", "structural_tag"],
)
def test_grammar(client: OpenAI, grammar: lp.GrammarSpec, expected: tuple[str, ...]):
    assert complete(client, (grammar, lp.SamplingSpec(temperature=0, top_k=0))) in expected


def test_thinking_budget_of_a_prompt_that_thinks(client: OpenAI, tokenizer: Any):
    spec = lp.ThinkingBudgetSpec.from_text(5, tokenizer, start="<think>", end="</think>")
    prompt = tokenizer.encode("<think>Well,")
    output = tokenizer.encode(complete(client, spec, prompt), add_special_tokens=False)
    assert obeys(spec, prompt, output)
    assert "</think>" in tokenizer.decode(output)


BAD = [
    ("no JSON", {"custom_params": {KEY: "{"}}, "logitport: The payload is not valid JSON"),
    (
        "path",
        {"custom_params": {KEY: '{"version":1,"specs":[{"kind":"choice","choices":[[]]}]}'}},
        "$.specs[0].choices[0]",
    ),
    (
        "vocabulary",
        extra_body("sglang", lp.ForcedTokenSequenceSpec((49152,))),
        "beyond the vocabulary of 49152 tokens",
    ),
    ("processor", {"custom_logit_processor": '{"callable": "00"}'}, REFUSED),
    (
        "grammar",
        extra_body("sglang", lp.ForcedTokenSequenceSpec((7,))) | {"regex": "a+"},
        "which may not take the tokens that `forced_sequence` forces",
    ),
]


@pytest.mark.parametrize(("body", "reason"), [case[1:] for case in BAD], ids=[c[0] for c in BAD])
def test_what_is_wrong_is_a_400(client: OpenAI, body: dict[str, Any], reason: str):
    for create, prompt in (
        (client.completions.create, {"prompt": PROMPT}),
        (client.chat.completions.create, {"messages": [{"role": "user", "content": PROMPT}]}),
    ):
        with pytest.raises(BadRequestError) as error:
            create(model="any", **prompt, extra_body=body)
        assert reason in str(error.value)


def test_its_own_route(client: OpenAI, forced: lp.ForcedTokenSequenceSpec):
    """``POST /generate``, with several prompts, and what a processor of code would do there."""
    url = str(client.base_url.join("/generate"))
    one = attach({"sampling_params": {"max_new_tokens": 32}}, forced)
    body = {"text": [PROMPT, PROMPT]} | {name: [value] * 2 for name, value in one.items()}
    texts = [each["text"] for each in httpx.post(url, json=body, timeout=60).json()]
    assert texts == ['Exactly this: "Grüße" 🙂'] * 2
    body["custom_logit_processor"][1] = '{"callable": "00"}'
    for wrong, reason in (
        (body, REFUSED),
        # With which a front end makes the processor, to see what it is.
        (body | {"return_sampling_mask": True, "custom_logit_processor": ["{}"] * 2}, REFUSED),
        ({"text": PROMPT, "sampling_params": {"custom_params": [1]}}, "custom_params"),
    ):
        refused = httpx.post(url, json=wrong, timeout=60)
        assert (refused.status_code, reason in refused.text) == (400, True)
        if reason == REFUSED:  # each front end has the middleware
            for _ in range(4):
                assert httpx.post(url, json=wrong | {"stream": True}, timeout=60).status_code == 400


def test_metrics(client: OpenAI, forced: lp.ForcedTokenSequenceSpec):
    url = str(client.base_url.join("/metrics"))
    assert complete(client, forced) == 'Exactly this: "Grüße" 🙂'
    line = 'logitport_requests_total{decision="admitted",stage="agg"}'
    assert line in httpx.get(url).text
