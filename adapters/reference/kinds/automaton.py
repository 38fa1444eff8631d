"""``automaton``."""

from typing import Any

from ....spec import AutomatonEdge, AutomatonSpec, AutomatonState, SpecError
from .base import Add, Allow, Draws, Edit, Force, FreeRun, Kind, Tokens, ban


def _edit(spec: AutomatonSpec, prompt: Tokens, output: Tokens) -> Edit:
    state = spec.states[0]
    timer = state.timer
    for token in (*output, None):
        while timer == 0 and state.timeout is not None:
            state = spec.states[state.timeout]
            timer = timer if state.timer is None else state.timer
        if token is None:
            break
        state = _next(spec, state, token)
        if state.timer is not None:
            timer = state.timer
        elif timer and state.counts:
            timer -= 1
    if state.force is not None:
        return Force(state.force)
    if state.allow is not None:
        return Allow(frozenset(spec.token_sets[state.allow]))
    if state.ban is not None:
        return ban(spec.token_sets[state.ban])
    if state.add is not None and state.bias is not None:
        return Add(dict.fromkeys(spec.token_sets[state.add], state.bias))
    return None


def _next(spec: AutomatonSpec, state: AutomatonState, token: int) -> AutomatonState:
    for edge in state.edges:
        if token in spec.token_sets[edge.token_set]:
            return spec.states[edge.state]
    return state if state.default is None else spec.states[state.default]


def _examples(free: FreeRun) -> list[AutomatonSpec]:
    """Make specs: force a token every third time; ban one until another has come."""
    every_third = (
        AutomatonState(force=free.unused[0], default=1),
        AutomatonState(default=2, timer=2),
        AutomatonState(timeout=0),
    )
    banned = AutomatonState(ban=0, edges=(AutomatonEdge(1, 1),))
    biased = AutomatonState(add=1, bias=2.0)
    sets = (free.output_ids[:1], free.output_ids[1:2])
    return [AutomatonSpec(every_third), AutomatonSpec((banned, biased), sets)]


def _strategy(draw: Draws) -> Any:
    st = draw.st

    @st.composite
    def specs(drawn: Any) -> AutomatonSpec:
        sets = drawn(st.lists(draw.tokens, max_size=3))
        count = drawn(st.integers(1, 4))
        index = st.integers(0, count - 1)
        free = st.just({})
        of_set = st.integers(0, len(sets) - 1)
        edits = free | st.fixed_dictionaries({"force": draw.token})
        edges = st.just(())
        if sets:
            edits |= st.fixed_dictionaries({"allow": of_set})
            edits |= st.fixed_dictionaries({"ban": of_set})
            edits |= st.fixed_dictionaries({"add": of_set, "bias": draw.bias})
            edges = st.lists(st.builds(AutomatonEdge, of_set, index), max_size=3).map(tuple)
        timers = free | st.fixed_dictionaries({"timer": st.integers(0, draw.count)})
        timers |= st.just({"counts": False})
        maybe = st.none() | index
        states = [
            {
                **drawn(edits),
                **drawn(timers),
                "edges": drawn(edges),
                "default": drawn(maybe),
                "timeout": drawn(maybe),
            }
            for _ in range(count)
        ]
        try:
            return AutomatonSpec(tuple(AutomatonState(**each) for each in states), tuple(sets))
        except SpecError:  # the time-outs go round in circles
            for each in states:
                each["timeout"] = None
            return AutomatonSpec(tuple(AutomatonState(**each) for each in states), tuple(sets))

    return specs()


KIND = Kind(AutomatonSpec((AutomatonState(),)), _edit, _examples, _strategy)
