"""The reference for automata: histories are walked token by token."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from logitport import spec as s
from logitport.adapters.core import (
    CARRY,
    KEEP,
    Automaton,
    compile_specs,
)
from logitport.adapters.core.automaton import NO_TIMER, Lane
from logitport.adapters.core.automaton.automata import place
from logitport.adapters.core.automaton.history import TokenHistory
from logitport.adapters.reference import BAN, Add, Allow, Force, edit
from logitport.adapters.reference.automata import edit_of
from logitport.adapters.reference.kinds import REALIZED
from logitport.adapters.reference.kinds.base import flat
from logitport.spec import LogitsProcessorSpec

VOCABULARY = 4  # tokens of a pattern repeat, and patterns overlap


OTHERS = s.NoRepeatNgramSpec, s.DrySpec, s.NoLoopSpec, s.PromptBiasSpec
AUTOMATA = tuple(kind for kind in REALIZED if kind not in (*OTHERS, s.PhasesSpec))


tokens = st.integers(0, VOCABULARY - 1)


# Long runs of one token come often: a fold takes them in one step where it can.
histories = st.lists(
    st.lists(tokens, max_size=5)
    | st.builds(lambda token, n: [token] * n, tokens, st.integers(1, 20)),
    max_size=4,
).map(lambda parts: [token for part in parts for token in part])


def automata(spec: LogitsProcessorSpec) -> tuple[Automaton, ...]:
    return compile_specs([spec]).automata


def without_timer(end: tuple[int, int]) -> tuple[int, int]:
    """With -1 for a timer that never gets to 0."""
    state, timer = end
    return state, -1 if timer > NO_TIMER - (1 << 29) else timer


def fold(
    automaton: Automaton, prompt: Sequence[int] | None, output: Sequence[int]
) -> tuple[int, int]:
    """Compute state and timer after a whole history, with all due time-outs taken."""
    history = TokenHistory(() if prompt is None else prompt, output)
    return place((Lane(automaton),), (0,), history)[0][0]


def folded(automaton: Automaton, prompt: Sequence[int], output: Sequence[int]) -> tuple[int, int]:
    return without_timer(fold(automaton, prompt, output))


def walk(automaton: Automaton, prompt: Sequence[int], output: Sequence[int]) -> tuple[int, int]:
    """Where a history leads, by the words of ``Automaton``'s docstring, token by token."""
    edges = dict(zip(automaton.keys.tolist(), automaton.targets.tolist(), strict=True))
    state = timer = -1

    def enter(target: int, *, tokens: int = 0) -> None:
        nonlocal state, timer
        state, on_entry = target, int(automaton.timer[target])
        if on_entry == CARRY:
            timer -= tokens if timer > 0 else 0
        elif on_entry != KEEP:
            timer = max(on_entry, -1)

    def settle() -> None:
        while timer == 0 and automaton.timeout[state] >= 0:
            enter(int(automaton.timeout[state]))

    def take(token: int) -> None:
        at = state
        while (target := edges.get(at << 32 | token)) is None:
            is_link, at = automaton.is_failure_link[at], int(automaton.default_target[at])
            if not is_link:
                target = at
                break
        enter(target, tokens=1)

    enter(0)
    for token in prompt if automaton.reads_prompt else ():
        take(token)
    for token in output:
        settle()
        take(token)
    settle()
    return state, timer


def merged(edits: list[Any]) -> Any:
    """Several edits as what they come to: a set of one token that is allowed is forced."""
    edits = flat(edits)
    if len(edits) == 1 and isinstance(edits[0], Allow) and len(edits[0].tokens) == 1:
        return Force(*edits[0].tokens)
    values: dict[int, float] = {}
    for token, value in (each for e in edits if isinstance(e, Add) for each in e.values.items()):
        total = values.get(token, 0) + float(np.float32(value))
        values[token] = BAN if total < BAN / 2 else total  # beside a ban, float32 keeps no bias
    for each in edits:
        if isinstance(each, Force):
            return each
    if allowed := [each.tokens for each in edits if isinstance(each, Allow)]:
        banned = {token for others in allowed[1:] for token in allowed[0] - others}
        values |= dict.fromkeys(banned, BAN)
        kept = {token: value for token, value in values.items() if token in allowed[0]}
        return (Allow(allowed[0]), Add(kept)) if kept else Allow(allowed[0])
    return Add(values) if values else None


def assert_edits(
    parts: Sequence[Automaton],
    meant: Sequence[LogitsProcessorSpec],
    prompt: Sequence[int],
    output: Sequence[int],
) -> None:
    """The automata together do what the specs mean, at the end of a history."""
    acting = [edit_of(part, fold(part, prompt, output)[0]) for part in parts]
    assert merged(acting) == merged([edit(spec, prompt, output) for spec in meant]), output


def unreachable(automaton: Automaton) -> list[int]:
    """List the states that no history leads to: dead entries of a table."""
    columns = automaton.default_target, automaton.timeout, automaton.keys >> 32, automaton.targets
    return np.flatnonzero(~reached(*columns)).tolist()


def reached(
    default_target: npt.NDArray[Any],
    timeout: npt.NDArray[Any],
    sources: npt.NDArray[Any],
    targets: npt.NDArray[Any],
) -> npt.NDArray[np.bool_]:
    """Mark the states that some history may lead to."""
    defaults, timeouts, ends = default_target.tolist(), timeout.tolist(), targets.tolist()
    bounds = np.searchsorted(sources, np.arange(len(defaults) + 1)).tolist()
    seen = bytearray(len(defaults))
    seen[0], front = 1, [0]
    while front:
        state = front.pop()
        edges = ends[bounds[state] : bounds[state + 1]]
        for target in (defaults[state], timeouts[state], *edges):
            if target >= 0 and not seen[target]:
                seen[target] = 1
                front.append(target)
    return np.frombuffer(seen, np.bool_)
