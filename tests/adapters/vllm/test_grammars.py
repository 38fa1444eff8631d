"""Grammars that logitport follows: in phases, beside drafts, and where an output goes on."""

import json
import re
from typing import Any

import jsonschema
import pytest
from logitport.spec import GrammarSpec, Phase, PhasesSpec

from tests.support.grammars import ANSWER, LONGEST, SCHEMA, answer_of, thinking

from .in_process import Engine, params

PROMPT = "Describe a person as JSON, with a name, an age and some tags: "


@pytest.fixture
def running(drafting: Engine) -> Engine:
    return drafting


@pytest.mark.slow
def test_replies_think_and_then_answer(running: Engine, runner: str, tokenizer: Any):
    replies = 20 if runner == "v1" else 12  # whose kernels are interpreted
    start, end, last = map(tokenizer.encode, ("<think>", "</think>", " Done."))
    spec = thinking(start, end, last, tokenizer.eos_token_id)
    # No seeds: on a CPU, vLLM's generators do not go with prompts in chunks.
    asked = [params(spec, max_tokens=LONGEST, temperature=1.0)] * replies
    prompt = {"prompt_token_ids": [*tokenizer.encode(PROMPT), *start]}
    outputs = running.generate([prompt] * replies, asked)
    how = tokenizer.decode, end, last, tokenizer.eos_token_id
    answers = [answer_of(output.token_ids, *how) for output in outputs]
    assert len({answer["name"] for answer in answers}) > 3  # they are sampled
    if runner == "v2":
        assert sum(each.accepted for each in running.drafts) > 0
        assert sum(each.rejected for each in running.drafts) > 0
    assert running.held_requests() == 0


def test_an_output_goes_on(running: Engine, tokenizer: Any):
    whole_of = PhasesSpec((Phase((ANSWER,)),))
    (whole,) = running.generate([PROMPT], [params(whole_of, max_tokens=LONGEST)])
    text = tokenizer.decode(whole.token_ids, skip_special_tokens=True)
    jsonschema.validate(json.loads(text), SCHEMA)
    prompt = tokenizer.encode(PROMPT)
    for count in (1, 5, len(whole.token_ids) - 2):
        begun = {"prompt_token_ids": [*prompt, *whole.token_ids[:count]]}
        (rest,) = running.generate([begun], [params(ANSWER, max_tokens=LONGEST, continued=count)])
        assert [*whole.token_ids[:count], *rest.token_ids] == [*whole.token_ids]


def test_a_grammar_that_comes_last_ends_the_reply(running: Engine, tokenizer: Any):
    """Nothing follows the text, though no token is named that ends it."""
    begin = "Here it is:"
    spec = PhasesSpec.prefix_then(tokenizer.encode(begin), ANSWER)
    (output,) = running.generate([PROMPT], [params(spec, max_tokens=LONGEST)])
    text = tokenizer.decode(output.token_ids, skip_special_tokens=True)
    jsonschema.validate(json.loads(text.removeprefix(begin)), SCHEMA)
    assert output.token_ids[-1] == tokenizer.eos_token_id


@pytest.mark.slow
def test_the_engines_own_stays(running: Engine, tokenizer: Any):
    """A grammar by itself is vLLM's; with white space of its own, logitport's."""
    yes = params(GrammarSpec(choices=("yes", "no")), max_tokens=5)
    assert yes.structured_outputs is not None
    assert yes.extra_args is None
    narrow = GrammarSpec(json_schema=SCHEMA, whitespace_pattern="")
    ours = params(narrow, max_tokens=LONGEST)
    assert ours.structured_outputs is None
    for output in running.generate([PROMPT], [ours]):
        text = tokenizer.decode(output.token_ids, skip_special_tokens=True)
        jsonschema.validate(json.loads(text), SCHEMA)
        assert not re.search(r"\s", re.sub(r'"[^"]*"', "", text))
