"""The rule against repetitions on the host, in the same batch as rules against n-grams."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logitport.adapters.conformance.reference import Add, edit
from logitport.adapters.core.host.ngram_index import BAN
from logitport.adapters.core.host.ngrams import NgramBatch, _Rule
from logitport.adapters.core.host.state_table import Request
from logitport.spec import DrySpec, NoRepeatNgramSpec

from tests.support.histories import STEPS, simulate

VOCABULARY, LARGE = 8, 10_000


def penalties(rules: NgramBatch) -> dict[int, dict[int, float]]:
    """The values by row and token; each is there once."""
    failed: dict[Any, Exception] = {}
    rules.advance(failed)
    assert not failed
    by_row: dict[int, dict[int, float]] = {}
    for each in rules.additions():
        cells = zip(each.cells.rows.tolist(), each.cells.token_ids.tolist(), strict=True)
        for (row, token), value in zip(cells, each.values.tolist(), strict=True):
            assert token not in by_row.setdefault(row, {})
            if value:
                by_row[row][token] = value
    return {row: values for row, values in by_row.items() if values}


def check(
    rules: NgramBatch, specs: Mapping[int, Sequence[DrySpec]], vocab_size: int = VOCABULARY
) -> None:
    expected: dict[int, dict[int, float]] = {}
    for entry in rules.entries:
        request = entry.request
        (spec,) = specs[request.row]
        match edit(spec, list(request.prompt_ids), list(request.output_ids)):
            case Add(values):
                known = {token: each for token, each in values.items() if token < vocab_size}
                expected |= {request.row: known} if known else {}
            case other:
                assert other is None
    actual = penalties(rules)
    assert actual.keys() == expected.keys()
    for row, values in expected.items():
        assert actual[row] == pytest.approx(values)


RULES = st.builds(
    DrySpec,
    st.just(1.0),
    st.sampled_from([1.0, 1.5, 2.0]),
    st.integers(1, 5),
    st.none() | st.integers(1, 40),
    st.lists(st.integers(0, VOCABULARY - 1), max_size=2).map(tuple),
)


@given(
    requests=st.lists(
        st.tuples(RULES.map(lambda rule: [rule]), st.integers(0, 60), st.integers(1, 10)),
        min_size=1,
        max_size=3,
    ),
    steps=STEPS,
    seed=st.integers(0, 2**31),
)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_history(
    sizes: None,
    requests: list[tuple[list[DrySpec], int, int]],
    steps: list[tuple[int, int, int]],
    seed: int,
) -> None:
    simulate(NgramBatch(VOCABULARY), requests, steps, seed, check)


@pytest.mark.parametrize("window", [None, 90, 3000])
@pytest.mark.parametrize("allowed", [1, 2, 40, 64])
@pytest.mark.parametrize(
    "prompt",
    [
        [5] * 2000,
        list(range(2000)),
        [token for i in range(1000) for token in (5, i)],
        [*range(100)] * 20,
        [LARGE, 2 * LARGE, 70_000, *range(500), 5, LARGE, 70_000],
    ],
    ids=["one token", "all different", "followed by everything", "blocks", "beyond the vocabulary"],
)
def test_long_prompts(prompt: Sequence[int], window: int | None, allowed: int) -> None:
    spec = DrySpec(1.0, 1.5, allowed, window, (7,))
    rules, output = NgramBatch(LARGE), list[int]()
    rules.start(Request(prompt, output, row=2), [spec])
    for step in range(50):
        if step % 10 == 0 or step > 46:
            check(rules, {2: [spec]}, LARGE)
        else:
            penalties(rules)
        output.append(5 if step % 2 else step)
        if step == 45:
            del output[-20:]


def test_repetitions_of_tokens_beyond_the_vocabulary() -> None:
    """They count as a part of what is repeated, and are never penalized."""
    spec, repeated = DrySpec(1.0, 1.5, 1), [1, 2, LARGE, 3, LARGE, LARGE, 4]
    rules, output = NgramBatch(LARGE), list[int]()
    rules.start(Request([*repeated, 5, 6], output, row=0), [spec])
    for token in repeated:
        output.append(token)
        check(rules, {0: [spec]}, LARGE)


def test_a_history_that_is_read_again_has_other_matches() -> None:
    """Though it is one token longer than before."""
    spec, repeated = DrySpec(1.0, 1.5, 1), [1, 2, 3, 4] * 3
    rules, output = NgramBatch(LARGE), [*repeated, *range(10, 70), 1, 2, 3]
    rules.start(Request([], output, row=0), [spec])
    check(rules, {0: [spec]}, LARGE)
    output[:] = [*repeated, *range(100, 162), 5, 4]
    check(rules, {0: [spec]}, LARGE)


def test_beside_rules_against_ngrams() -> None:
    both, output = NgramBatch(VOCABULARY), list[int]()
    both.start(Request([1, 2, 3, 1, 2], output, row=0), [NoRepeatNgramSpec(2), DrySpec(1.0)])
    both.advance({})
    (additions,) = both.additions()
    assert additions.cells.token_ids.tolist() == [3, 3]
    np.testing.assert_array_equal(additions.values, [BAN, -1])


def test_breakers_of_a_long_prompt_are_dropped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(list[int]):
        dropped = 0

        def __delitem__(self, at: Any) -> None:
            Counted.dropped += 1
            super().__delitem__(at)

    make = _Rule.of
    monkeypatch.setattr(
        _Rule, "of", lambda *args: dataclasses.replace(make(*args), breaks=Counted([-1]))
    )
    spec, rules, output = DrySpec(1.0, breaker_token_ids=(5,)), NgramBatch(LARGE), list[int]()
    rules.start(Request([5] * 5000, output, row=0), [spec])
    assert Counted.dropped == 1
    for token in (1, 2, 3, 1, 2, 5, 1, 2):
        output.append(token)
        check(rules, {0: [spec]}, LARGE)
