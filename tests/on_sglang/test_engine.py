"""What a worker of SGLang does with specs, its front end out of the way or not."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from logitport.adapters.conformance.obeys import obeys
from logitport.adapters.sglang import KEY, PROCESSOR, attach
from logitport.adapters.sglang.admission import REFUSED, Admission
from logitport.spec import (
    BannedTokensSpec,
    ChoiceSpec,
    ForcedTokenSequenceSpec,
    LogitsProcessorSpec,
    NoRepeatNgramSpec,
    TriggerSpec,
)

from tests.model_of_chance import EOS, model_of_chance

from .in_process import engine

pytestmark = pytest.mark.engine

PROMPTS = [[5 + i, 17, 100 + i] for i in range(8)]
FORCED = ForcedTokenSequenceSpec((10, 11, 12), EOS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model_of_chance(1).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def small(model: Path) -> Iterator[Any]:
    """An engine that takes in more requests than it has room for, and puts some back."""
    with engine(
        model,
        skip_tokenizer_init=True,
        max_total_tokens=300,
        schedule_conservativeness=0.01,
        disable_radix_cache=True,
    ) as running:
        yield running


def generate(running: Any, specs: Sequence[Any], max_tokens: int = 16) -> list[Any]:
    """Results for ``PROMPTS``, or what was raised.

    Args:
        running: the engine.
        specs: of the first prompts; a dict is all of a request but its prompt.
        max_tokens: of each output.
    """
    requests = [
        each if isinstance(each, dict) else attach(_request(max_tokens), each)
        for each in [*specs, *((),) * (len(PROMPTS) - len(specs))]
    ]

    async def all_at_once() -> list[Any]:
        each = (
            running.async_generate(input_ids=prompt, **request)
            for prompt, request in zip(PROMPTS, requests, strict=True)
        )
        return await asyncio.gather(*each, return_exceptions=True)

    return running.loop.run_until_complete(all_at_once())


def outputs(results: Sequence[Any]) -> list[list[int]]:
    return [result["output_ids"] for result in results]


def _request(max_tokens: int = 16, processor: str | None = None, **custom: Any) -> dict[str, Any]:
    sampling_params = {"temperature": 0, "max_new_tokens": max_tokens}
    if custom:
        sampling_params["custom_params"] = custom
    return {"sampling_params": sampling_params, "custom_logit_processor": processor}


def test_retracted_requests_go_on_where_they_were(small: Any):
    free = outputs(generate(small, [()], 90))
    specs: list[LogitsProcessorSpec] = [
        TriggerSpec((out[20],), (9, 8), None) if i % 2 else NoRepeatNgramSpec(2)
        for i, out in enumerate(free)
    ]
    alone = [
        small.generate(input_ids=prompt, **attach(_request(90), spec))["output_ids"]
        for prompt, spec in zip(PROMPTS, specs, strict=True)
    ]

    results = generate(small, specs, 90)

    assert sum(each["meta_info"]["num_retractions"] for each in results) > 0
    assert outputs(results) == alone
    for prompt, spec, result in zip(PROMPTS, specs, results, strict=True):
        assert obeys(spec, prompt, result["output_ids"])


CODE = '{"callable": "' + b"cos\nabort\n.".hex() + '"}'
"""A processor that would end the process which makes it."""

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("no JSON", _request(processor=PROCESSOR, **{KEY: "{"}), "not valid JSON"),
    ("no text", _request(processor=PROCESSOR, **{KEY: 7}), "Expected"),
    (
        "no such token",
        attach(_request(), BannedTokensSpec((512,))),
        "beyond the vocabulary of 512 tokens",
    ),
    ("code", _request(processor=CODE, any=1), REFUSED),
]


@pytest.mark.parametrize(
    ("request_", "reason"), [case[1:] for case in BAD], ids=[c[0] for c in BAD]
)
@pytest.mark.parametrize("checked", [True, False], ids=["front end", "worker"])
def test_a_bad_request_hurts_nobody_else(
    small: Any, monkeypatch: pytest.MonkeyPatch, request_: Any, reason: str, checked: bool
):
    free = outputs(generate(small, [()]))
    if not checked:
        monkeypatch.setattr(Admission, "admit", lambda self, request: None)
    bad, forced, *others = generate(small, [request_, FORCED])
    assert isinstance(bad, ValueError)
    assert reason in str(bad)
    assert forced["output_ids"] == [10, 11, 12, EOS]
    assert outputs(others) == free[2:]
    assert outputs(generate(small, [()])) == free


def test_a_request_need_not_name_the_processor(small: Any):
    request = attach(_request(), FORCED) | {"custom_logit_processor": None}
    assert generate(small, [request])[0]["output_ids"] == [10, 11, 12, EOS]


def test_several_outputs_of_a_prompt(small: Any):
    request = attach(_request(), ChoiceSpec(((5, 6), (7, 8)), EOS))
    request["sampling_params"] |= {"n": 4, "temperature": 1}
    results = small.generate(input_ids=PROMPTS[0], **request)
    assert len(results) == 4
    assert all(each["output_ids"] in ([5, 6, EOS], [7, 8, EOS]) for each in results)


def test_tokens_that_come_late(model: Path, monkeypatch: pytest.MonkeyPatch):
    """With plain overlap scheduling, only what needs no tokens is let in."""
    late = {"SGLANG_ENABLE_DELAY_SAMPLE": "0"}
    with engine(model, late, skip_tokenizer_init=True, disable_overlap_schedule=False) as running:
        free = outputs(generate(running, [()]))
        banned = BannedTokensSpec((free[0][0],))
        for checked in (True, False):
            if not checked:
                monkeypatch.setattr(Admission, "admit", lambda self, request: None)
            static, needs_tokens, *others = generate(running, [banned, FORCED])
            assert obeys(banned, [], static["output_ids"])
            assert isinstance(needs_tokens, ValueError)
            assert "overlap scheduling tells too late" in str(needs_tokens)
            assert outputs(others) == free[2:]


def test_speculative_decoding(small: Any, monkeypatch: pytest.MonkeyPatch):
    """SGLang's drafts are verified without a call of any processor: nothing is let in."""
    from logitport.adapters.sglang import admission

    class Speculates:
        speculative_algorithm = "NGRAM"

    monkeypatch.setattr(admission, "get_spec", Speculates)
    assert "speculative decoding" in str(generate(small, [FORCED])[0])
