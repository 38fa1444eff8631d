"""The timed token automaton: its tables, its builder, and folding a history at once."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logitport import spec as s
from logitport.adapters.core import (
    CARRY,
    CLEAR,
    KEEP,
    Automaton,
    AutomatonBuilder,
    compile_specs,
)
from logitport.adapters.core.automaton import Lane
from logitport.adapters.core.automaton.arrays import distinct, numbered
from logitport.adapters.core.automaton.automata import place
from logitport.adapters.core.automaton.history import TokenHistory
from logitport.adapters.core.automaton.pool import AutomatonPool
from logitport.adapters.reference import Add, Allow, Force, edit
from logitport.adapters.reference.automata import edit_of
from logitport.spec import LogitsProcessorSpec
from logitport.spec.limits import MAX_PATTERN

from tests.support.automata import (
    AUTOMATA,
    VOCABULARY,
    assert_edits,
    automata,
    fold,
    folded,
    histories,
    tokens,
    unreachable,
    walk,
    without_timer,
)
from tests.support.strategies import specs


@pytest.mark.parametrize("kind", AUTOMATA)
@settings(deadline=None, max_examples=20)
@given(st.data())
def test_folding_is_walking_and_does_what_the_spec_means(
    kind: type[LogitsProcessorSpec], data: st.DataObject
) -> None:
    spec = data.draw(specs(VOCABULARY, kinds=[kind]))
    prompt, output = data.draw(histories), data.draw(histories)
    for n in range(len(output) + 1):
        for automaton in automata(spec):
            assert folded(automaton, prompt, output[:n]) == walk(automaton, prompt, output[:n]), n
        assert_edits(automata(spec), [spec], prompt, output[:n])


@pytest.mark.parametrize("kind", AUTOMATA)
@settings(deadline=None, max_examples=15)
@given(st.data())
def test_obeying_is_followed_like_anything_else(
    kind: type[LogitsProcessorSpec], data: st.DataObject
) -> None:
    """Histories of a model that obeys get further into chains and tries than random ones."""
    spec, prompt = data.draw(specs(VOCABULARY, kinds=[kind])), data.draw(histories)
    output: list[int] = []
    for _ in range(24):
        assert_edits(automata(spec), [spec], prompt, output)
        match edit(spec, prompt, output):
            case Force(token):
                output.append(token)
            case Allow(some):
                output.append(data.draw(st.sampled_from(sorted(some))))
            case _:
                output.append(data.draw(tokens))


@settings(deadline=None, max_examples=20)
@given(
    st.lists(specs(VOCABULARY, kinds=[s.BannedSequencesSpec]), min_size=2, max_size=4), histories
)
def test_sequences_of_all_specs_are_looked_for_at_once(
    together: list[LogitsProcessorSpec], output: list[int]
) -> None:
    made = compile_specs(together).automata
    assert len(made) <= 2  # one for those of a single token
    for n in range(len(output) + 1):
        assert_edits(made, together, [], output[:n])


@given(st.lists(st.integers(-3, 9)))
def test_sorted_as_by_numpy(values: list[int]) -> None:
    array = np.array(values, np.int64)
    expected, number = np.unique(array, return_inverse=True)
    np.testing.assert_array_equal(distinct(array), expected)
    np.testing.assert_array_equal(numbered(array)[0], expected)
    np.testing.assert_array_equal(numbered(array)[1], number)


@settings(deadline=None)
@given(specs(VOCABULARY, kinds=[kind for kind in AUTOMATA if kind is not s.AutomatonSpec]))
def test_every_state_can_be_reached(spec: LogitsProcessorSpec) -> None:
    assert not any(unreachable(automaton) for automaton in automata(spec))


def test_a_token_set_is_sorted_and_the_first_of_equal_tokens_counts() -> None:
    builder = AutomatonBuilder()
    builder.add(builder.token_set([5, 2, 5], [1.0, 2.0, 3.0]))
    assert edit_of(builder.build(), 0) == Add({2: 2.0, 5: 1.0})


def test_chains() -> None:
    builder = AutomatonBuilder()
    end = builder.free()
    assert builder.chain((), then=end) == end
    assert builder.chain(()) == len(builder) == 1
    first = builder.chain((4, 5), then=end)
    builder.default(end, first)
    assert [edit_of(builder.build(), state) for state in range(3)] == [None, Force(4), Force(5)]


LEADS_NOWHERE = "leads to one that it does not have"


def _links(*targets: int) -> Any:
    """Build states of which each has a failure link."""

    def build(builder: AutomatonBuilder) -> None:
        states = [builder.free() for _ in targets]
        for state, target in zip(states, targets, strict=True):
            builder.failure_link(state, target)

    return build


def _circle_of_timeouts(builder: AutomatonBuilder) -> None:
    first, second = builder.free(timer=0), builder.free(timer=CARRY)
    builder.timeout(first, second)
    builder.timeout(second, first)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda b: None, "at least one state"),
        (lambda b: b.edge(b.free(), 3, 7), f"of 1 states {LEADS_NOWHERE}"),
        (lambda b: b.default(b.free(), -1), LEADS_NOWHERE),
        (lambda b: b.edge(b.free() + 1, 3, 0), LEADS_NOWHERE),
        (lambda b: b.edge(b.free() - 1, 3, 0), LEADS_NOWHERE),
        (lambda b: b.edge(b.free(), 3, -1), LEADS_NOWHERE),
        (lambda b: b.timeout(b.free(timer=1), 1), LEADS_NOWHERE),
        (lambda b: b.force(-1), "forces a negative token id"),
        (lambda b: b.add(b.token_set([2, -1])), "a set with a negative token id"),
        (lambda b: b.add(0), "uses a set that it has not"),
        (lambda b: b.allow(b.token_set([])), "allows no token at all"),
        (_links(1, 2, 0), "failure links go round in circles"),
        (_links(0), "failure links go round in circles"),
        (_circle_of_timeouts, "time-outs go round in circles"),
    ],
)
def test_what_cannot_be_built(build: Any, message: str) -> None:
    builder = AutomatonBuilder()
    build(builder)
    with pytest.raises(ValueError, match=message):
        builder.build()


def test_timeouts_that_set_the_timer_again_end() -> None:
    builder = AutomatonBuilder()
    tick, tock = builder.force(1, timer=2), builder.force(2, timer=1)
    builder.timeout(tick, tock)
    builder.timeout(tock, tick)
    waiting = builder.force(1, timer=CARRY)
    builder.default(tick, waiting)
    builder.timeout(waiting, tock)
    builder.default(tock, tick)
    automaton = builder.build()
    output: list[int] = []
    for forced in (1, 1, 2, 1, 1):
        state, timer = folded(automaton, [], output)
        assert (state, timer) == walk(automaton, [], output)
        assert edit_of(automaton, state) == Force(forced)
        output.append(forced)


def test_unreachable_states_are_told() -> None:
    builder = AutomatonBuilder()
    first, timed_out, lost = builder.free(timer=3), builder.force(1), builder.force(2)
    builder.timeout(first, timed_out)
    builder.edge(lost, 1, first)
    assert unreachable(builder.build()) == [lost]


@st.composite
def any_automaton(draw: Any) -> Automaton:
    """Whatever a plugin may build, with every kind of timer, edge and link; or without some."""
    n = draw(st.integers(1, 5))
    states = st.integers(0, n - 1)
    simple = draw(st.booleans())  # enough so to be taken in pieces
    timers = st.integers(CLEAR if simple else KEEP, 4) | st.just(CARRY)
    builder = AutomatonBuilder(reads_prompt=simple or draw(st.booleans()))
    for _ in range(n):
        builder.force(draw(tokens), timer=draw(timers))
    for state in range(n):
        for token in draw(st.lists(tokens, max_size=2)):
            builder.edge(state, token, draw(states))
        # Links lead to earlier states alone, so that none goes round in circles.
        if simple or state == 0 or draw(st.booleans()):
            builder.default(state, draw(states))
        else:
            builder.failure_link(state, draw(st.integers(0, state - 1)))
        if state and draw(st.booleans()):
            builder.timeout(state, draw(st.integers(0, state - 1)))
    return builder.build()


def test_a_prompt_of_embeddings_is_no_prompt() -> None:
    (automaton,) = automata(s.ThinkingBudgetSpec(1, (1,), (2,)))
    assert fold(automaton, None, [1, 5]) == fold(automaton, [], [1, 5])


long_histories = st.lists(histories, max_size=12).map(lambda parts: [t for p in parts for t in p])


@settings(max_examples=150, deadline=None)
@given(st.lists(any_automaton(), min_size=1, max_size=4), long_histories, long_histories)
def test_folding_is_walking_for_any_automata(
    together: list[Automaton], prompt: list[int], output: list[int]
) -> None:
    ends, _ = place([Lane(each) for each in together], (0,), TokenHistory(prompt, output))
    for automaton, end in zip(together, ends, strict=True):
        assert without_timer(end) == walk(automaton, prompt, output)


def test_the_largest_numbers() -> None:
    (automaton,) = automata(s.ThinkingBudgetSpec(1 << 30, (1 << 30,), (2,)))
    prompt, output = [1 << 30, 1, 1], [2, 1 << 30, 1]
    assert folded(automaton, prompt, output) == walk(automaton, prompt, output)


def test_a_trigger_fires_as_often_as_it_is_told() -> None:
    (automaton,) = automata(s.TriggerSpec((1,) * 64, (2,) * 64, 1024))
    assert automaton.states < 140
    round_ = [1] * 64 + [2] * 64
    for rounds, forced in ((0, None), (1023, None), (1024, None)):
        state, _ = fold(automaton, [], round_ * rounds)
        assert edit_of(automaton, state) == forced
        state, _ = fold(automaton, [], round_ * rounds + [1] * 64)
        assert edit_of(automaton, state) == (Force(2) if rounds < 1024 else None)


def fibonacci(length: int) -> tuple[int, ...]:
    """What makes the longest chains of strong failure links."""
    a, b = (1,), (1, 2)
    while len(b) < length:
        a, b = b, b + a
    return b[:length]


MANY_LINKS = {
    "one token": ((*[1] * (MAX_PATTERN - 1), 2),),
    "branches": tuple((*[1] * i, 2 + i, 0) for i in range(MAX_PATTERN - 1)),
    "nested": (fibonacci(MAX_PATTERN),),
    "ends": tuple((*range(i, MAX_PATTERN - 1), 0) for i in range(MAX_PATTERN - 1)),
    "twice": tuple((*[1] * i, 2 + i % 3, *[1] * i, 4, 5) for i in range(MAX_PATTERN // 2 - 1)),
}


@pytest.mark.parametrize("name", MANY_LINKS)
def test_many_links_are_followed(name: str) -> None:
    sequences = MANY_LINKS[name]
    spec = s.BannedSequencesSpec(sequences)
    (automaton,) = automata(spec)
    states = set[int]()
    for sequence in sequences[:: max(len(sequences) // 20, 1)]:
        for cut in {len(sequence) - 1, len(sequence) // 2, len(sequence) // 3}:
            for last in (1, 2, 5, 77):
                said = [*sequence[:cut], last]
                states.add(fold(automaton, [], said)[0])
                assert_edits([automaton], [spec], [], said)
    assert len(states) > 2


@pytest.mark.parametrize(
    "spec",
    [
        s.ForcedTokenSequenceSpec((1,) * 15_000),
        s.BannedTokensSpec(tuple(range(15_000))),
        s.BannedSequencesSpec(tuple((i, *[1] * 60) for i in range(85))),
        s.ChoiceSpec(tuple((i, i, i, i) for i in range(2000)), 0),
    ],
    ids=lambda spec: spec.kind,
)
def test_what_tables_take_is_known(spec: LogitsProcessorSpec) -> None:
    (automaton,) = automata(spec)
    tables = AutomatonPool()
    tables.rebuild([automaton])
    columns = [each for each in vars(tables).values() if isinstance(each, np.ndarray)]
    own = [
        value
        for name in automaton.__slots__
        if isinstance(value := getattr(automaton, name), np.ndarray)
    ] + [*automaton.edges]
    on_device = 2 * (22 * automaton.states + 8 * len(automaton.keys))
    on_device += 2 * (8 * len(automaton.set_tokens) + 4 * len(automaton.set_ends))
    taken = sum(array.nbytes for array in [*columns, *own]) + on_device
    assert 0.8 * taken < automaton.table_bytes + 300_000 < 1.2 * taken + 300_000
