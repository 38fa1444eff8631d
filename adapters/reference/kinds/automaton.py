"""``automaton``."""

from ....spec import AutomatonEdge, AutomatonSpec, AutomatonState
from .base import Add, Allow, Edit, Force, FreeRun, Kind, Tokens, ban


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


KIND = Kind(AutomatonSpec((AutomatonState(),)), _edit, _examples)
