"""Grammars that logitport follows: in phases, beside drafts, and where an output goes on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from logitport import spec as lp
from logitport.spec import GrammarSpec, Phase, PhaseEnd, PhasesSpec

from .in_process import Engine, engine, lookup, params

pytestmark = pytest.mark.engine

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
ANSWER = GrammarSpec(json_schema=SCHEMA)
PROMPT = "Describe a person as JSON, with a name, an age and some tags: "
REPLIES = 100


@pytest.fixture(scope="module")
def running(model: Path, runner: str) -> Iterator[Engine]:
    drafts = {"speculative_config": lookup(3)} if runner == "v2" else {}
    with engine(model, runner=runner, **drafts) as running:
        yield running


def thinking(tokenizer: Any) -> PhasesSpec:
    """Think for twelve tokens at most, then answer, then say a text."""
    ids = {text: tuple(tokenizer.encode(text)) for text in ("<think>", "</think>", " Done.")}
    budget = lp.ThinkingBudgetSpec(12, ids["<think>"], ids["</think>"])
    answer = Phase((ANSWER,), (PhaseEnd(complete=True),))
    last = Phase((lp.ForcedTokenSequenceSpec(ids[" Done."], tokenizer.eos_token_id),))
    first = Phase((budget,), (PhaseEnd(complete=True),))
    return PhasesSpec((first, answer, last), stop_token_ids=(tokenizer.eos_token_id,))


def test_replies_think_and_then_answer(running: Engine, tokenizer: Any):
    spec = thinking(tokenizer)
    asked = [params(spec, max_tokens=120, temperature=1.0, seed=i) for i in range(REPLIES)]
    prompt = [*tokenizer.encode(PROMPT), *tokenizer.encode("<think>")]
    outputs = running.generate([{"prompt_token_ids": prompt}] * REPLIES, asked)
    for output in outputs:
        text = tokenizer.decode(output.token_ids, skip_special_tokens=True)
        _, _, answer = text.partition("</think>")
        assert answer.endswith(" Done."), text
        jsonschema.validate(json.loads(answer.removesuffix(" Done.")), SCHEMA)
    if running.drafts:
        assert sum(each.accepted for each in running.drafts) >= 0


def test_an_output_goes_on(running: Engine, tokenizer: Any):
    (whole,) = running.generate([PROMPT], [params(PhasesSpec((Phase((ANSWER,)),)), max_tokens=80)])
    text = tokenizer.decode(whole.token_ids, skip_special_tokens=True)
    jsonschema.validate(json.loads(text), SCHEMA)
    prompt = tokenizer.encode(PROMPT)
    for count in (1, 5, len(whole.token_ids) - 2):
        begun = {"prompt_token_ids": [*prompt, *whole.token_ids[:count]]}
        (rest,) = running.generate([begun], [params(ANSWER, max_tokens=80, continued=count)])
        assert [*whole.token_ids[:count], *rest.token_ids] == [*whole.token_ids]
