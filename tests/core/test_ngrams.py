"""No n-gram twice: histories of any length, held to the reference, and what they cost."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from logitport.adapters.conformance.reference import Add, edit
from logitport.adapters.core.host import ngram_index, ngrams
from logitport.adapters.core.host.ngrams import NgramBatch
from logitport.adapters.core.host.state_table import Failures, Request
from logitport.spec import NoRepeatNgramSpec

from tests.support.histories import STEPS, simulate

VOCABULARY = 8
LONG = 1024
LARGE = 4 * LONG


def banned(rules: NgramBatch) -> dict[int, set[int]]:
    """Tokens by row; each rule has one once."""
    by_row: dict[int, Counter[int]] = {}
    for additions in rules.additions():
        cells = additions.cells
        for row, token in zip(cells.rows.tolist(), cells.token_ids.tolist(), strict=True):
            by_row.setdefault(row, Counter())[token] += 1
    for entry in rules.entries:
        counts = by_row.get(entry.request.row, Counter())
        assert max(counts.values(), default=0) <= len(entry.request.entries)
    return {row: {*counts} for row, counts in by_row.items()}


def wanted(
    specs: Sequence[NoRepeatNgramSpec], request: Request, vocab_size: int = VOCABULARY
) -> set[int]:
    """What the reference bans, of tokens that there are."""
    said = [edit(spec, list(request.prompt_ids), list(request.output_ids)) for spec in specs]
    tokens = {token for each in said if isinstance(each, Add) for token in each.values}
    return {token for token in tokens if token < vocab_size}


def started(
    prompt: Sequence[int], *specs: NoRepeatNgramSpec, output: Sequence[int] = (), row: int = 0
) -> tuple[NgramBatch, list[int]]:
    """The rules of one request of a large vocabulary, and its output."""
    rules, output_ids = NgramBatch(LARGE), list(output)
    rules.start(Request(prompt, output_ids, row=row), specs)
    return rules, output_ids


def advance(rules: NgramBatch) -> None:
    failed: Failures = {}
    rules.advance(failed)
    assert not failed


def check(
    rules: NgramBatch,
    all_specs: Mapping[int, Sequence[NoRepeatNgramSpec]],
    vocab_size: int = VOCABULARY,
) -> None:
    advance(rules)
    expected = {
        entry.request.row: wanted(all_specs[entry.request.row], entry.request, vocab_size)
        for entry in rules.entries
    }
    assert banned(rules) == {row: tokens for row, tokens in expected.items() if tokens}


@st.composite
def rules_of_requests(draw: st.DrawFn) -> list[NoRepeatNgramSpec]:
    n = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    windows = st.none() | st.integers(0, 12)
    rules = [
        NoRepeatNgramSpec(
            each,
            None if (more := draw(windows)) is None else each + more,
            tuple(draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=2))),
            draw(st.booleans()),
        )
        for each in n
    ]
    return list(dict.fromkeys(rules))


@given(
    requests=st.lists(
        st.tuples(rules_of_requests(), st.integers(0, 60), st.integers(1, 10)),
        min_size=1,
        max_size=3,
    ),
    steps=STEPS,
    seed=st.integers(0, 2**31),
)
@example(  # taken back in two steps, and replaced before what was left
    requests=[([NoRepeatNgramSpec(1)], 0, 2)], steps=[(0, 7, 81), (1, 0, 0), (6, 2, 45)], seed=0
)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_history(
    sizes: None,
    requests: list[tuple[list[NoRepeatNgramSpec], int, int]],
    steps: list[tuple[int, int, int]],
    seed: int,
) -> None:
    """Some tokens are beyond the vocabulary; what is deleted bans nothing."""
    rules = NgramBatch(VOCABULARY)
    for request in simulate(rules, requests, steps, seed, check):
        for entry in request.entries:
            entry.table.delete(entry.slot)
    assert (len(rules), banned(rules)) == (0, {})


@pytest.mark.parametrize("window", [None, LONG + 40])
@pytest.mark.parametrize("allowed", [(), (1, 3, 5)])
@pytest.mark.parametrize(
    "prompt",
    [
        [5] * LONG,
        list(range(LONG)),
        [token for i in range(LONG) for token in (5, i)],
        [*range(100)] * (LONG // 50),
        [LARGE, 2 * LARGE, *range(LONG), 5, LARGE],
    ],
    ids=["one token", "all different", "followed by everything", "blocks", "beyond the vocabulary"],
)
def test_long_prompts(prompt: list[int], window: int | None, allowed: tuple[int, ...]) -> None:
    """Bans that are laid out once; tokens that are banned come nevertheless."""
    specs = [NoRepeatNgramSpec(n, window, allowed) for n in (1, 2, 64)]
    rules, output = started(prompt, *specs, row=2)
    for step in range(60):
        if step % 6 == 0 or step > 55:
            check(rules, {2: specs}, LARGE)
        else:
            advance(rules)
        output.append(5 if step % 2 else step)
        if step == 50:
            del output[-20:]


def test_what_stays_banned_is_laid_out_once() -> None:
    rules, output = started(list(range(LONG)), NoRepeatNgramSpec(1))
    laid_out: list[Any] = []
    for token in (3, 4 * LONG - 1, 5):
        rules.advance({})
        laid_out.append(rules.additions())
        output.append(token)
    assert laid_out[0][0] == laid_out[1][0] == laid_out[2][0]
    assert [len(each) for each in laid_out] == [1, 1, 2]


@pytest.mark.parametrize("window", [None, 600, 3000])
@pytest.mark.parametrize("backs", [(60,), (20, 20, 20, 20)], ids=["at once", "bit by bit"])
def test_what_was_laid_out_is_taken_back(backs: tuple[int, ...], window: int | None) -> None:
    """More of it than can be undone: what had come last is banned no longer, or further back."""
    prompt = list(range(0, 2000, 2))
    specs = [NoRepeatNgramSpec(1, window), NoRepeatNgramSpec(2, window)]
    rules, output = started(prompt, *specs)
    for token in range(1, 8 * ngrams.ROOM, 2):
        advance(rules)
        if max(entry.what.settled for entry in rules.entries) > len(prompt) + sum(backs):
            break
        output.append(token)
    for back in backs:
        del output[-back:]
        check(rules, {0: specs}, LARGE)
        assert banned(rules)


def test_what_cannot_be_undone_stays_so_when_the_output_is_shorter() -> None:
    """Positions are laid out in a history that is shorter than the one read at the start."""
    many = ngrams.MANY + 100
    prompt = [id for first in (5, 6) for i in range(many) for id in (first, 1000 * first + i)]
    spec = NoRepeatNgramSpec(2, 2 * many + 200)
    rules, output = started(prompt, spec, output=[*range(10, 29), 6, *range(30, 49), 5])
    for length in (40, 20, 5):
        del output[length:]
        check(rules, {0: [spec]}, LARGE)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_hashes_with_equal_sorted_bits(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many contexts, because few bits of these hashes differ: the others are sorted as well."""
    monkeypatch.setattr(ngram_index, "MULTIPLIER", (1 << 20) + 1)
    prompt = random.Random(0).choices(range(20), k=500)
    rules, output = started(prompt, NoRepeatNgramSpec(n))
    for token in prompt[:50]:
        check(rules, {0: [NoRepeatNgramSpec(n)]}, LARGE)
        output.append(token)


