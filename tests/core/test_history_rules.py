"""``no_repeat_ngram`` and ``dry`` on histories of any length, held to the reference."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from logitport.adapters.conformance.reference import Add, edit
from logitport.adapters.core import Realizer, UnknownTokenError, compile_specs
from logitport.adapters.core.host import history_rules
from logitport.adapters.core.host.history_rules import HistoryRules, Scratch
from logitport.spec import DrySpec, NoRepeatNgramSpec
from logitport.spec.limits import MAX_HISTORY_RULES

VOCABULARY = 8
LONG = 1024
LARGE = 4 * LONG

Spec = NoRepeatNgramSpec | DrySpec


class Request:
    def __init__(
        self, row: int, specs: Sequence[Spec], prompt: Sequence[int], output: Sequence[int] = ()
    ) -> None:
        self.row, self.specs, self.prompt, self.output = row, specs, list(prompt), list(output)

    def expected(self, vocab_size: int) -> dict[int, float]:
        """What the reference adds to tokens that there are."""
        added = Counter[int]()
        for spec in self.specs:
            said = edit(spec, self.prompt, self.output)
            for token, value in said.values.items() if isinstance(said, Add) else ():
                if token < vocab_size:
                    added[token] += value  # pyright: ignore[reportArgumentType]
        return dict(added)


class Batch:
    """Requests of a realizer, which have history rules alone."""

    def __init__(self, vocab_size: int = LARGE) -> None:
        self.vocab_size = vocab_size
        self.realizer = Realizer(vocab_size)
        self.requests: list[Request] = []

    def add(self, request: Request) -> Request:
        self.requests.append(request)
        program = compile_specs(request.specs)
        self.realizer.add(request.row, program, request.prompt, request.output)
        return request

    def remove(self, request: Request) -> None:
        self.requests.remove(request)
        self.realizer.remove(request.row)

    def check(self) -> None:
        """Each rule adds to a token once, and what it adds is in the logits."""
        logits = torch.zeros(8, self.vocab_size)
        self.realizer.apply(logits)
        assert self.realizer.failed_requests == 0
        by_row = {request.row: request for request in self.requests}
        for one, rules in self.realizer._edits.rules.items():
            tokens, values = rules.cells(self.realizer._edits.scratch)
            added = dict.fromkeys(tokens.tolist(), 0.0)
            for token, value in zip(tokens.tolist(), values.tolist(), strict=True):
                added[token] += value
            expected = by_row.pop(one.row).expected(self.vocab_size)
            assert added == pytest.approx(expected)
            changed = dict.fromkeys(np.flatnonzero(logits[one.row].numpy()).tolist(), 0.0)
            for token in changed:
                changed[token] = float(logits[one.row, token])
            assert changed == pytest.approx({token: v for token, v in expected.items() if v})
        assert not by_row


def one(specs: Sequence[Spec], prompt: Sequence[int], output: Sequence[int] = ()) -> Any:
    batch = Batch()
    return batch, batch.add(Request(2, specs, prompt, output)).output


TOKENS = st.lists(st.integers(0, VOCABULARY - 1), max_size=2).map(tuple)


@st.composite
def ngrams(draw: st.DrawFn) -> NoRepeatNgramSpec:
    n = draw(st.integers(1, 6))
    window = draw(st.none() | st.integers(n, n + 12))
    return NoRepeatNgramSpec(n, window, draw(TOKENS), draw(st.booleans()))


REPETITIONS = st.builds(
    DrySpec,
    st.just(1.0),
    st.sampled_from([1.0, 1.5, 2.0]),
    st.integers(1, 5),
    st.none() | st.integers(1, 40),
    TOKENS,
)
SPECS = st.lists(ngrams(), max_size=MAX_HISTORY_RULES - 1, unique=True).flatmap(
    lambda rules: st.lists(REPETITIONS, min_size=not rules, max_size=1).map(
        lambda more: [*rules, *more]
    )
)
STEPS = st.lists(
    st.tuples(st.just(0) | st.integers(0, 9), st.integers(0, 7), st.integers(0, 2**31)), max_size=20
)
"""Tokens taken back, tokens put, and the seed that chooses these and all else."""


@given(
    requests=st.lists(
        st.tuples(SPECS, st.integers(0, 60), st.integers(1, 10)), min_size=1, max_size=3
    ),
    steps=STEPS,
    seed=st.integers(0, 2**31),
)
@example(  # taken back in two steps, and replaced before what was left
    requests=[([NoRepeatNgramSpec(1)], 0, 2)], steps=[(0, 7, 81), (1, 0, 0), (6, 2, 45)], seed=0
)
@settings(max_examples=300, deadline=None)
def test_any_history(
    requests: list[tuple[list[Spec], int, int]], steps: list[tuple[int, int, int]], seed: int
) -> None:
    """Tokens come and are taken back, rows change places, requests leave and come again."""
    numbers, batch = random.Random(seed), Batch(VOCABULARY)
    waiting: list[Request] = []
    for row, (specs, length, most) in enumerate(requests):
        batch.add(Request(row, specs, numbers.choices(range(most), k=length)))
    for back, more, step_seed in steps:
        numbers = random.Random(step_seed)
        if back == 0 and numbers.random() < 0.7:
            for _ in range(more):
                for request in batch.requests:
                    request.output.append(numbers.randrange(10))
                batch.check()
        else:
            for request in batch.requests:
                replace(request.output, back, numbers.choices(range(10), k=more))
        running = batch.requests
        match numbers.randrange(5):
            case 0 if len(running) > 1:
                a, b = running[:2]
                batch.realizer.swap(a.row, b.row)
                a.row, b.row = b.row, a.row
            case 1 if len(running) > 1:
                waiting.append(numbers.choice(running))
                batch.remove(waiting[-1])
            case 2 if waiting:
                batch.add(waiting.pop())
            case _:
                pass
        batch.check()


def replace(output: list[int], back: int, more: Sequence[int]) -> None:
    """Take tokens back and put others, such that it can be noticed."""
    before = output[:]
    del output[max(len(output) - back, 0) :]
    output += more
    if back and len(output) - len(before) in (0, 1) and before:
        output[len(before) - 1] = before[-1] + 1


PROMPTS = {
    "one token": [5] * LONG,
    "all different": [*range(LONG)],
    "followed by everything": [token for i in range(LONG) for token in (5, i)],
    "blocks": [*range(100)] * (LONG // 50),
    "almost": [*[5] * 63, 6] * 20,
    "beyond the vocabulary": [LARGE, 1 << 40, *range(LONG), 5, LARGE, 1 << 40],
}


@pytest.mark.parametrize("window", [None, 90, LONG + 40])
@pytest.mark.parametrize("exempt", [(), (1, 3, 7)])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_long_prompts(prompt: str, window: int | None, exempt: tuple[int, ...]) -> None:
    """Tokens that are banned come nevertheless."""
    specs = [NoRepeatNgramSpec(n, window, exempt) for n in (1, 2, 64)]
    specs += [DrySpec(1.0, 1.5, length, window, exempt) for length in (1, 2, 40, 64)]
    for spec in specs:
        batch, output = one([spec], PROMPTS[prompt])
        for step in range(30):
            batch.check() if step % 6 == 0 or step > 25 else batch.realizer.apply(
                torch.zeros(8, LARGE)
            )
            output.append(5 if step % 2 else step)
            if step == 25:
                del output[-20:]


def test_repetitions_of_tokens_beyond_the_vocabulary() -> None:
    """They count as a part of what is repeated, and are never penalized."""
    repeated = [1, 2, LARGE, 3, LARGE, LARGE, 4]
    batch, output = one([DrySpec(1.0, 1.5, 1)], [*repeated, 5, 6])
    for token in repeated:
        output.append(token)
        batch.check()


def test_a_history_that_is_read_again_has_other_matches() -> None:
    """Though it is one token longer than before."""
    repeated = [1, 2, 3, 4] * 3
    batch, output = one([DrySpec(1.0, 1.5, 1)], [], [*repeated, *range(10, 70), 1, 2, 3])
    batch.check()
    output[:] = [*repeated, *range(100, 162), 5, 4]
    batch.check()


def test_room_for_more_tokens() -> None:
    """One by one and many at once."""
    batch, output = one([NoRepeatNgramSpec(2)], [1, 2])
    for step in range(3 * history_rules._ROOM):
        output.append(step)
        batch.realizer.apply(torch.zeros(8, LARGE))
    batch.check()
    output += range(LONG)
    batch.check()


@pytest.mark.parametrize("tokens", [([1, -1], []), ([], [1, -1])])
def test_a_history_with_a_token_that_is_not_known(tokens: tuple[list[int], list[int]]) -> None:
    with pytest.raises(UnknownTokenError):
        HistoryRules([NoRepeatNgramSpec(2)], *(np.array(each, np.int32) for each in tokens))


def test_a_scan_compares_each_token_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in the history; counted on the loop as plain Python."""
    for name in ("link", "skip", "scan"):
        compiled = getattr(history_rules, name)
        monkeypatch.setattr(history_rules, name, getattr(compiled, "py_func", compiled))
    counts: list[float] = []
    for length in (400, 1600):
        for prompt in ([5] * length, [*[5] * 63, 6] * (length // 64), [*range(length)]):
            for spec in (NoRepeatNgramSpec(64), DrySpec(1.0, 1.5, 64), DrySpec(1.0, 1.5, 1)):
                tokens = Counted(prompt)
                rule = HistoryRules([spec], np.array(prompt, np.int32), np.zeros(0, np.int32))
                scratch = Scratch.of(LARGE)
                arguments = tokens, len(prompt), *rule._rules[0], *scratch
                history_rules.scan(scratch.values, 0, 0, *arguments)
                counts.append((tokens.read - 64 * 32 * 2) / len(prompt))
    assert max(counts) < 8


class Counted:
    """Tokens that count how often they are read."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens, self.read = list(tokens), 0

    def __getitem__(self, at: Any) -> Any:
        self.read += len(range(*at.indices(len(self.tokens)))) if isinstance(at, slice) else 1
        return np.array(self.tokens[at]) if isinstance(at, slice) else self.tokens[at]
