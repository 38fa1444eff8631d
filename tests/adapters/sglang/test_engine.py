"""What a worker of SGLang does with specs, its front end out of the way or not."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from logitport import spec as lp
from logitport.adapters.conformance.reference import obeys
from logitport.adapters.sglang import KEY, PROCESSOR, admission, attach
from logitport.adapters.sglang.admission import REFUSED, Admission

from tests.support.tiny_model import EOS

from .in_process import PROMPTS, engine, generate, outputs, request

pytestmark = pytest.mark.engine

FORCED = lp.ForcedTokenSequenceSpec((10, 11, 12), EOS)


@pytest.fixture(scope="module")
def small(tiny_checkpoint: Path) -> Iterator[Any]:
    """An engine that takes in more requests than it has room for, and puts some back."""
    with engine(
        tiny_checkpoint,
        skip_tokenizer_init=True,
        max_total_tokens=300,
        schedule_conservativeness=0.01,
        disable_radix_cache=True,
    ) as running:
        yield running


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


CODE = '{"callable": "' + b"cos\nabort\n.".hex() + '"}'
"""A processor that would end the process which makes it."""

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("no JSON", request(processor=PROCESSOR, **{KEY: "{"}), "not valid JSON"),
    ("no text", request(processor=PROCESSOR, **{KEY: 7}), "Expected"),
    (
        "no such token",
        attach(request(), lp.BannedTokensSpec((512,))),
        "beyond the vocabulary of 512 tokens",
    ),
    ("code", request(processor=CODE, any=1), REFUSED),
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


def test_specs_that_got_lost(small: Any):
    """Who names our processor wanted some: ``attach`` on the body of a chat, which drops them."""
    lost, *others = generate(small, [request(processor=PROCESSOR, any=1), FORCED])
    assert isinstance(lost, ValueError)
    assert "brings no specs" in str(lost)
    assert others[0]["output_ids"] == [10, 11, 12, EOS]


def test_a_request_need_not_name_the_processor(small: Any):
    asked = attach(request(), FORCED) | {"custom_logit_processor": None}
    assert generate(small, [asked])[0]["output_ids"] == [10, 11, 12, EOS]


def test_several_outputs_of_a_prompt(small: Any):
    asked = attach(request(), lp.ChoiceSpec(((5, 6), (7, 8)), EOS))
    asked["sampling_params"] |= {"n": 4, "temperature": 1}
    results = small.generate(input_ids=PROMPTS[0], **asked)
    assert len(results) == 4
    assert all(each["output_ids"] in ([5, 6, EOS], [7, 8, EOS]) for each in results)


def test_think_then_answer(small: Any):
    """At temperature 1, beside requests without specs."""
    forced = lp.ForcedTokenSequenceSpec((20, 21))
    answer = lp.Phase((lp.ChoiceSpec(((8, 9), (8, 10, 11), (12,)), EOS),))
    budgets = [lp.ThinkingBudgetSpec(8, prompt[-1:], (6, 7)) for prompt in PROMPTS]
    specs = [
        () if i % 2 else lp.PhasesSpec.think_then(budget, forced, answer)
        for i, budget in enumerate(budgets)
    ]
    asked = [attach(request(32), each) for each in specs]
    for each in asked:
        each["sampling_params"]["temperature"] = 1
    results = outputs(generate(small, asked))
    for prompt, spec, output in zip(PROMPTS[::2], specs[::2], results[::2], strict=True):
        assert isinstance(spec, lp.PhasesSpec)
        assert obeys(spec, prompt, output)
        assert output[-1] == EOS


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("speculative_algorithm", "draft tokens of speculative decoding"),
        ("dllm_algorithm", "diffusion models"),
    ],
)
def test_engines_that_call_no_processors(
    small: Any, monkeypatch: pytest.MonkeyPatch, option: str, reason: str
):
    """They let in no specs. That this engine is one of them is made up."""
    options = SimpleNamespace(speculative_algorithm=None, dllm_algorithm=None)
    monkeypatch.setattr(admission, "get_spec", lambda: options)
    monkeypatch.setattr(admission, "get_exec", lambda: SimpleNamespace(dllm=options))
    assert generate(small, [FORCED])[0]["output_ids"] == [10, 11, 12, EOS]
    setattr(options, option, "any")
    assert reason in str(generate(small, [FORCED])[0])


def test_mlx_backend(small: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admission, "use_mlx", lambda: True)
    assert "MLX backend" in str(generate(small, [FORCED])[0])


def test_beams(small: Any):
    asked = attach(request(), FORCED)
    asked["sampling_params"]["beam_width"] = 2
    assert "beams" in str(generate(small, [asked])[0])
