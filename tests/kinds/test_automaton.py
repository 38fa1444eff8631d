import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from logitport.adapters.core import Realizer, compile_specs
from logitport.spec import (
    AutomatonEdge,
    AutomatonSpec,
    AutomatonState,
    LogitsProcessorSpec,
    MinTokensSpec,
    SpecError,
    TriggerSpec,
    decode,
    encode,
    limits,
)

from tests.support.kinds import F, RealizedKindTests, allow, ban
from tests.support.strategies import specs

MOST = limits.MAX_STATES
FREE = AutomatonState()
TO_1 = AutomatonEdge(0, 1)
ON_TIME = AutomatonSpec(
    (
        AutomatonState(edges=(AutomatonEdge(0, 1),)),
        AutomatonState(edges=(AutomatonEdge(1, 0),), default=2, timer=2),
        AutomatonState(edges=(AutomatonEdge(1, 0),), timeout=3),
        AutomatonState(force=7, default=0),
    ),
    ((4, 5), (6, 7)),
)
FIRST_COUNTS = AutomatonSpec(  # of two edges for token 3
    (
        AutomatonState(edges=(TO_1, AutomatonEdge(1, 2))),
        AutomatonState(ban=0),
        AutomatonState(ban=1),
    ),
    ((3,), (3, 4)),
)
TWO_OF_3 = AutomatonSpec(
    (
        AutomatonState(timer=2, edges=(TO_1,), default=2),
        AutomatonState(edges=(TO_1,), default=2, timeout=3),
        AutomatonState(counts=False, edges=(TO_1,), timeout=3),
        AutomatonState(ban=0),
    ),
    ((3,),),
)
BRACKETS = AutomatonSpec(
    (
        AutomatonState(ban=1, edges=(AutomatonEdge(0, 1),)),
        AutomatonState(ban=0, edges=(AutomatonEdge(1, 0),)),
    ),
    ((1,), (2,)),
)


def state(**fields: object) -> dict[str, object]:
    return {"states": [{}, fields], "token_sets": [[1]]}


class TestRows(RealizedKindTests):
    golden = AutomatonSpec(
        (
            AutomatonState(allow=0, edges=(AutomatonEdge(1, 1),), default=2, timer=3),
            AutomatonState(add=1, bias=-2.5, counts=False, timeout=2),
            AutomatonState(force=198, default=0),
        ),
        ((12, 216, 30), (30,)),
    )
    refused = (
        ({"states": []}, "Expected `array` of length >= 1", "states"),
        ({"states": [{}] * (MOST + 1)}, f"Expected at most {MOST} entries", "states"),
        (state(force=-1), "Expected `int` >= 0", "states[1].force"),
        (state(default=2), "Expected an index of 2 states, got 2", "states[1].default"),
        (state(timeout=5), "Expected an index of 2 states, got 5", "states[1].timeout"),
        (state(allow=1), "Expected an index of 1 token sets, got 1", "states[1].allow"),
        (
            state(edges=[{"token_set": 0, "state": 1}, {"token_set": 0, "state": 2}]),
            "Expected an index of 2 states, got 2",
            "states[1].edges[1].state",
        ),
        (
            state(edges=[{"token_set": 3, "state": 1}]),
            "Expected an index of 1 token sets, got 3",
            "states[1].edges[0].token_set",
        ),
        (
            state(force=1, ban=0),
            "Expected at most one of force, allow, ban and add",
            "states[1]",
        ),
        (state(add=0), "Expected both add and bias, or neither", "states[1]"),
        (state(bias=1.0), "Expected both add and bias, or neither", "states[1]"),
        (
            state(timer=1, counts=False),
            "Expected no timer where `counts` is false",
            "states[1].timer",
        ),
        (
            {"states": [{}, {"timeout": 2}, {"timeout": 1, "timer": 0}]},
            "Expected at most 4 time-outs in a row",
            "states[1].timeout",
        ),
        (
            {"states": [*({"timeout": i} for i in range(1, 6)), {}]},
            "Expected at most 4 time-outs in a row",
            "states[0].timeout",
        ),
    )
    largest = (
        AutomatonSpec((FREE,) * MOST),
        AutomatonSpec((AutomatonState(edges=(AutomatonEdge(0, 0),)),), ((1,) * ((1 << 13) - 4),)),
    )
    beyond = (
        (AutomatonSpec((FREE,), ((1,), (1, 9))), "token_sets[1][1]"),
        (AutomatonSpec((FREE, AutomatonState(force=9))), "states[1].force"),
    )
    histories = (
        (ON_TIME, [4, 4], [None, 4, None, 1, None, 7, None, 5, None, 4, None, 1, F(7), 9, None]),
        (ON_TIME, [], [None, 4, None, 1, None, 6, None, 6, None, 6, None]),
        (TWO_OF_3, [], [None, 3, None, 5, None, 5, None, 3, ban(3), 3, ban(3)]),
        (BRACKETS, [], [ban(2), 5, ban(2), 1, ban(1), 1, ban(1), 2, ban(2)]),
        (
            AutomatonSpec((AutomatonState(allow=0, edges=(TO_1,)), FREE), ((3, 1, 3),)),
            [],
            [allow(1, 3), 2, allow(1, 3), 3, None, 3, None],
        ),
        (FIRST_COUNTS, [], [None, 5, None, 3, ban(3)]),
    )


def test_edges_and_states_count_as_token_ids():
    tokens = (1,) * (limits.MAX_TOKEN_IDS // 2)
    for spec in (
        AutomatonSpec((AutomatonState(edges=(AutomatonEdge(0, 0),)),), (tokens,)),
        AutomatonSpec((FREE,) * 4, (tokens, tokens)),
    ):
        with pytest.raises(SpecError, match=f"at most {limits.MAX_TOKEN_IDS} token ids"):
            decode(encode(spec))


def test_a_forced_token_breaks_a_grammar():
    assert ON_TIME.breaks_grammar
    assert not BRACKETS.breaks_grammar


@given(specs(4, kinds=[AutomatonSpec]), st.data())
def test_time_outs_are_few(spec: AutomatonSpec, data: st.DataObject):
    """The host's and the device's loops over due time-outs end after ``MAX_TIMEOUTS`` rounds."""
    (automaton,) = compile_specs([spec]).automata
    states = data.draw(st.integers(0, automaton.states - 1))
    for _ in range(limits.MAX_TIMEOUTS):
        if automaton.timeout[states] < 0 or automaton.timer[states] > 0:
            return
        states = int(automaton.timeout[states])
    assert automaton.timeout[states] < 0 or automaton.timer[states] > 0


@pytest.mark.parametrize("other", [MinTokensSpec(1, (5,)), TriggerSpec((1,), (2,), 2)])
def test_a_time_out_without_a_timer_is_never_due(other: LogitsProcessorSpec):
    """Neither by itself nor beside an automaton that has a timer."""
    spec = AutomatonSpec((AutomatonState(timeout=1), AutomatonState(force=0)))
    realizer, output = Realizer(8), list[int]()
    realizer.add(0, compile_specs((other, spec)), [], output)
    for _ in range(3):
        logits = torch.zeros(1, 8)
        realizer.apply(logits)
        assert logits[0, 0] == 0
        output.append(4)
