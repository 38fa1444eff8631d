"""Native kinds on the real engine: what they ask for is done, and as if asked for by hand."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from logitport import spec as lp
from logitport.adapters.vllm import KEY, attach

from .in_process import FLAG, Engine, engine, params, refused

if TYPE_CHECKING:
    from vllm import SamplingParams

pytestmark = pytest.mark.engine

ONE_RUNNER = pytest.mark.only("v1", reason="the request's fields are the same, their kernels slow")

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
    with engine(model, structured_outputs_config=backend) as running:
        yield running


def test_grammars(running: Engine):
    """All forms in one batch, alone and with other kinds, beside a request without any."""

    def outputs(*others: list[Any]) -> Any:
        asked = [
            attach(_plain(), [grammar, lp.SamplingSpec(temperature=0), *specs])
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


FIELDS = {
    "temperature": 0.3,
    "top_p": 0.2,
    "top_k": 2,
    "min_p": 0.5,
    "presence_penalty": 2.0,
    "frequency_penalty": 2.0,
    "repetition_penalty": 2.0,
}


@ONE_RUNNER
def test_sampling_is_as_set_by_hand(running: Engine):
    chosen = [{name: value} for name, value in FIELDS.items()]
    chosen += [{"temperature": 0}, {"temperature": 0, "top_p": 0.2}, FIELDS]
    prompts = [PROMPT] * len(chosen)
    short = partial(_plain, 16)
    plain = running.generate(prompts, [short() for _ in chosen])
    by_hand = running.generate(prompts, [short(**fields) for fields in chosen])
    attached = running.generate(
        prompts, [attach(short(), lp.SamplingSpec(**fields)) for fields in chosen]
    )
    for fields, ours, theirs, without in zip(chosen, attached, by_hand, plain, strict=True):
        assert ours.token_ids == theirs.token_ids, fields
        assert ours.token_ids != without.token_ids, fields
    (greedy,) = running.generate([PROMPT], [short(temperature=0)])
    assert attached[len(FIELDS)].token_ids == greedy.token_ids


def test_parameters_that_were_used_can_be_attached_to_again(running: Engine):
    grammar, matches = GRAMMARS["regex"]
    used = _plain()
    for specs in ([grammar], [grammar, lp.BannedTokensSpec((5,))]):
        (result,) = running.generate([PROMPT], [attach(used, specs)])
        assert matches(result.text)


def test_beside_a_grammar_of_the_request_itself(running: Engine, tokenizer: Any):
    """As an HTTP client can set them, without ``attach``."""
    from vllm.sampling_params import StructuredOutputsParams

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


@pytest.mark.parametrize(
    "spec", [GRAMMARS["regex"][0], lp.SamplingSpec(temperature=0)], ids=lambda spec: spec.kind
)
def test_refused_in_a_payload(running: Engine, spec: Any):
    with refused(rf"`{spec.kind}` by itself.*`\$\.specs\[0\]`"):
        running.generate([PROMPT], [params(extra_args={KEY: lp.encode(spec)})])
    assert running.held_requests() == 0


def test_thinking_budget_before_a_grammar(model: Path, tokenizer: Any):
    """vLLM begins with the grammar after a block of thoughts, which the budget ends."""
    from vllm.reasoning import ReasoningParserManager
    from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser

    class Tags(BaseThinkingReasoningParser):  # two single tokens of the model's vocabulary
        start_token, end_token = "<repo_name>", "<file_sep>"

    ReasoningParserManager.register_module("tags", force=True, module=Tags)
    budget = lp.ThinkingBudgetSpec.from_text(
        4, tokenizer, start=Tags.start_token, end=Tags.end_token, message=" Enough."
    )
    grammar, matches = GRAMMARS["choices"]
    with engine(model, reasoning_parser="tags", logits_processors=FLAG) as running:
        no_end_yet = lp.MinTokensSpec.from_tokenizer(4, tokenizer)
        asked = attach(params(max_tokens=40), [no_end_yet, budget, grammar])
        (output,) = running.generate([PROMPT + Tags.start_token], [asked])
    end = (*budget.message_token_ids, *budget.end_token_ids)
    thoughts, answer = output.token_ids[:4], output.token_ids[4 + len(end) :]
    assert tuple(output.token_ids) == (*thoughts, *end, *answer)
    assert not matches(tokenizer.decode(thoughts))
    assert output.finish_reason == "stop"
    assert matches(tokenizer.decode(answer, skip_special_tokens=True))


def _plain(max_tokens: int = 100, **fields: Any) -> "SamplingParams":
    from vllm import SamplingParams

    return SamplingParams(max_tokens=max_tokens, seed=5, **fields)
