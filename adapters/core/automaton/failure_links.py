"""Shortening of failure links, which lead to the longest proper suffix of a state's sequence."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import TOKEN, Ints, differ, looked_up, members
from .automaton import Automaton

HOPS = 4
"""The approximate number of failure links that a token may follow. Longer chains are shortened."""

MAX_MERGED_EDGES = 1 << 15
"""The most edges that shortening failure links may add to an automaton."""


class TooManyEdgesError(ValueError):
    """An error for failure links that cannot be shortened with few enough edges."""

    def __init__(self) -> None:
        super().__init__(
            "too many token sequences end like the beginnings of others: a token would follow more "
            f"than {HOPS} failure links, unless more than {MAX_MERGED_EDGES} edges were added"
        )


def shortened(automaton: Automaton) -> Automaton:
    """Shorten the automaton's chains of failure links, so that no step follows a long chain.

    A link skips a state if all tokens with an edge there also have one in the link's source (the
    strong failure links of Knuth, Morris and Pratt). Where chains are still long, one state in
    ``HOPS`` gets the edges of all states further along its chain, except for the last state.

    Raises:
        TooManyEdgesError: if this adds more than ``MAX_MERGED_EDGES`` edges.
    """
    is_link = automaton.is_failure_link
    at = following = np.where(is_link, automaton.default_target, np.arange(automaton.states))
    for _ in range(HOPS - 1):
        at = at[following]
    if not is_link[at].any():
        return automaton
    keys, targets = automaton.keys, automaton.targets
    sizes = np.bincount(keys >> 32, minlength=automaton.states)
    starts = np.cumsum(sizes) - sizes
    first_token = np.zeros(automaton.states, np.int64)
    first_token[sizes > 0] = keys[starts[sizes > 0]] & TOKEN
    further, states = automaton.default_target.astype(np.int64), np.flatnonzero(is_link)
    while len(states):  # each round doubles the reach of the links that still grow
        states = states[is_link[further[states]]]
        past = further[states]
        is_idle = first_token[past] == first_token[states]
        # Most states have one edge. The others must have an edge for each token of the skipped one.
        others = np.flatnonzero((sizes[past] != 1) | (sizes[states] != 1))
        owner, edge = members(starts[states[others]], sizes[states[others]])
        _, is_shared = looked_up(keys, past[others][owner] << 32 | keys[edge] & TOKEN)
        shared = np.bincount(owner[is_shared], minlength=len(others))
        is_idle[others] = shared == sizes[past[others]]
        states = states[is_idle]
        further[states] = further[further[states]]
    hops, is_passed = hop_counts(further, is_link), np.zeros(automaton.states, np.bool_)
    is_passed[further[is_link]] = True
    link, levels, merged = further.copy(), [(keys, targets)], 0
    for level in range(HOPS, int(hops.max()), HOPS):
        states = np.flatnonzero(is_passed & (hops == level))
        chain = [states]
        while len(chain) < HOPS:
            chain.append(further[chain[-1]])
        at, last = np.concatenate(chain), further[chain[-1]]
        parts = [(keys, targets, np.tile(states, HOPS), starts[at], sizes[at])]
        if level > HOPS:  # the chains end in the states of the previous level
            before, _ = levels[0]
            first = before.searchsorted(last << 32)
            sizes_before = before.searchsorted((last + 1) << 32) - first
            parts.append((*levels[0], states, first, sizes_before))
            last = link[last]
        link[states] = last
        merged += sum(int(lengths.sum()) for *_, lengths in parts)
        if merged > MAX_MERGED_EDGES:
            raise TooManyEdgesError
        found: list[tuple[Ints, npt.NDArray[np.int32]]] = []
        for from_keys, from_targets, into, first, lengths in parts:
            owner, edge = members(first, lengths)
            found.append((into[owner] << 32 | from_keys[edge] & TOKEN, from_targets[edge]))
        levels.insert(0, nearest(found))
    keys, targets = nearest(levels)
    return replace(automaton, default_target=link.astype(np.int32), keys=keys, targets=targets)


def hop_counts(target: npt.NDArray[Any], is_link: npt.NDArray[np.bool_]) -> Ints:
    """Count the links in the chain that starts at each state; in a circle, more than states."""
    hops, jump = is_link.astype(np.int64), np.where(is_link, target, np.arange(len(target)))
    while (more := hops[jump]).any() and hops.max() <= len(hops):  # each doubles the distance
        hops, jump = hops + more, jump[jump]
    return hops


def nearest(
    found: Sequence[tuple[Ints, npt.NDArray[np.int32]]],
) -> tuple[Ints, npt.NDArray[np.int32]]:
    """Merge edges in ascending order; of edges with equal keys, keep the first."""
    keys = np.concatenate([keys for keys, _ in found])
    order = keys.argsort(kind="stable")
    is_first = differ(keys[order])
    order = order[is_first]
    return keys[order], np.concatenate([targets for _, targets in found])[order]