@pytest.mark.parametrize("broken", ["History", "Reach", "_Layout", "_Rule"])
def test_memory_that_is_not_there(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever cannot be made, requests that are there go on as they were."""
    specs = [NoRepeatNgramSpec(1), NoRepeatNgramSpec(3)]
    prompt = random.Random(0).choices(range(3), k=600)
    rules, _ = started(prompt, *specs)

    def fail(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(ngrams, broken, fail)
        if broken == "_Rule":
            patched.setattr(ngrams, broken, type("Broken", (), {"of": fail}))
        with pytest.raises(MemoryError):
            rules.start(Request(prompt, [], row=1), specs)
        assert len(rules) == 2
    check(rules, {0: specs}, LARGE)


@pytest.mark.parametrize("window", [None, 700])
def test_few_rules_are_laid_out_anew_in_a_step(window: int | None) -> None:
    """Of many requests whose outputs grow together; each is laid out every few hundred steps."""
    rules, outputs = NgramBatch(LARGE), [list[int]() for _ in range(40)]
    for row, output in enumerate(outputs):
        rules.start(Request(list(range(400)), output, row=row), [NoRepeatNgramSpec(1, window)])
    indexes, arrays = list[Any](), list[Any]()
    changes, grown = Counter[int](), Counter[int]()
    for step in range(1300):
        advance(rules)
        before, indexes = indexes, [entry.what.index for entry in rules.entries]
        changes[sum(a is not b for a, b in zip(before, indexes, strict=False))] += 1
        before, arrays = arrays, [entry.what.history.tokens for entry in rules.entries]
        grown[sum(a is not b for a, b in zip(before, arrays, strict=False))] += 1
        for output in outputs:
            output.append(500 + step)
    assert {*changes, *grown} == {0, 1}
    assert 40 * 2 <= changes[1] <= 40 * 6
    assert 40 * 4 <= grown[1] <= 40 * 10


@pytest.mark.parametrize(
    ("left", "most"),
    [
        ([], 0),
        ([300, 200, 400], 1),
        ([40] * 5, 1),  # a step each
        ([20] * 24, 2),
        ([1000, 0, 0], 2),  # late already
        ([12, 11, 10, 9, 8, 7], 3),
    ],
)
def test_work_that_is_due_is_spread_over_the_steps(left: list[int], most: int) -> None:
    waiting, in_a_step = dict(enumerate(left)), [0]
    while waiting:
        slots = [*waiting]
        chosen = ngrams._due(np.array([*waiting.values()]))
        in_a_step.append(len(chosen))
        for i in chosen:
            assert waiting.pop(slots[i]) <= max(left)
        waiting = {slot: steps - 1 for slot, steps in waiting.items()}
        assert min(waiting.values(), default=1) >= 0
    assert max(in_a_step) == most


def test_a_layout_that_cannot_be_made_ends_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though several tokens come at once, for which it has no room."""
    rules, outputs = NgramBatch(LARGE), [list[int](), list[int]()]
    specs = [NoRepeatNgramSpec(2)]
    for row, output in enumerate(outputs):
        rules.start(Request([1, 2], output, row=row), specs)
    layout, broken = ngrams._Layout, rules.entries[0].what

    def fail(rule: Any, *others: Any) -> Any:
        if rule is broken:
            raise MemoryError
        return layout(rule, *others)

    monkeypatch.setattr(ngrams, "_Layout", fail)
    failed: Failures = {}
    while not failed:
        for output in outputs:
            output += range(len(output), len(output) + 100)
        rules.advance(failed)
        assert len(outputs[0]) <= 2 * ngrams.ROOM
    assert [request.row for request in failed] == [0]
    rules.delete(0)
    check(rules, {1: specs}, LARGE)


@pytest.mark.parametrize("n", [1, 2, 64])
def test_what_comes_again_and_again_is_loose_once(n: int) -> None:
    """Of all positions with the same context and token, a step finds the newest."""
    rules, output = started([1, 2, 3], NoRepeatNgramSpec(n))
    for _ in range(300):
        advance(rules)
        output.append(5)
    advance(rules)
    assert rules._found is not None
    assert len(rules._found.slots) <= 4


@pytest.mark.parametrize(("every", "positions"), [(False, [3, 2, 0, 5]), (True, [0, 1, 2, 3, 5])])
def test_positions_come_by_context_and_token(every: bool, positions: list[int]) -> None:
    """The newest one of each token, or every one; without tokens that are not banned anyway."""
    prompt = np.array([70_000, 5, 65_541, 5, 200_000, 131_077], np.int32)
    reach = ngram_index.Reach(prompt, 0, len(prompt), len(prompt), 150_000)
    entries = ngram_index.Entries.of(reach, reach.hashes(0), 0, None, every=every)
    assert entries.positions.tolist() == positions
    assert entries.tokens.tolist() == prompt[positions].tolist()


@pytest.mark.parametrize("every", [False, True])
def test_contexts_with_the_same_upper_bits_are_told_apart(every: bool) -> None:
    """The sorted number has no room for the lower bits of a hash."""
    tokens = np.array([1, 2, 1, 2, 1, 1], np.int32)
    reach = ngram_index.Reach(tokens, 0, len(tokens), len(tokens), 1 << 17)
    contexts = np.array([9, 5, 9, 3, 3, 5, 0], np.uint64)
    entries = ngram_index.Entries.of(reach, contexts, 0, None, every=every)
    assert entries.positions.tolist() == ([3, 4, 1, 5, 0, 2] if every else [4, 3, 5, 1, 2])
    assert entries.hashes.tolist() == contexts[entries.positions].tolist()
    assert (np.diff(entries.hashes.astype(np.int64)) >= 0).all()


def test_a_hash_comes_from_its_context_alone() -> None:
    """Made of a whole history, or token by token."""
    tokens = np.array(random.Random(0).choices(range(9), k=50), np.int32)
    reach = ngram_index.Reach(tokens, 0, 50, 50, 9)
    for back in (0, 1, 2, 7):
        expected = [ngram_index.hash_of(tokens[max(i - back, 0) : i].tolist()) for i in range(51)]
        assert reach.hashes(back).tolist() == expected
