"""A decode worker that begins with a token which it did not choose.

SGLang and TensorRT-LLM hand the token that prefill sampled over to decode, where it is the first
output token. Specs do not act on prefill, so that token may be any.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from logitport.adapters.core import Realizer, compile_specs
from logitport.spec import (
    AllowedTokensSpec,
    BannedSequencesSpec,
    BannedTokensSpec,
    ChoiceSpec,
    ForcedEndSpec,
    ForcedTokenSequenceSpec,
    LogitBiasSpec,
    MinTokensSpec,
    NoRepeatNgramSpec,
    PromptBiasSpec,
    PythonProcessorSpec,
    ThinkingBudgetSpec,
    TriggerSpec,
)

from tests.strategies import REALIZED

VOCABULARY = 16
LIKED, SECOND = 12, 11
"""What the model says by itself, and what it says when that is out of the question."""

TEXT = ForcedTokenSequenceSpec((1, 2, 3), eos_token_id=0)
CHOICE = ChoiceSpec(((1, 2), (3, 4)), eos_token_id=0)
END = ForcedEndSpec(2, (5, 6), eos_token_id=0)
MINIMUM = MinTokensSpec(2, (LIKED,))
WORDS = BannedSequencesSpec(((9, LIKED),))
TRIGGER = TriggerSpec((9,), (1, 2))
THINK = ThinkingBudgetSpec(2, (7,), (8,))
SPENT = ThinkingBudgetSpec(0, (7,), (8,), (3, 4))


def _odd_places_alone() -> Any:
    def processor(output_ids: Sequence[int], logits: torch.Tensor) -> None:
        if len(output_ids) % 2:
            logits[LIKED] = -1e9

    return processor


CASES: list[tuple[Any, list[int], int, list[int]]] = [
    # spec | prompt | handed over | what decode goes on with
    (TEXT, [], 1, [2, 3, 0, 0]),  # it fits: the text goes on
    (TEXT, [], 9, [1, 2, 3, 0]),  # it does not: the whole text comes after it
    (TEXT, [], 2, [1, 2, 3, 0]),
    (CHOICE, [], 3, [4, 0, 0]),
    (CHOICE, [], 9, [1, 2, 0]),
    (END, [], 9, [LIKED, 5, 6, 0]),  # it counts
    (ForcedEndSpec(1, (5, 6), 0), [], 5, [5, 6, 0]),  # nothing has begun before its time
    (MINIMUM, [], 9, [SECOND, LIKED]),  # it counts
    (BannedTokensSpec((LIKED,)), [], LIKED, [SECOND, SECOND]),  # what is out is out
    (AllowedTokensSpec((3,)), [], 9, [3, 3]),
    (LogitBiasSpec({3: 9.0}), [], 9, [3, 3]),
    (WORDS, [], 9, [SECOND, LIKED]),  # it begins a banned sequence
    (WORDS, [], 8, [LIKED, LIKED]),
    (TRIGGER, [], 9, [1, 2, LIKED]),  # it triggers
    (TRIGGER, [], 8, [LIKED, LIKED]),
    (THINK, [], 7, [LIKED, LIKED, 8, LIKED]),  # it opens a block
    (THINK, [7], 9, [LIKED, 8, LIKED]),  # it is the first thought of a block that the prompt opens
    (THINK, [7], 8, [LIKED, LIKED, LIKED]),  # it closes it
    (SPENT, [7], 8, [LIKED, LIKED, LIKED]),  # also where the message was due
    (SPENT, [7], 3, [4, 8, LIKED]),  # it begins the message
    (SPENT, [7], 9, [3, 4, 8]),
    (NoRepeatNgramSpec(1), [], LIKED, [SECOND]),
    (NoRepeatNgramSpec(1), [], 9, [LIKED, SECOND]),
    (PromptBiasSpec(9.0), [3], 9, [3, 3]),
    (PythonProcessorSpec(_odd_places_alone), [], 9, [SECOND, LIKED, SECOND]),
]


@pytest.mark.parametrize(("spec", "prompt", "handed_over", "expected"), CASES)
def test_decode_goes_on(spec: Any, prompt: list[int], handed_over: int, expected: list[int]):
    realizer, output_ids = Realizer(VOCABULARY), [handed_over]
    realizer.add(0, compile_specs((spec,)), prompt, output_ids)
    for _ in expected:
        logits = torch.zeros(1, VOCABULARY)
        logits[0, [SECOND, LIKED]] = torch.tensor([1.0, 2.0])
        realizer.apply(logits)
        output_ids.append(int(logits[0].argmax()))
    assert output_ids[1:] == expected


def test_each_kind_has_a_case():
    assert {*REALIZED, PythonProcessorSpec} <= {type(spec) for spec, *_ in CASES}
