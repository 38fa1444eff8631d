"""What a text at the end changes of replies, and what it leaves; what comes before and after it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from logitport import spec as s
from logitport.adapters.core import Realizer, compile_specs
from logitport.adapters.detection.tails import log_gamma_tail
from logitport.spec import LogitsProcessorSpec

VOCABULARY, FIRST = 8, 6
TEXT = (FIRST, 4, 2)
DRAWS = 10_000
MODEL = np.random.default_rng(5).normal(0, 1.2, (VOCABULARY, VOCABULARY)).astype(np.float32)
MODEL[:, FIRST] = -40  # a token that replies do not use
MODEL[:, 0] += 0.5


def draw(specs: Sequence[LogitsProcessorSpec], temperature: float, seed: int) -> list[list[int]]:
    """Draw replies of a model that looks at the last token, until 0 or 3, the ends, comes."""
    numbers, realizer = np.random.default_rng(seed), Realizer(VOCABULARY)
    outputs: list[list[int]] = [[] for _ in range(DRAWS)]
    program = compile_specs(specs)
    for row, output in enumerate(outputs if specs else ()):
        realizer.enter(row, program, [1], output)
    done = np.zeros(DRAWS, np.bool_)
    while not done.all():
        logits = MODEL[[output[-1] if output else 1 for output in outputs]]
        realizer.apply(logits)
        noise = numbers.gumbel(size=logits.shape)
        tokens = (logits / np.float32(temperature) + noise).argmax(1).tolist()
        for row, token in enumerate(tokens):
            outputs[row].append(token)
            done[row] |= token in (0, 3)
    ends = ([*map(output.index, {0, 3} & {*output})] for output in outputs)
    return [output[: min(each) + 1] for output, each in zip(outputs, ends, strict=True)]


def p_value(one: Sequence[Any], other: Sequence[Any]) -> float:
    """Compare two samples of the same size; what is rare is counted together."""
    pairs, rare = list[tuple[int, int]](), [0, 0]
    counts = Counter(one), Counter(other)
    for key in {*one, *other}:
        pair = counts[0][key], counts[1][key]
        if sum(pair) >= 20:
            pairs.append(pair)
        else:
            rare = [rare[0] + pair[0], rare[1] + pair[1]]
    pairs += [(rare[0], rare[1])] if sum(rare) else []
    assert len(pairs) > 10
    statistic = sum((a - b) ** 2 / (a + b) for a, b in pairs)
    return float(np.exp(log_gamma_tail(statistic / 2, (len(pairs) - 1) / 2)))


@pytest.mark.parametrize(
    ("ends", "temperature"), [((0,), 1.0), ((0,), 0.6), ((0, 3), 1.0), ((0, 3), 0.6), ((3, 0), 1.7)]
)
def test_replies_are_as_long_and_say_the_same(ends: tuple[int, ...], temperature: float) -> None:
    spec = s.AtEndSpec(TEXT, ends, temperature if len(ends) > 1 else 1.0)
    other = () if len(ends) > 1 else (s.BannedTokensSpec((3,)),)
    free, texts = draw(other, temperature, 1), draw((*other, spec), temperature, 2)
    assert all(output[-4:] == [*TEXT, ends[0]] for output in texts)
    assert all(FIRST not in output[:-4] for output in texts)
    said = [tuple(output[:-4]) for output in texts]
    assert p_value([tuple(output[:-1]) for output in free], said) > 1e-3
    assert p_value([len(output) - 1 for output in free], [*map(len, said)]) > 1e-3


def test_another_temperature_is_noticed() -> None:
    """The test above can fail: of two ends, the probabilities have to add up at the request's."""
    free, wrong = draw((), 0.4, 1), draw((s.AtEndSpec(TEXT, (0, 3), 3.0),), 0.4, 2)
    said = [tuple(output[:-4]) for output in wrong]
    assert p_value([tuple(output[:-1]) for output in free], said) < 1e-6


# specs beside a text at the end | the reply, which a model draws greedily
AT_END = s.AtEndSpec(TEXT, (0, 3))
BESIDE: list[tuple[Sequence[LogitsProcessorSpec], list[int]]] = [
    ([s.ForcedTokenSequenceSpec((5, 5), 0)], [5, 5, *TEXT, 0, 0]),
    ([s.ForcedEndSpec(2, (5, 5), 3)], [1, 1, 5, 5, *TEXT, 0, 0]),
    ([s.ChoiceSpec(((1, 5), (1, 5, 7)), 0), s.BannedTokensSpec((7,))], [1, 5, *TEXT, 0, 0]),
    ([s.ThinkingBudgetSpec(1, (1,), (7,)), s.ForcedEndSpec(3, (1,), 0)], [1, 1, 7, 1, *TEXT, 0]),
    ([s.MinTokensSpec(3, (0, 3)), s.LogitBiasSpec({3: 50.0})], [1, 1, 1, *TEXT, 0, 0]),
    ([s.LogitBiasSpec({FIRST: 100.0, 0: 50.0})], [*TEXT, 0, 0]),
    ([s.LogitBiasSpec({FIRST: 100.0})], [1, 1, 1, 1]),
    ([s.TriggerSpec((4,), (5, 5)), s.LogitBiasSpec({0: 50.0})], [*TEXT, 0, 0]),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize(("specs", "expected"), BESIDE, ids=str)
def test_beside_other_specs(
    specs: Sequence[LogitsProcessorSpec], expected: list[int], is_first: bool, dtype: torch.dtype
) -> None:
    """Where an end is forced, the text comes first, whatever the order of the specs."""
    realizer, output = Realizer(VOCABULARY), list[int]()
    together = (AT_END, *specs) if is_first else (*specs, AT_END)
    realizer.enter(0, compile_specs(together), [2], output)
    while len(output) < len(expected):
        logits = torch.zeros(1, VOCABULARY, dtype=dtype)
        logits[0, 1] = 5
        realizer.apply(logits)
        output.append(int(logits[0].argmax()))
    assert output == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_row_keeps_a_token(dtype: torch.dtype) -> None:
    """Where an engine holds back the ends, and has left only the text's first token."""
    realizer = Realizer(VOCABULARY)
    logits = torch.full((2, VOCABULARY), -torch.inf, dtype=dtype)
    logits[:, FIRST], logits[1, 2] = 9, -9
    for row in range(2):
        realizer.add(row, compile_specs((AT_END,)), [1], [])
    realizer.apply(logits)
    assert logits.argmax(1).tolist() == [FIRST, 2]
    assert torch.isfinite(logits[:, FIRST]).all()


def test_a_guard_is_obeyed() -> None:
    realizer = Realizer(VOCABULARY)
    guard = compile_specs((s.BannedTokensSpec((FIRST,)),))
    realizer.add(0, compile_specs((s.ForcedTokenSequenceSpec((0,)), AT_END)).then(guard), [1], [])
    realizer.apply(logits := torch.zeros(1, VOCABULARY))
    assert logits[0, FIRST] <= 0
    assert torch.isneginf(logits[0, [0, 3]]).all()
