"""SGLang passes the conformance suite, and ends bad requests alone, checked in front or not."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logitport import spec as lp
from logitport.adapters.conformance import Output, Request
from logitport.adapters.reference import obeys
from logitport.adapters.sglang import BACKEND, KEY, PROCESSOR, attach
from logitport.adapters.sglang.admission import REFUSED, Admission

from tests.adapters.suite import TinySuite
from tests.support.endings import PROMPT as PROMPT_IDS
from tests.support.endings import REPLIES, assert_ended, ending
from tests.support.tiny_model import EOS

from .in_process import PROMPTS, engine, generate, outputs, request

VOCABULARY = 512
FORCED = lp.ForcedTokenSequenceSpec((10, 11, 12), EOS)


@pytest.fixture(scope="module")
def small(tiny_checkpoint: Path) -> Iterator[Any]:
    """An engine that takes in more requests than it has room for, and puts some back."""
    with engine(
        tiny_checkpoint,
        skip_tokenizer_init=True,
        chunked_prefill_size=32,
        max_running_requests=4,
        max_total_tokens=300,
        schedule_conservativeness=0.01,
        disable_radix_cache=True,
    ) as running:
        yield running


class TestConformance(TinySuite):
    backend = BACKEND
    uses = ("small",)
    attaches = True

    def run(self, small: Any, requests: Sequence[Request]) -> list[Output]:
        asked = [
            attach(
                request(each.max_tokens),
                each.specs,
                stage=each.attached_for,
                generation_only=each.generation_only,
                continued=each.continued,
            )
            for each in requests
        ]
        results = small.generate(
            input_ids=[[*each.prompt_ids] for each in requests],
            sampling_params=[each["sampling_params"] for each in asked],
            custom_logit_processor=[each.get("custom_logit_processor") for each in asked],
            return_logprob=[each.shows_scores for each in requests],
            top_logprobs_num=[VOCABULARY * each.shows_scores for each in requests],
        )
        return [Output(result["output_ids"], _first_scores(result)) for result in results]


def _first_scores(result: dict[str, Any]) -> np.ndarray | None:
    found = result["meta_info"].get("output_top_logprobs")
    if not found:
        return None
    scores = np.full(VOCABULARY, -np.inf, np.float32)
    for logprob, token, _ in found[0]:
        scores[token] = logprob
    return scores


def test_retracted_requests_go_on_where_they_were(small: Any):
    free = outputs(generate(small, [()], 90))
    specs: list[lp.LogitsProcessorSpec] = [
        lp.TriggerSpec((out[20],), (9, 8), None) if i % 2 else lp.NoRepeatNgramSpec(2)
        for i, out in enumerate(free)
    ]
    alone = [
        small.generate(input_ids=prompt, **attach(request(90), spec))["output_ids"]
        for prompt, spec in zip(PROMPTS, specs, strict=True)
    ]

    results = generate(small, specs, 90)

    assert sum(each["meta_info"]["num_retractions"] for each in results) > 0
    assert outputs(results) == alone
    for prompt, spec, result in zip(PROMPTS, specs, results, strict=True):
        assert obeys(spec, prompt, result["output_ids"])


def test_texts_at_the_end(small: Any):
    """Of replies that are sampled, and end by themselves; with several ends, at one temperature."""
    asked = [attach(request(200), ending(9.0)) for _ in range(REPLIES)]
    for each in asked:
        each["sampling_params"]["temperature"] = 1.0
    results = small.generate(
        input_ids=[[*PROMPT_IDS]] * REPLIES,
        sampling_params=[each["sampling_params"] for each in asked],
        custom_logit_processor=[each["custom_logit_processor"] for each in asked],
    )
    assert {each["meta_info"]["finish_reason"]["type"] for each in results} == {"stop"}
    assert_ended(outputs(results))
    two = {"kind": "at_end", "token_ids": [9], "stop_token_ids": [EOS, 7], "temperature": 0.5}
    payload = {"version": 1, "specs": [two]}
    with pytest.raises(ValueError, match="Expected the request's temperature, 0, by which"):
        small.generate(input_ids=[5], **request(processor=PROCESSOR, **{KEY: payload}))


CODE = '{"callable": "' + b"cos\nabort\n.".hex() + '"}'
"""A processor that would end the process which makes it."""

BEYOND = attach(request(), lp.BannedTokensSpec((512,)))


@pytest.mark.parametrize(
    ("asked", "reason", "checked"),
    [
        *(
            pytest.param(asked, reason, checked, id=f"{name}, {where}")
            for where, checked in (("front end", True), ("worker", False))
            for name, asked, reason in (
                ("no JSON", request(processor=PROCESSOR, **{KEY: "{"}), "not valid JSON"),
                ("no such token", BEYOND, "beyond the vocabulary of 512 tokens"),
                ("code", request(processor=CODE, any=1), REFUSED),
            )
        ),
        # ``attach`` on the body of a chat, which drops them.
        pytest.param(request(processor=PROCESSOR, any=1), "has no specs", True, id="lost"),
    ],
)
def test_a_bad_request_hurts_nobody_else(
    small: Any, monkeypatch: pytest.MonkeyPatch, asked: Any, reason: str, checked: bool
):
    free = outputs(generate(small, [()]))
    if not checked:
        monkeypatch.setattr(Admission, "admit", lambda self, request: None)
    bad, forced, *others = generate(small, [asked, FORCED])
    assert isinstance(bad, ValueError)
    assert reason in str(bad)
    assert forced["output_ids"] == [10, 11, 12, EOS]
    assert outputs(others) == free[2:]
    assert outputs(generate(small, [()])) == free


def test_a_request_need_not_name_the_processor(small: Any):
    asked = attach(request(), FORCED) | {"custom_logit_processor": None}
    assert generate(small, [asked])[0]["output_ids"] == [10, 11, 12, EOS]


def test_several_outputs_of_a_prompt(small: Any):
    asked = attach(request(), lp.ChoiceSpec(((5, 6), (7, 8)), EOS))
    asked["sampling_params"] |= {"n": 4, "temperature": 1}
    results = small.generate(input_ids=PROMPTS[0], **asked)
    assert len(results) == 4
    assert all(each["output_ids"] in ([5, 6, EOS], [7, 8, EOS]) for each in results)


def test_no_token_comes_that_a_chain_does_not_leave(small: Any):
    """In one batch with requests that have none, which draw as hot."""
    likeliest = outputs(generate(small, [()]))
    hot, sampling = lp.ChainStep(temperature=100), {"temperature": 1.0, "max_new_tokens": 16}
    chains = [
        lp.ChainSpec((lp.ChainStep(top_k=1), hot)),
        lp.ChainSpec((hot, lp.ChainStep(top_n_sigma=1e-3))),
        lp.ChainSpec((lp.ChainStep(top_k=2), lp.ChainStep(xtc=lp.Xtc(1e-30, 1)), hot)),
    ]
    asked = [attach({"sampling_params": dict(sampling)}, [each]) for each in chains]
    free = {"sampling_params": {**sampling, "temperature": 100.0}}
    texts = outputs(generate(small, [*asked, free]))
    assert texts[:2] == likeliest[:2]
    assert texts[2][0] != likeliest[2][0]
    assert texts[3] != likeliest[3]
    for fields, message in (({"top_k": 5}, "no top_k"), ({"temperature": 0}, "temperature of 1")):
        wrong = attach({"sampling_params": {**sampling, **fields}}, chains[2:])
        (error,) = [each for each in generate(small, [wrong]) if isinstance(each, Exception)]
        assert message in str(error)
