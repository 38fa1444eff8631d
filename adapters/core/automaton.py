"""Specs compiled to immutable tables that say, state by state, what the next token must be."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...spec import Payload

FREE = -1
"""In ``Automaton.force``: the model chooses."""

UNKNOWN = -1
"""In a history: a token that was sampled but not told yet. Where one was forced, it is that one."""

Table = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Automaton:
    """A token automaton. It starts in state 0; the request's state is all that varies.

    Attributes:
        force: ``[states]``, the token id to force in each state, or ``FREE``.
        on_forced: ``[states]``, the next state when that token (or ``UNKNOWN``) arrives.
        on_other: ``[states]``, the next state when another token does.
    """

    force: Table
    on_forced: Table
    on_other: Table

    def fold(self, token_ids: Sequence[int]) -> int:
        """The state after a whole history of output tokens."""
        state = 0
        for token_id in token_ids:
            as_forced = token_id in (self.force[state], UNKNOWN)
            following = self.on_forced[state] if as_forced else self.on_other[state]
            if following == state == len(self.force) - 1:  # the last state is never left
                break
            state = following
        return int(state)


def forced_chain(token_ids: Sequence[int], then: int | None) -> Automaton:
    """Force ``token_ids`` one after the other, then ``then`` for ever (``None``: nothing more).

    A foreign token before the first one (a prefill worker's, handed over) leaves the chain where
    it is. Within the chain, the position counts.
    """
    n = len(token_ids)
    states = np.arange(n + 1, dtype=np.int32)
    following = np.minimum(states + 1, n)
    on_other = following.copy()
    on_other[0] = 0
    return Automaton(
        force=np.array([*token_ids, FREE if then is None else then], np.int32),
        on_forced=following,
        on_other=on_other,
    )


def compile_payload(payload: Payload) -> Automaton:
    """The automaton that realizes a request's specs."""
    (spec,) = payload.specs  # Payload admits one forced sequence, the one kind there is
    return forced_chain(spec.token_ids, spec.eos_token_id)
