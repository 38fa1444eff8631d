"""Forced and free requests share batches and slots, and know nothing of each other."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from logitport.spec import ForcedTokenSequenceSpec

from .in_process import FLAG, engine, params

pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Request:
    prompt: str
    text: str | None  # to be forced
    token_ids: list[int]
    sampling: dict[str, Any]


@pytest.mark.parametrize(
    ("slots", "requests", "loading"),
    [
        pytest.param(16, 16, {"logits_processors": FLAG}, id="one batch of 16"),
        pytest.param(
            8,
            200,
            {},
            id="200 through 8 slots",
            marks=pytest.mark.only("v1", reason="that many interpreted steps take minutes"),
        ),
        pytest.param(
            8, 24, {}, id="24 through 8 slots", marks=pytest.mark.only("v2", reason="200 are more")
        ),
    ],
)
def test_every_second_request_is_forced(
    model: Path, tokenizer: Any, slots: int, requests: int, loading: dict[str, Any]
):
    asked = [_request(i, tokenizer) for i in range(requests)]
    prompts = [request.prompt for request in asked]

    # Without our processor. What a model computes for one row depends, in the last bits, on the
    # shape of the batch. So here the requests that will be forced go on as long as their texts
    # will be, and both engines run through batches of the same shapes.
    with engine(model, entry_point=False, max_num_seqs=slots) as plain:
        assert plain.processors == []
        as_long = [
            params(ignore_eos=True, max_tokens=len(request.token_ids))
            if request.text
            else params(**request.sampling)
            for request in asked
        ]
        expected = plain.generate(prompts, as_long)
        shapes = [list(step.values()) for step in plain.steps]

    with engine(model, max_num_seqs=slots, **loading) as forcing:
        specs = [
            ForcedTokenSequenceSpec.from_text(request.text, tokenizer) if request.text else None
            for request in asked
        ]
        outputs = forcing.generate(
            prompts,
            [params(spec, **request.sampling) for spec, request in zip(specs, asked, strict=True)],
        )
        assert [list(step.values()) for step in forcing.steps] == shapes
        assert max(map(len, shapes)) == slots
        assert forcing.held_requests() == 0

    for request, output, free in zip(asked, outputs, expected, strict=True):
        if request.text:
            assert output.text == request.text
            assert list(output.token_ids) == request.token_ids
            assert output.finish_reason == "stop"
        else:
            assert output.token_ids == free.token_ids
    # The comparison has something to say: the model speaks, and not as we make it speak.
    assert len({output.text for output in outputs}) > requests * 3 / 4


def _request(i: int, tokenizer: Any) -> Request:
    subject = ("tea", "the moon", "prime numbers", "a dog", "rain")[i % 5]
    prompt = f"Question {i}, about {subject}. Answer:"
    sampling = ({}, {"temperature": 1.5}, {"temperature": 1.0, "top_k": 1})[i // 2 % 3]
    sampling |= {"seed": i, "max_tokens": 5 + i % 7}
    if i % 2 == 0:
        return Request(prompt, None, [], sampling)
    text = f"{i} says: {'so be it, ' * (i % 4)}amen {i}."
    token_ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    return Request(prompt, text, token_ids, sampling | {"max_tokens": 100})
