"""Specs beside what a request to vLLM says by itself: its fields, a grammar, its prompt."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from logitport import spec as lp
from logitport.adapters.vllm import KEY, attach
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from .in_process import Engine, engine, params, refused

pytestmark = pytest.mark.engine

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


def _is_valid_json(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


ANSWER = {
    "type": "sequence",
    "elements": [
        {"type": "const_string", "value": "The answer: "},
        {"type": "json_schema", "json_schema": {"enum": ["cats", "dogs"]}},
    ],
}

# The grammar | whether a text is one of its own.
GRAMMARS: dict[str, tuple[lp.GrammarSpec, Callable[[str], Any]]] = {
    "json_schema": (lp.GrammarSpec(json_schema=SCHEMA), _is_valid_json),
    "regex": (lp.GrammarSpec(regex=r"\d{3}-[a-f]{2}"), re.compile(r"\d{3}-[a-f]{2}").fullmatch),
    "ebnf": (
        lp.GrammarSpec(ebnf='root ::= pet " and " pet "."\npet ::= "cats" | "dogs" | "birds"'),
        re.compile(r"(cats|dogs|birds) and (cats|dogs|birds)\.").fullmatch,
    ),
    "choices": (lp.GrammarSpec(choices=("London", "Berlin")), {"London", "Berlin"}.__contains__),
    "structural_tag": (
        lp.GrammarSpec(structural_tag={"type": "structural_tag", "format": ANSWER}),
        re.compile(r'The answer: "(cats|dogs)"').fullmatch,
    ),
}


@pytest.fixture(scope="module")
def running(model: Path) -> Iterator[Engine]:
    # A greedy model may never end a document in which any white space is allowed.
    backend = {"backend": "xgrammar", "disable_any_whitespace": True}
    with engine(model, enable_prompt_embeds=True, structured_outputs_config=backend) as running:
        yield running


def test_grammars(running: Engine):
    """All forms in one batch, alone and with other kinds, beside a request without any."""

    def outputs(*others: list[Any]) -> Any:
        asked = [
            attach(
                SamplingParams(max_tokens=100, seed=5),
                [grammar, lp.SamplingSpec(temperature=0), *specs],
            )
            for (grammar, _), specs in zip(GRAMMARS.values(), others, strict=True)
        ]
        *results, free = running.generate([PROMPT] * 6, [*asked, params(max_tokens=60)])
        assert free.token_ids == expected.token_ids
        for result, (_, matches) in zip(results, GRAMMARS.values(), strict=True):
            assert result.finish_reason == "stop"
            assert matches(result.text)
        return results

    (expected,) = running.generate([PROMPT], [params(max_tokens=60)])
    first_tokens = [result.token_ids[0] for result in outputs([], [], [], [], [])]
    banned = outputs(
        *([lp.BannedTokensSpec((token,)), lp.LogitBiasSpec({token: -9})] for token in first_tokens)
    )
    for name, token, result in zip(GRAMMARS, first_tokens, banned, strict=True):
        # An object has to begin with a brace: what is banned stays possible if nothing else is.
        assert (result.token_ids[0] != token) or name == "json_schema"


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
    message = r"Conflicts with the request's structured_outputs.*`\$\.specs\[0\]`"
    with refused(message):
        running.generate([PROMPT], asked[2:])

    (expected,) = running.generate([PROMPT], [params()])
    allowed, well_allowed, free = running.generate([PROMPT] * 3, [*asked[:2], params()])
    assert allowed.finish_reason == "error"  # the grammar takes none of the tokens that are left
    assert well_allowed.finish_reason == "stop"
    assert re.fullmatch(r"\d{3}", well_allowed.text)
    assert free.token_ids == expected.token_ids


def _refused(running: Engine, prompt: Any, sampling_params: Any) -> str:
    with refused() as error:
        running.generate([prompt], [sampling_params])
    return str(error.value)


@pytest.fixture(scope="module")
def forced(tokenizer: Any) -> lp.ForcedTokenSequenceSpec:
    return lp.ForcedTokenSequenceSpec.from_text("Paris is nice.", tokenizer)


@pytest.mark.parametrize(
    ("field", "value", "place"),
    [
        ("min_tokens", 30, "$.specs[0].eos_token_id`"),
        ("bad_words", ["Paris"], "$.specs[0].token_ids["),  # several tokens in some vocabularies
        ("allowed_token_ids", [5, 6], "$.specs[0].token_ids[0]`"),
    ],
)
def test_what_a_field_rules_out_is_refused(
    running: Engine, forced: lp.ForcedTokenSequenceSpec, field: str, value: Any, place: str
):
    fields = {"extra_args": {KEY: lp.encode(forced)}, field: value}
    message = _refused(running, "Hello", params(max_tokens=40, **fields))
    assert f"the request's `{field}`" in message
    assert f"`{place}" in message


def test_what_a_field_leaves_is_obeyed(
    running: Engine, forced: lp.ForcedTokenSequenceSpec, tokenizer: Any
):
    fields: dict[str, Any] = {
        "min_tokens": len(forced.token_ids),
        "bad_words": ["London"],
        "allowed_token_ids": [*forced.token_ids, tokenizer.eos_token_id],
    }
    (output,) = running.generate(["Hello"], [params(forced, max_tokens=20, **fields)])
    assert output.text == "Paris is nice."


@pytest.mark.parametrize(
    "spec",
    [lp.PromptBiasSpec(2.0), lp.NoRepeatNgramSpec(2), lp.ThinkingBudgetSpec(4, (5,), (6,))],
    ids=lambda spec: spec.kind,
)
def test_a_prompt_of_embeddings_has_no_ids_to_look_at(
    running: Engine, spec: lp.LogitsProcessorSpec
):
    message = _refused(running, _embeddings(running), params(spec, max_tokens=4))
    assert f"`{spec.kind}` looks at the token ids of the prompt" in message
    assert "`$.specs[0]`" in message


def test_other_kinds_do_not_look_at_the_prompt(running: Engine):
    allowed = lp.AllowedTokensSpec((40, 41))
    (output,) = running.generate([_embeddings(running)], [params(allowed, max_tokens=4)])
    assert set(output.token_ids) <= {40, 41}


def _embeddings(running: Engine) -> dict[str, Any]:
    import torch

    size = running.llm.llm_engine.model_config.get_hidden_size()
    return {"prompt_embeds": torch.zeros((6, size), dtype=torch.float32)}


def test_a_misspelt_key_is_refused(running: Engine):
    message = _refused(running, "Hello", params(extra_args={"logit_port": "{}"}))
    assert "Expected the key `logitport`, got 'logit_port'" in message
