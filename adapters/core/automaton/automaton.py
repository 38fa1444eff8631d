"""Timed token automata: immutable tables that define, for each state, the edit and the edges."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from struct import pack
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .arrays import TOKEN, Ints, differ, distinct, token_array

BAN_BIAS = -1e9
"""The value that a ban adds to a logit.

A banned token has probability exactly 0 if the row has any other token to choose. If all other
tokens are masked, the row still has a finite logit. A token that the engine has masked with -inf
stays masked.
"""

HIGHEST_ADDITION = 1e6
"""The most that a rule or a plugin's automaton may add to a logit. FORCE beats any sum of these."""

NO_TIMEOUT = -1
CARRY = -1
"""Timer on entry: a running timer goes on running."""
CLEAR = -2
"""Timer on entry: stop the timer."""
KEEP = -3
"""Timer on entry: leave the timer as it is; this token does not count."""
NO_TIMER = np.iinfo(np.int32).max
"""A timer that never reaches 0 within any history."""

UNKNOWN = -1
"""In a history: a sampled token whose id is not known, or not known yet. If a token was forced at
that position, it is the forced token."""


class Edit(IntEnum):
    """The edit that a state makes to the logits. A ban is an ``ADD`` of ``BAN_BIAS``.

    ``BAN_OTHERS`` bans the tokens that its set does not contain, where these are most of all.
    ``MOVE`` comes last: the mass of the tokens of its set whose value is 0 moves to the one whose
    value is the temperature.
    """

    FREE = 0
    FORCE = 1
    ALLOW = 2
    ADD = 3
    BAN_OTHERS = 4
    MOVE = 5


