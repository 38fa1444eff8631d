"""Specs beside what a request to vLLM says by itself, and beside its own one-token reads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logitport import spec as lp
from logitport.adapters.vllm import KEY

from .in_process import Engine, engine, lookup, params, refused

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def running(model: Path) -> Iterator[Engine]:
    with engine(model, enable_prompt_embeds=True) as running:
        yield running


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


@pytest.mark.only("v2", reason="V1 takes no processors beside drafts")
def test_drafts_that_are_kept_whatever_the_logits(model: Path, runner: str):
    kept = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
    with engine(model, speculative_config=lookup(2, 2, **kept)) as running:
        message = _refused(running, "Hello", params(lp.BannedTokensSpec((5,))))
    assert "keeps draft tokens that the logits rule out (method=synthetic)" in message
    assert "standard or block" in message
