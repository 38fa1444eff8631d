"""Specs on engines that no other test starts: with a reasoning parser, or drafts that are kept."""

from pathlib import Path
from typing import Any

import pytest
from logitport import spec as lp
from logitport.adapters.vllm import attach

from . import mixed_batch
from .in_process import FLAG, Engine, engine, lookup, params, refused

pytestmark = pytest.mark.slow

PROMPT = "The capital of France is"


@pytest.mark.only("v1", reason="while it thinks there is no grammar, so nothing of the runner's")
def test_thinking_budget_before_a_grammar(model: Path, runner: str, tokenizer: Any):
    """vLLM begins with the grammar after a block of thoughts, which the budget ends."""
    from vllm.reasoning import ReasoningParserManager
    from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser

    class Tags(BaseThinkingReasoningParser):  # two single tokens of the model's vocabulary
        start_token, end_token = "<repo_name>", "<file_sep>"

    ReasoningParserManager.register_module("tags", force=True, module=Tags)
    budget = lp.ThinkingBudgetSpec.from_text(
        4, tokenizer, start=Tags.start_token, end=Tags.end_token, message=" Enough."
    )
    choices = "London", "Berlin"
    with engine(model, reasoning_parser="tags", logits_processors=FLAG) as running:
        no_end_yet = lp.MinTokensSpec.from_tokenizer(4, tokenizer)
        asked = attach(params(max_tokens=40), [no_end_yet, budget, lp.GrammarSpec(choices=choices)])
        (output,) = running.generate([PROMPT + Tags.start_token], [asked])
    end = (*budget.message_token_ids, *budget.end_token_ids)
    thoughts, answer = output.token_ids[:4], output.token_ids[4 + len(end) :]
    assert tuple(output.token_ids) == (*thoughts, *end, *answer)
    assert tokenizer.decode(thoughts) not in choices
    assert output.finish_reason == "stop"
    assert tokenizer.decode(answer, skip_special_tokens=True) in choices


@pytest.mark.only("v2", reason="V1 takes no processors beside drafts")
def test_drafts_that_are_kept_whatever_the_logits(model: Path, runner: str):
    kept = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
    message = r"keeps draft tokens that the logits rule out \(method=synthetic\).*standard or block"
    with engine(model, speculative_config=lookup(2, 2, **kept)) as running, refused(message):
        running.generate(["Hello"], [params(lp.BannedTokensSpec((5,)))])


@pytest.mark.only("v2", reason="V1 takes no processors beside drafts")
def test_all_kinds_beside_drafts(
    drafting: Engine, runner: str, tokenizer: Any, caplog: pytest.LogCaptureFixture
):
    mixed_batch.check(drafting, tokenizer, caplog, drafts=3)
    mixed_batch.check_texts_at_the_end(drafting, tokenizer)