@dataclass(frozen=True, slots=True, eq=False)
class Automaton:
    """A timed token automaton, which starts by entering state 0. Use ``AutomatonBuilder``.

    A request's state is two integers, ``(state, timer)``. A token takes its edge if the state has
    one for it. Otherwise it goes to the default target, which either consumes the token or looks
    for an edge of its own (a failure link, as in Aho-Corasick). The state that is
    entered sets the timer, lets it run down by one, or keeps it; with ``KEEP`` states, the timer
    counts how often other states are entered. If the timer is 0 before a token is chosen, the
    automaton first moves to the state's time-out target.

    Attributes:
        edit: ``[states]`` int8, an ``Edit``.
        operand: ``[states]`` int32, the token of a ``FORCE``, the token set of others.
        default_target: ``[states]`` int32, the next state of tokens without an edge.
        is_failure_link: ``[states]`` bool, whether ``default_target`` looks the token up again.
        branches: ``[states]`` bool, whether the next state depends on the token.
        timer: ``[states]`` int32, on entry: set to n >= 0, ``CARRY``, ``CLEAR`` or ``KEEP``.
        timeout: ``[states]`` int32, the next state when the timer is 0, or -1.
        keys: ``[edges]`` int64, ascending, ``state << 32 | token``.
        targets: ``[edges]`` int32, the next state for each of ``keys``.
        set_ends: ``[sets]`` int32, the end of each token set in ``set_tokens``.
        set_tokens: ``[total]`` int32, token ids, ascending within a set.
        set_values: ``[total]`` float32, the values that an ``ADD`` adds; see ``Edit`` for ``MOVE``.
        reads_prompt: whether the automaton reads the prompt before the output.
        highest_token: the largest token id in any edit, or -1.
        is_complete: ``[states]`` bool, the states in which it has nothing left to do, so that a
            phase may end; ``None`` if no phase waits for it.
    """

    edit: npt.NDArray[np.int8]
    operand: npt.NDArray[np.int32]
    default_target: npt.NDArray[np.int32]
    is_failure_link: npt.NDArray[np.bool_]
    branches: npt.NDArray[np.bool_]
    timer: npt.NDArray[np.int32]
    timeout: npt.NDArray[np.int32]
    keys: Ints
    targets: npt.NDArray[np.int32]
    set_ends: npt.NDArray[np.int32]
    set_tokens: npt.NDArray[np.int32]
    set_values: npt.NDArray[np.float32]
    reads_prompt: bool
    highest_token: int
    is_complete: npt.NDArray[np.bool_] | None = None

    @property
    def edges(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """The end of each state's edges after a leading 0, and the token of each edge."""
        ends = np.zeros(self.states + 1, np.int32)
        np.cumsum(np.bincount(self.keys >> 32, minlength=self.states), out=ends[1:])
        return ends, (self.keys & TOKEN).astype(np.int32)

    @property
    def states(self) -> int:
        """The number of states."""
        return len(self.edit)

    @property
    def cells(self) -> int:
        """The size of the tables: the number of states, plus the tokens in all token sets."""
        return self.states + len(self.set_tokens)

    @property
    def set_sizes(self) -> npt.NDArray[np.int32]:
        """``[sets]``, the number of tokens in each token set."""
        return np.diff(self.set_ends, prepend=np.int32(0))

    @property
    def table_bytes(self) -> int:
        """An upper estimate of the automaton's memory, here and in the pools of host and device."""
        return table_bytes(self.states, len(self.keys), len(self.set_tokens), len(self.set_ends))

    def of_tokens(
        self,
        token_ids: Iterable[int] | Ints,
        values: Iterable[float] | npt.NDArray[Any] | float = BAN_BIAS,
        **columns: npt.NDArray[Any],
    ) -> "Automaton":
        """Copy the automaton, with other tokens in its only token set, and other ``columns``.

        The tokens are as in ``AutomatonBuilder.token_set``: at least one, none negative. This takes
        a quarter of the time of a new automaton, because no state is checked again.
        """
        tokens, biases = token_set(token_ids, values)
        return replace(
            self,
            set_ends=np.array([len(tokens)], np.int32),
            set_tokens=tokens,
            set_values=biases,
            highest_token=int(tokens[-1]) if len(tokens) else -1,
            **columns,
        )

    @property
    def moves(self) -> bool:
        """Whether a state has a MOVE: what it forces afterwards comes before all other edits."""
        return bool((self.edit == Edit.MOVE.value).any())

    @property
    def needs_output_ids(self) -> bool:
        """Whether the state depends on more than the output's length and the forced tokens."""
        return bool((self.branches & (self.edit != Edit.FORCE)).any())


class Lane(NamedTuple):
    """An automaton of a request, and its place in the request's phases.

    Attributes:
        automaton: the automaton.
        phase: the number of the phase that it acts in. Phase 0 always acts.
        end: the ``end_code`` of the end of the phase that comes when this automaton
            is complete; 0 for none.
    """

    automaton: Automaton
    phase: int = 0
    end: int = 0


TARGETS = 256
"""More than all phases of a request."""


def end_code(index: int, target: int, *, is_shared: bool) -> int:
    """Encode an end of a phase as one number; the first of several ends is the least.

    Args:
        index: the index of the end among those of its phase.
        target: the phase that follows. Phase 0 is that of all parts outside of phases.
        is_shared: whether the end comes when several automata are complete, and not only one.
    """
    return (index * TARGETS + target) * 2 + is_shared


class UnknownTokenError(ValueError):
    """An error for a token that decides the next state and that the engine has not provided."""

    def __init__(self) -> None:
        super().__init__(
            "the engine does not provide the ids of sampled tokens to this processor: load it with "
            "--logits-processors, or turn asynchronous scheduling off"
        )


def table_bytes(states: int, edges: int, set_tokens: int, sets: int = 0) -> int:
    """Estimate the memory of an automaton, here and in the pools of host and device, from above.

    A pool may hold twice the room that it needs.
    """
    return 113 * states + 48 * edges + 40 * set_tokens + 20 * sets


def bounded(values: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float32]:
    """Clip values to the range that may be added to logits."""
    return np.clip(values, BAN_BIAS, HIGHEST_ADDITION).astype(np.float32)


def token_set(
    token_ids: Iterable[int] | Ints, values: Iterable[float] | npt.NDArray[Any] | float
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Make the columns of ``AutomatonBuilder.token_set``: token ids and values."""
    tokens = token_array(token_ids)
    if isinstance(values, float | int):
        tokens = distinct(tokens)
        return tokens, bounded(np.full(len(tokens), values, np.float64))
    if not isinstance(values, np.ndarray):
        every = tuple(values)
        values = np.frombuffer(pack(f"{len(every)}d", *every))
    order = tokens.argsort(kind="stable")
    order = order[differ(tokens[order])]
    return tokens[order], bounded(values[order])
