"""Specs beside what a request to vLLM says by itself: its fields, a grammar, its prompt."""

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
import torch
from logitport import spec as lp
from logitport.adapters.vllm import attach
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from .in_process import Engine, params, refused

pytestmark = pytest.mark.slow

PROMPT = "The capital of France is"
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "rivers": {"type": "array", "items": {"enum": ["Seine", "Rhine"]}, "maxItems": 2},
    },
    "required": ["city", "rivers"],
    "additionalProperties": False,
}
ANSWER = {
    "type": "sequence",
    "elements": [
        {"type": "const_string", "value": "The answer: "},
        {"type": "json_schema", "json_schema": {"enum": ["cats", "dogs"]}},
    ],
}
PETS = 'root ::= pet " and " pet "."\npet ::= "cats" | "dogs" | "birds"'


def _matches(pattern: str) -> Callable[[str], Any]:
    return re.compile(pattern).fullmatch


# The grammar | whether a text is one of its own, or raises.
GRAMMARS: list[tuple[lp.GrammarSpec, Callable[[str], Any]]] = [
    (
        lp.GrammarSpec(json_schema=SCHEMA),
        lambda text: jsonschema.validate(json.loads(text), SCHEMA) is None,
    ),
    (lp.GrammarSpec(regex=r"\d{3}-[a-f]{2}"), _matches(r"\d{3}-[a-f]{2}")),
    (lp.GrammarSpec(ebnf=PETS), _matches(r"(cats|dogs|birds) and (cats|dogs|birds)\.")),
    (lp.GrammarSpec(choices=("London", "Berlin")), {"London", "Berlin"}.__contains__),
    (
        lp.GrammarSpec(structural_tag={"type": "structural_tag", "format": ANSWER}),
        _matches(r'The answer: "(cats|dogs)"'),
    ),
]


@pytest.fixture
def running(embedding: Engine) -> Engine:
    return embedding


def test_grammars(running: Engine):
    """All forms in one batch, alone and with other kinds, beside a request without any."""

    def outputs(*others: list[Any]) -> Any:
        asked = [
            attach(
                SamplingParams(max_tokens=100, seed=5),
                [grammar, lp.SamplingSpec(temperature=0), *specs],
            )
            for (grammar, _), specs in zip(GRAMMARS, others, strict=True)
        ]
        *results, free = running.generate([PROMPT] * 6, [*asked, params(max_tokens=60)])
        assert free.token_ids == expected.token_ids
        for result, (_, matches) in zip(results, GRAMMARS, strict=True):
            assert result.finish_reason == "stop"
            assert matches(result.text)
        return results

    (expected,) = running.generate([PROMPT], [params(max_tokens=60)])
    first_tokens = [result.token_ids[0] for result in outputs([], [], [], [], [])]
    banned = outputs(
        *([lp.BannedTokensSpec((token,)), lp.LogitBiasSpec({token: -9})] for token in first_tokens)
    )
    # An object has to begin with a brace: what is banned stays possible if nothing else is.
    for token, result in zip(first_tokens[1:], banned[1:], strict=True):
        assert result.token_ids[0] != token


def test_beside_a_grammar_of_the_request_itself(running: Engine, tokenizer: Any):
    """As an HTTP client can set them, without ``attach``."""
    digits = tokenizer.convert_tokens_to_ids(list("0123456789"))
    asked = [
        params(lp.AllowedTokensSpec(digits)),  # but no EOS
        params(lp.AllowedTokensSpec((*digits, tokenizer.eos_token_id))),
        params(lp.ForcedTokenSequenceSpec.from_text("Hello", tokenizer)),
    ]
    for sampling_params in asked:
        sampling_params.structured_outputs = StructuredOutputsParams(regex=r"\d{3}")
    with refused(r"Conflicts with the request's structured_outputs.*`\$\.specs\[0\]`"):
        running.generate([PROMPT], asked[2:])

    (expected,) = running.generate([PROMPT], [params()])
    allowed, well_allowed, free = running.generate([PROMPT] * 3, [*asked[:2], params()])
    assert allowed.finish_reason == "error"  # the grammar takes none of the tokens that are left
    assert well_allowed.finish_reason == "stop"
    assert re.fullmatch(r"\d{3}", well_allowed.text)
    assert free.token_ids == expected.token_ids


def _embeddings(running: Engine) -> dict[str, Any]:
    size = running.llm.llm_engine.model_config.get_hidden_size()
    return {"prompt_embeds": torch.zeros((6, size), dtype=torch.float32)}


PARIS = "Paris is nice."
TEXT = [{"kind": "forced_sequence", "text": PARIS}]
READS_IDS = r"looks at the token ids of the prompt.*`\$\.specs\[0\]`"


# the request's specs | its own fields, ``None`` for a prompt of embeddings | the refusal
@pytest.mark.parametrize(
    ("specs", "fields", "message"),
    [
        (TEXT, {"min_tokens": 30}, r"`min_tokens`.*`\$\.specs\[0\]\.eos_token_id`"),
        # Several tokens in some vocabularies.
        (TEXT, {"bad_words": ["Paris"]}, r"`bad_words`.*`\$\.specs\[0\]\.token_ids\["),
        (TEXT, {"allowed_token_ids": [5, 6]}, r"`allowed_token_ids`.*specs\[0\]\.token_ids\[0\]`"),
        (lp.PromptBiasSpec(2.0), None, f"`prompt_bias` {READS_IDS}"),
        (lp.NoRepeatNgramSpec(2), None, f"`no_repeat_ngram` {READS_IDS}"),
        (lp.ThinkingBudgetSpec(4, (5,), (6,)), None, f"`thinking_budget` {READS_IDS}"),
        ((), {"extra_args": {"logit_port": "{}"}}, "Expected the key `logitport`, got 'logit_port"),
    ],
)
def test_refused(running: Engine, specs: Any, fields: Any, message: str):
    prompt = _embeddings(running) if fields is None else "Hello"
    with refused(message):
        running.generate([prompt], [params(specs, max_tokens=40, **(fields or {}))])


def test_what_is_left_is_obeyed(running: Engine, tokenizer: Any):
    """Texts of the wire are for the engine's tokenizer."""
    forced = lp.ForcedTokenSequenceSpec.from_text(PARIS, tokenizer)
    fields: dict[str, Any] = {
        "min_tokens": len(forced.token_ids),
        "bad_words": ["London"],
        "allowed_token_ids": [*forced.token_ids, tokenizer.eos_token_id],
    }
    prompts = ["Hello", _embeddings(running)]
    allowed = params(lp.AllowedTokensSpec((40, 41)), max_tokens=4)
    asked = [params(TEXT, max_tokens=20, **fields), allowed]
    text, of_embeddings = running.generate(prompts, asked)
    assert text.text == PARIS
    assert set(of_embeddings.token_ids) <= {40, 41}
