"""``no_repeat_ngram`` and ``dry`` on histories of any length, held to the reference."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logitport.adapters.core import Realizer, UnknownTokenError, compile_specs
from logitport.adapters.core.host import history_rules
from logitport.adapters.core.host.history_rules import HistoryRules, scratch_for
from logitport.adapters.core.host.search import BLOCK
from logitport.adapters.core.parts import Acting
from logitport.adapters.reference import Add, edit
from logitport.spec import DrySpec, NoRepeatNgramSpec
from logitport.spec.limits import MAX_HISTORY_RULES

from tests.support.host_driver import Host
from tests.support.lives import lead

VOCABULARY = 8
LONG = 1024
LARGE = 4 * LONG

Spec = NoRepeatNgramSpec | DrySpec


class One:
    """A realizer of one request, which has history rules alone."""

    def __init__(
        self, specs: Sequence[Spec], prompt: Sequence[int], output: Sequence[int] = ()
    ) -> None:
        self.specs, self.prompt, self.output = specs, list(prompt), list(output)
        self.realizer = Realizer(LARGE)
        self.realizer.add(2, compile_specs(specs), self.prompt, self.output)

    def check(self) -> None:
        """The logits are what the reference adds to tokens that there are."""
        expected = Counter[int]()
        for spec in self.specs:
            meant = edit(spec, self.prompt, self.output)
            for token, value in meant.values.items() if isinstance(meant, Add) else ():
                if token < LARGE:
                    expected[token] += value  # pyright: ignore[reportArgumentType]
        logits = torch.zeros(4, LARGE)
        self.realizer.apply(logits)
        assert self.realizer.failed_requests == 0
        row = logits[2].numpy()
        changed = {token: float(row[token]) for token in np.flatnonzero(row).tolist()}
        assert changed == pytest.approx({token: v for token, v in expected.items() if v})


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


@settings(max_examples=25, deadline=None)
@given(groups=st.lists(SPECS, min_size=1, max_size=3), seed=st.integers(0, 2**31))
def test_any_history(groups: list[list[Spec]], seed: int) -> None:
    """Tokens come and are taken back, rows change places, requests leave and come again."""
    lead(Host, seed, 30, groups)


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
        one = One([spec], PROMPTS[prompt])
        for step in range(30):
            one.check() if step % 6 == 0 or step > 25 else one.realizer.apply(torch.zeros(4, LARGE))
            one.output.append(5 if step % 2 else step)
            if step == 25:
                del one.output[-20:]


@pytest.mark.parametrize("distance", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1])
def test_a_token_that_came_once(distance: int) -> None:
    """The blocks around it, which are compared at once, do not have it."""
    prompt = [*range(LONG), LONG - distance]
    for spec in (NoRepeatNgramSpec(2), DrySpec(1.0, 1.5, 1)):
        One([spec], prompt).check()


def test_a_history_that_is_read_again_has_other_matches() -> None:
    """Though it is one token longer than before."""
    repeated = [1, 2, 3, 4] * 3
    one = One([DrySpec(1.0, 1.5, 1)], [], [*repeated, *range(10, 70), 1, 2, 3])
    one.check()
    one.output[:] = [*repeated, *range(100, 162), 5, 4]
    one.check()


def test_room_for_more_tokens() -> None:
    """One by one and many at once."""
    one = One([NoRepeatNgramSpec(2)], [1, 2])
    for step in range(3 * history_rules._ROOM):
        one.output.append(step)
        one.realizer.apply(torch.zeros(4, LARGE))
    one.check()
    one.output += range(LONG)
    one.check()


@pytest.mark.parametrize("tokens", [([1, -1], []), ([], [1, -1])])
def test_a_history_with_a_token_that_is_not_known(tokens: tuple[list[int], list[int]]) -> None:
    with pytest.raises(UnknownTokenError):
        HistoryRules([Acting(NoRepeatNgramSpec(2))], *(np.array(each, np.int32) for each in tokens))


def test_a_scan_compares_each_token_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in the history; counted on the loop as plain Python."""
    for name in ("link", "skip", "scan", "act"):
        compiled = getattr(history_rules, name)
        monkeypatch.setattr(history_rules, name, getattr(compiled, "py_func", compiled))
    counts: list[float] = []
    for length in (400, 1600):
        for prompt in ([5] * length, [*[5] * 63, 6] * (length // 64), [*range(length)]):
            for spec in (NoRepeatNgramSpec(64), DrySpec(1.0, 1.5, 64), DrySpec(1.0, 1.5, 1)):
                tokens = Counted(prompt)
                rule = HistoryRules(
                    [Acting(spec)], np.array(prompt, np.int32), np.zeros(0, np.int32)
                )
                scratch = scratch_for(LARGE)
                history_rules.act(scratch[1], 0, 0, tokens, len(prompt), *rule._rules, *scratch)
                counts.append((tokens.read - 64 * 32 * 2) / len(prompt))
    assert max(counts) < 8


class Counted:
    """Tokens that count how often they are read."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens, self.read = list(tokens), 0

    def __getitem__(self, at: Any) -> Any:
        self.read += len(range(*at.indices(len(self.tokens)))) if isinstance(at, slice) else 1
        return np.array(self.tokens[at]) if isinstance(at, slice) else self.tokens[at]
