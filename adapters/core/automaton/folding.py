"""How an automaton reads tokens: one loop for a step, a prompt, and an output that comes again."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..loops import loop, part_of_loops
from .automaton import (
    CARRY,
    CLEAR,
    NO_TIMER,
    UNKNOWN,
    Automaton,
    Edit,
    UnknownTokenError,
)
from .history import TokenHistory

_FEW = 8
"""So many edges are searched one by one, which the processor does ahead of time."""

Tokens = npt.NDArray[np.int32]
Place = tuple[int, int]
"""A state and a timer."""


@part_of_loops
def enter(on_entry: int, timer: int) -> int:
    """Return the timer after a token has led to a state that has ``on_entry``."""
    if on_entry == CARRY:
        return max(timer - 1, 0)
    if on_entry >= 0:
        return on_entry
    return NO_TIMER if on_entry == CLEAR else timer


@loop
def settle(timers: Any, timeout: Any, state: int, timer: int) -> Place:
    """Take the time-outs that are due."""
    while timer == 0 and timeout[state] >= 0:
        state = timeout[state]
        timer = enter(timers[state], timer)
    return state, timer


@part_of_loops
def take(
    default_target: Any,
    is_failure_link: Any,
    edge_ends: Any,
    edge_tokens: Any,
    targets: Any,
    state: int,
    token: int,
) -> int:
    """Return the state after a token: along its edge, a failure link, or the default."""
    following = -1
    while following < 0:
        first, end = edge_ends[state], edge_ends[state + 1]
        left = end - first
        while left > _FEW:
            half = (left + 1) >> 1
            if edge_tokens[first + half - 1] < token:
                first += half
            left -= half
        for edge in range(first, min(first + left + 1, end)):
            if edge_tokens[edge] == token:
                following = targets[edge]
                break
        if following < 0:
            if not is_failure_link[state]:
                following = default_target[state]
            state = default_target[state]
    return following


@loop
def read(transitions: Any, state: int, timer: int, tokens: Any, chosen: bool) -> Place:
    """Read tokens of a prompt or, if they were ``chosen``, of an output, with its time-outs.

    Returns:
        The state and the timer; -1 if the token that decides the state is not known.
    """
    default, is_link, branches, timers, timeout, ends, of_edges, targets = transitions
    for token in tokens:
        if chosen and timer == 0:
            state, timer = settle(timers, timeout, state, timer)
        if token == UNKNOWN and branches[state]:
            return -1, timer
        state = take(default, is_link, ends, of_edges, targets, state, token)
        timer = enter(timers[state], timer)
    if chosen:
        state, timer = settle(timers, timeout, state, timer)
    return state, timer


def fold_together(automata: Sequence[Automaton], history: TokenHistory) -> list[Place]:
    """Compute the ``(state, timer)`` of each automaton of a request, as ``Automaton.fold`` does.

    The automata fold together because any of them may have forced a token that is not known. They
    are in the order of the specs: if several automata force a token, the first wins.

    Raises:
        UnknownTokenError: if the next state depends on a token that is unknown and not forced.
    """
    timers = (int(each.timer[0]) for each in automata)
    places = [(0, timer if timer >= 0 else NO_TIMER) for timer in timers]
    if len(history.prompt_ids):
        for i, automaton in enumerate(automata):
            if automaton.reads_prompt:
                places[i] = _read(automaton, places[i], history.prompt_array(), chosen=False)
    tokens, done = history.output_array(), 0
    unknown = np.flatnonzero(tokens == UNKNOWN).tolist()
    tokens = tokens.copy() if unknown else tokens
    for position in [*unknown, len(tokens)]:
        places = [
            _read(automaton, place, tokens[done:position], chosen=True)
            for automaton, place in zip(automata, places, strict=True)
        ]
        if position < len(tokens):  # the next part begins with the token that was forced there
            at = zip(automata, places, strict=True)
            forced = (a.operand[state] for a, (state, _) in at if a.edit[state] == Edit.FORCE)
            tokens[position] = next(forced, UNKNOWN)
        done = position
    return places


def states_along(automaton: Automaton, history: TokenHistory) -> Iterator[int]:
    """Yield the state before each output token; see ``Automaton.states_along``."""
    place = fold_together((automaton,), TokenHistory(history.prompt_ids, ()))[0]
    for token in history.output_ids:
        yield place[0]
        place = _read(automaton, place, np.array([token], np.int32), chosen=True)


def _read(automaton: Automaton, place: Place, tokens: Tokens, *, chosen: bool) -> Place:
    if not len(tokens) and not chosen:
        return place
    state, timer = read(automaton.transitions, *place, tokens, chosen)
    if state < 0:
        raise UnknownTokenError
    return int(state), int(timer)
