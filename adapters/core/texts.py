"""Automata of texts: the texts' bytes, times the bytes of each token of a vocabulary.

A text has many tokenizations. These automata are exact for all of them, and for tokens that begin
before a text or end after it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .automaton import Automaton, AutomatonBuilder, Ints
from .automaton.arrays import TOKEN, distinct, looked_up, members, token_array
from .automaton.automaton import Edit, table_bytes
from .vocabulary import Vocabulary, VocabularyTrie

Symbol = tuple[bytes, ...]
"""One character of a text: its encodings, each of one byte or more, and none begins another. Two
symbols are equal, or have no encoding in common.
"""
Flags = npt.NDArray[np.bool_]

NOWHERE = -1


class ByteAutomaton(NamedTuple):
    """Aho and Corasick's automaton over bytes. A state is a proper prefix of a text.

    State 0 is the empty prefix. A state's failure link leads to the longest proper suffix that is
    a state, which has a lower number.

    Attributes:
        failure: ``[states]``, the failure links.
        edges: ``[edges]``, ascending, ``state << 8 | byte``.
        targets: ``[edges]``, the next prefix, or ``NOWHERE`` if no text goes on.
        completes: ``[edges]``, whether the byte completes a text.
        class_of: ``[256]``, the class of each byte. Class 0 is that of the bytes in no text.
        next_state: ``[states, classes]``, the state after a byte, failure links followed.
        is_end: ``[states, classes]``, whether the byte completes any text.
    """

    failure: Ints
    edges: Ints
    targets: Ints
    completes: Flags
    class_of: npt.NDArray[np.uint8]
    next_state: npt.NDArray[np.int32]
    is_end: Flags

    @classmethod
    def of(cls, texts: Sequence[Sequence[Symbol]]) -> "ByteAutomaton":
        """Make the automaton of some texts, none of which is empty."""
        graph = _Graph(texts)
        # A state has more symbols than its failure link: take them by the number of symbols, and
        # within a symbol by the number of bytes.
        levels = np.array(graph.levels)
        order = levels.argsort(kind="stable")
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        keys = np.fromiter(graph.targets, np.int64, len(graph.targets))
        targets = np.fromiter(graph.targets.values(), np.int64, len(keys))
        keys = number[keys >> 8] << 8 | keys & 0xFF
        by_key = keys.argsort()
        keys, targets = keys[by_key], targets[by_key]
        targets[targets >= 0] = number[targets[targets >= 0]]
        ends = np.fromiter(graph.ends, np.int64, len(graph.ends))
        completes = np.isin(keys, number[ends >> 8] << 8 | ends & 0xFF)

        states, sources, used = len(order), keys >> 8, distinct(keys & 0xFF)
        class_of = np.zeros(256, np.uint8)
        class_of[used] = np.arange(1, len(used) + 1)
        classes = class_of[keys & 0xFF]
        failure = np.zeros(states, np.int64)
        next_state = np.zeros((states, len(used) + 1), np.int32)
        is_end = np.zeros(next_state.shape, np.bool_)
        parent, parent_class = np.zeros((2, states), np.int64)
        goes_on = targets >= 0
        parent[targets[goes_on]], parent_class[targets[goes_on]] = (
            sources[goes_on],
            classes[goes_on],
        )
        starts = np.flatnonzero(np.diff(levels[order], prepend=-1)).tolist()
        for start, end in pairwise([*starts, states]):
            up, of_level = parent[start:end], slice(*keys.searchsorted([start << 8, end << 8]))
            links = next_state[failure[up], parent_class[start:end]]
            failure[start:end] = np.where(up > 0, links, 0)
            next_state[start:end] = next_state[failure[start:end]]
            is_end[start:end] = is_end[failure[start:end]]
            at, byte, to = sources[of_level], classes[of_level], targets[of_level]
            next_state[at[to >= 0], byte[to >= 0]] = to[to >= 0]
            is_end[at, byte] |= completes[of_level]
        return cls(failure, keys, targets, completes, class_of, next_state, is_end)


class _Graph:
    """The prefixes of texts, with an edge for each byte.

    Attributes:
        targets: ``state << 8 | byte`` to the next state, or to ``NOWHERE``.
        ends: the keys of ``targets`` whose byte completes a text.
        levels: of each state, the number of symbols before it, and of bytes since.
    """

    def __init__(self, texts: Sequence[Sequence[Symbol]]) -> None:
        self.targets: dict[int, int] = {}
        self.ends: set[int] = set()
        self.levels = [0]
        after: dict[tuple[int, Symbol], int] = {}
        for text in texts:
            state = 0
            for symbol in text[:-1]:
                key = state, symbol
                if key not in after:
                    # Its level is above those of the bytes within the symbol: see ``_before_last``.
                    after[key] = new = self._state((self.levels[state] >> 8) + 1 << 8)
                    for encoding in symbol:
                        self.targets[self._before_last(state, encoding)] = new
                state = after[key]
            for encoding in text[-1]:
                key = self._before_last(state, encoding)
                self.targets.setdefault(key, NOWHERE)
                self.ends.add(key)

    def _state(self, level: int) -> int:
        self.levels.append(level)
        return len(self.levels) - 1

    def _before_last(self, state: int, encoding: bytes) -> int:
        """Take all bytes of an encoding but the last; return the key of the edge of the last."""
        for byte in encoding[:-1]:
            key = state << 8 | byte
            if key not in self.targets:
                self.targets[key] = self._state(self.levels[state] + 1)
            state = self.targets[key]
        return state << 8 | encoding[-1]


def completing_texts(
    texts: Sequence[Sequence[Symbol]], vocabulary: Vocabulary, check_memory: Callable[[int], None]
) -> tuple[Ints, Automaton | None]:
    """Ban each token that would complete a text, in any tokenization.

    A special token has no bytes, and leads to the empty prefix.

    Args:
        texts: the texts, each of one symbol or more.
        vocabulary: the bytes of each token.
        check_memory: called with the bytes of the automaton's tables, or fewer, before they are
            made.

    Returns:
        The tokens that hold a text, which are banned in every state; and the automaton that bans
        the tokens that complete what earlier tokens have begun, ``None`` if none can begin one.
    """
    trie, automaton = vocabulary.trie, ByteAutomaton.of(texts)
    state, holds_text = _from_root(automaton, trie)
    state, is_banned = state[trie.node_of], holds_text[trie.node_of]
    banned, tokens = np.flatnonzero(is_banned), np.flatnonzero(state)
    if not len(tokens):
        return banned, None
    states, edges = len(automaton.failure), len(tokens)
    edge_parts = [(np.zeros(edges, np.int64), tokens, state[tokens])]
    completed: dict[int, list[tuple[int, int]]] = {}
    for at, to, nodes, completes in _from_prefixes(automaton, trie):
        ends = at[completes], trie.first[nodes[completes]], trie.end[nodes[completes]]
        for state_before, first, end in zip(*(each.tolist() for each in ends), strict=True):
            completed.setdefault(state_before, []).append((first, end))
        goes_on = to >= 0
        first = trie.first[nodes[goes_on]]
        owner, place = members(first, trie.own_end[nodes[goes_on]] - first)
        edge_parts.append((at[goes_on][owner], trie.order[place], to[goes_on][owner]))
        edges += len(place)
        check_memory(table_bytes(states, edges, 0))
    set_of, sets = _token_sets(automaton.failure, completed)
    bounds = np.array([*chain.from_iterable(sets)], np.int64).reshape(-1, 2)
    sizes = bounds[:, 1] - bounds[:, 0]
    check_memory(table_bytes(states, edges, int(sizes.sum()) - len(banned)))
    in_set = np.repeat(np.arange(len(sets)), token_array(map(len, sets)))
    owner, place = members(bounds[:, 0], sizes)
    tokens = trie.order[place]
    others = ~is_banned[tokens]
    cells = np.sort(in_set[owner[others]] << 32 | tokens[others])
    lengths = np.bincount(cells >> 32, minlength=len(sets))
    adds = lengths[set_of] > 0
    builder = AutomatonBuilder()
    builder.token_sets(cells & TOKEN, lengths)
    builder.extend(
        np.where(adds, Edit.ADD.value, Edit.FREE.value),
        np.where(adds, set_of, 0),
        automaton.failure,
        is_failure_link=np.arange(states) > 0,
    )
    builder.edges(*map(np.concatenate, zip(*edge_parts, strict=True)))
    return banned, builder.build(check=False)


def _from_root(automaton: ByteAutomaton, trie: VocabularyTrie) -> tuple[Ints, Flags]:
    """Compute, for each node of the trie, the state after its bytes, and whether they hold a text.

    This is one pass over the trie, level by level.
    """
    classes = automaton.next_state.shape[1]
    next_state, is_end = automaton.next_state.ravel(), automaton.is_end.ravel()
    parent, byte_class = trie.keys >> 8, automaton.class_of[trie.keys & 0xFF]
    state, holds = np.zeros(len(trie.first), np.int64), np.zeros(len(trie.first), np.bool_)
    for start, end in pairwise(trie.level_ends):
        up = parent[start - 1 : end - 1]
        at = state[up] * classes + byte_class[start - 1 : end - 1]
        state[start:end] = next_state[at]
        holds[start:end] = is_end[at] | holds[up]
    return state, holds


def _from_prefixes(
    automaton: ByteAutomaton, trie: VocabularyTrie
) -> Iterator[tuple[Ints, Ints, Ints, Flags]]:
    """Go on from each state but the root along its own texts, as far as the bytes of a token lead.

    Yields:
        For 1, 2, ... bytes: the states, the next prefixes or ``NOWHERE``, the nodes of the trie,
        and whether the last byte completes a text.
    """
    states = len(automaton.failure)
    starts = automaton.edges.searchsorted(np.arange(states + 1) << 8)
    starts, counts = starts[:-1], np.diff(starts)
    at = to = np.arange(1, states)
    nodes = np.zeros(len(at), np.int64)
    while len(at):
        owner, edge = members(starts[to], counts[to])
        child, found = looked_up(trie.keys, nodes[owner] << 8 | automaton.edges[edge] & 0xFF)
        owner, edge, nodes = owner[found], edge[found], child[found] + 1
        at, to = at[owner], automaton.targets[edge]
        yield at, to, nodes, automaton.completes[edge]
        goes_on = to >= 0
        at, to, nodes = at[goes_on], to[goes_on], nodes[goes_on]


Places = tuple[tuple[int, int], ...]
"""Ranges in the ``order`` of a trie, ascending; no two overlap."""


def _token_sets(
    failure: Ints, completed: Mapping[int, Sequence[tuple[int, int]]]
) -> tuple[Ints, list[Places]]:
    """Collect the tokens that complete a text in each state, for it and for its failure links.

    Returns:
        The index of each state's set, and the sets. Many states share a set: it depends only on
        what is left of the texts.
    """
    sets: dict[Places, int] = {(): 0}
    of_state: list[Places] = [()]
    for state, link in enumerate(failure[1:].tolist(), start=1):
        places = of_state[link]
        if state in completed:
            places = _merged([*places, *completed[state]])
        of_state.append(places)
        sets.setdefault(places, len(sets))
    return np.array([sets[places] for places in of_state]), [*sets]


def _merged(ranges: Iterable[tuple[int, int]]) -> Places:
    """Leave out ranges within others. Two ranges of a trie overlap only so."""
    kept: list[tuple[int, int]] = []
    for first, end in sorted(ranges, key=lambda places: (places[0], -places[1])):
        if not kept or first >= kept[-1][1]:
            kept.append((first, end))
    return tuple(kept)
