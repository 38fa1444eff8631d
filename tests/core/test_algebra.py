"""Products and detectors of automata, by what they find in a history."""

from hypothesis import given, settings
from hypothesis import strategies as st
from logitport.adapters.conformance.automata import edit_of
from logitport.adapters.conformance.kinds.base import Draws
from logitport.adapters.conformance.reference import edit
from logitport.adapters.core import CARRY, KEEP, unreachable
from logitport.adapters.core.automaton.algebra import (
    Fragment,
    Marked,
    counter,
    detector,
    joined,
    product,
    repeated,
)
from logitport.adapters.core.automaton.builder import _check
from logitport.spec import (
    BannedSequencesSpec,
    ForcedTokenSequenceSpec,
    LogitsProcessorSpec,
    TriggerSpec,
)
from logitport.spec.kinds.phases import BESIDE

from tests.support.automata import AUTOMATA, VOCABULARY, automata, folded, histories, merged, walk
from tests.support.strategies import specs

DRAW = Draws(VOCABULARY)
longer = DRAW.sequences.map(lambda some: tuple(each for each in some if len(each) > 1))


def unbounded(size: int) -> None:
    assert size > 0


@settings(deadline=None, max_examples=40)
@given(longer.filter(bool), DRAW.choices, st.integers(1, 9), st.booleans(), histories)
def test_product(
    banned: tuple[tuple[int, ...], ...],
    patterns: tuple[tuple[int, ...], ...],
    n: int,
    timed: bool,
    output: list[int],
) -> None:
    """Failure links stay, and the other automaton goes on at each token once."""
    spec = BannedSequencesSpec(banned)
    (automaton,) = automata(spec)
    sought = detector({2 << k: pattern for k, pattern in enumerate(patterns)}, unbounded)
    made = product(Marked.of(automaton), sought, unbounded)
    made = product(made, counter(n, 1, timed=timed), unbounded)
    _check(made.automaton)
    keys = made.automaton.keys
    assert (keys[1:] > keys[:-1]).all()
    for end in range(len(output) + 1):
        history = output[:end]
        state, timer = folded(made.automaton, [], history)
        assert (state, timer) == walk(made.automaton, [], history)
        assert edit_of(made.automaton, state) == merged([edit(spec, [], history)])
        found = {k for k, each in enumerate(patterns) if tuple(history[-len(each) :]) == each}
        assert made.marks[state] == (len(history) >= n) + sum(2 << k for k in found)


@settings(deadline=None, max_examples=20)
@given(DRAW.sequence, DRAW.sequence, st.integers(1, 4), histories)
def test_repeated(
    trigger: tuple[int, ...], phrase: tuple[int, ...], times: int, output: list[int]
) -> None:
    (once,) = automata(TriggerSpec(trigger, phrase))
    made = repeated(once, times)
    _check(made)
    assert unreachable(made) == []
    for end in range(len(output) + 1):
        state, _ = folded(made, [], output[:end])
        assert edit_of(made, state) == edit(TriggerSpec(trigger, phrase, times), [], output[:end])


@settings(deadline=None)
@given(specs(VOCABULARY, kinds=[kind for kind in AUTOMATA if kind not in BESIDE]))
def test_first_states_set_or_clear_the_timer(spec: LogitsProcessorSpec) -> None:
    """A phase begins in the first state, whatever the timer is by then."""
    assert not {CARRY, KEEP} & {int(automaton.timer[0]) for automaton in automata(spec)}


def test_joined_without_pruning() -> None:
    """States that no history leads to are dropped where there are few states in all."""
    (automaton,) = automata(ForcedTokenSequenceSpec((4, 5)))
    marked = Marked.of(automaton, 1, (2,))
    part = Fragment(automaton, marked.marks * 2 - 1, by_timeout=False)
    for most, states in ((99, 3), (0, 4)):
        made = joined([part], 0, most)
        _check(made)
        assert (made.states, len(unreachable(made))) == (states, states - 3)
        assert [edit_of(made, folded(made, [], [4, 5, 9][:n])[0]).token for n in range(4)] == [
            *(4, 5, 0, 0)
        ]
