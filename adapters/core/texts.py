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
from .automaton.arrays import TOKEN, differ, distinct, looked_up, members, token_array
from .automaton.automaton import Edit, table_bytes
from .vocabulary import Vocabulary, VocabularyTrie

Symbol = tuple[bytes, ...]
"""One character of a text: its encodings, each of one byte or more, and none begins another. Two
symbols are equal, or have no encoding in common.
"""
Character = tuple[tuple[int, int], ...]
"""A range of characters: the first and the last value of each byte."""
Flags = npt.NDArray[np.bool_]

NOWHERE = -1


class ByteAutomaton(NamedTuple):
    """Aho and Corasick's automaton over bytes. A state is a proper prefix of a text.

    State 0 is the empty prefix. A state's failure link leads to the longest proper suffix that is
    a state, which has a lower number. With separators, a prefix begins with one of them.

    Attributes:
        start: the state in which a text may begin.
        failure: ``[states]``, the failure links.
        edges: ``[edges]``, ascending, ``state << 8 | byte``.
        targets: ``[edges]``, the next prefix, or ``NOWHERE`` if no text goes on.
        completes: ``[edges]``, whether the byte completes a text.
        class_of: ``[256]``, the class of each byte. Class 0 is that of the bytes in no text.
        next_state: ``[states, classes]``, the state after a byte, failure links followed.
        is_end: ``[states, classes]``, whether the byte completes any text.
    """

    start: int
    failure: Ints
    edges: Ints
    targets: Ints
    completes: Flags
    class_of: npt.NDArray[np.uint8]
    next_state: npt.NDArray[np.int32]
    is_end: Flags

    @classmethod
    def of(
        cls, texts: Sequence[Sequence[Symbol]], separators: Sequence[Character] = ()
    ) -> "ByteAutomaton":
        """Make the automaton of some texts, none of which is empty; see ``completing_texts``."""
        graph = _Graph(texts, separators)
        keys = np.fromiter(graph.targets, np.int64, len(graph.targets))
        targets = np.fromiter(graph.targets.values(), np.int64, len(keys))
        ends = np.fromiter(graph.ends, np.int64, len(graph.ends))
        # A state has more symbols than its failure link: take them by the number of symbols, and
        # within a symbol by the number of bytes.
        return cls.of_edges(keys, targets, ends, np.array(graph.levels), graph.start)

    @classmethod
    def of_edges(
        cls, keys: Ints, targets: Ints, ends: Ints, levels: Ints, start: int = 0
    ) -> "ByteAutomaton":
        """Find the failure links of prefixes.

        Args:
            keys: ``[edges]``, ``state << 8 | byte``, in any order.
            targets: ``[edges]``, the next prefix, or ``NOWHERE`` if no text goes on.
            ends: the keys whose byte completes a text.
            levels: ``[states]``; a state's failure link has a lower level.
            start: the state in which a text may begin.
        """
        order = levels.argsort(kind="stable")
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        keys = number[keys >> 8] << 8 | keys & 0xFF
        by_key = keys.argsort()
        keys, targets = keys[by_key], targets[by_key]
        targets[targets >= 0] = number[targets[targets >= 0]]
        completes = np.zeros(len(keys), np.bool_)
        completes[keys.searchsorted(number[ends >> 8] << 8 | ends & 0xFF)] = True

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
        for first, end in pairwise([*starts, states]):
            up, of_level = parent[first:end], slice(*keys.searchsorted([first << 8, end << 8]))
            links = next_state[failure[up], parent_class[first:end]]
            failure[first:end] = np.where(up > 0, links, 0)
            next_state[first:end] = next_state[failure[first:end]]
            is_end[first:end] = is_end[failure[first:end]]
            at, byte, to = sources[of_level], classes[of_level], targets[of_level]
            next_state[at[to >= 0], byte[to >= 0]] = to[to >= 0]
            is_end[at, byte] |= completes[of_level]
        start = int(number[start])
        return cls(start, failure, keys, targets, completes, class_of, next_state, is_end)


class _Graph:
    """The prefixes of texts, with an edge for each byte.

    Attributes:
        targets: ``state << 8 | byte`` to the next state, or to ``NOWHERE``.
        ends: the keys of ``targets`` whose byte completes a text.
        levels: of each state, the number of symbols before it, and of bytes since.
        start: the state in which a text may begin.
    """

    def __init__(self, texts: Sequence[Sequence[Symbol]], separators: Sequence[Character]) -> None:
        self.targets: dict[int, int] = {}
        self.ends: set[int] = set()
        self.levels = [0]
        self.start = self._state(1 << 8) if separators else 0
        for *before, (first, last) in separators:
            state = 0
            for low, high in before:
                within = self.targets.get(state << 8 | low) or self._state(self.levels[state] + 1)
                self.targets |= {state << 8 | byte: within for byte in range(low, high + 1)}
                state = within
            self.targets |= {state << 8 | byte: self.start for byte in range(first, last + 1)}
        after: dict[tuple[int, Symbol], int] = {}
        for text in texts:
            state = self.start
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
    texts: Sequence[Sequence[Symbol]],
    vocabulary: Vocabulary,
    check_memory: Callable[[int], None],
    separators: Sequence[Character] = (),
) -> tuple[Ints, Automaton | None]:
    """Ban each token that would complete a text, in any tokenization.

    A special token has no bytes. No text that begins before it is completed after it.

    Args:
        texts: the texts, each of one symbol or more.
        vocabulary: the bytes of each token.
        check_memory: called with the bytes of the automaton's tables, or fewer, before they are
            made.
        separators: if there are any, a text counts only where one is before it and after it. The
            start of the output, the end of the output so far and a special token count as one. The
            first byte of several is not a range. No symbol is a separator in one of its encodings
            and none in another, and no text begins with one.

    Returns:
        The tokens that hold a text, which are banned in every state; and the automaton that bans
        the tokens that complete what earlier tokens have begun, ``None`` if none can begin one.
    """
    automaton = ByteAutomaton.of(texts, separators)
    return completing(automaton, vocabulary, check_memory, separators)


def completing(
    automaton: ByteAutomaton,
    vocabulary: Vocabulary,
    check_memory: Callable[[int], None],
    separators: Sequence[Character] = (),
) -> tuple[Ints, Automaton | None]:
    """Ban each token that would complete a text of an automaton: see ``completing_texts``."""
    trie = vocabulary.trie
    if not len(trie.order):
        return trie.order, None
    state, nodes = _from_root(automaton, trie, outermost=not separators)
    is_banned = np.zeros(vocabulary.size, np.bool_)
    _, first, end = _places(trie, nodes, separators)
    begun, ended = (np.bincount(each, minlength=len(trie.order) + 1) for each in (first, end))
    is_banned[trie.order] = np.cumsum(begun - ended)[:-1] > 0  # ranges may be within others
    banned, tokens = np.flatnonzero(is_banned), np.flatnonzero(state)
    if automaton.start == 0 and not len(tokens):
        return banned, None
    states, edges = len(automaton.failure), len(tokens)
    edge_parts = [(np.zeros(edges, np.int64), tokens, state[tokens])]
    if automaton.start > 0:
        special = np.flatnonzero(vocabulary.is_special)
        edge_parts.append((np.zeros_like(special), special, np.full_like(special, automaton.start)))
        edges += len(special)
    completed: dict[int, list[tuple[int, int]]] = {}
    for at, to, nodes, completes in _from_prefixes(automaton, trie):
        owner, first, end = _places(trie, nodes[completes], separators)
        owner = at[completes][owner]
        # Neighbours become one range.
        is_first, is_last = differ(owner), np.ones(len(owner), np.bool_)
        is_first[1:] |= first[1:] != end[:-1]
        is_last[:-1] = is_first[1:]
        parts = (each.tolist() for each in (owner[is_first], first[is_first], end[is_last]))
        for state_before, first, end in zip(*parts, strict=True):
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
    # An automaton begins in state 0: it changes places with the start.
    number = np.arange(states)
    number[[0, automaton.start]] = automaton.start, 0
    sources, keys, targets = map(np.concatenate, zip(*edge_parts, strict=True))
    builder = AutomatonBuilder()
    builder.token_sets(cells & TOKEN, lengths)
    builder.extend(
        np.where(adds, Edit.ADD.value, Edit.FREE.value)[number],
        np.where(adds, set_of, 0)[number],
        number[automaton.failure][number],
        is_failure_link=number > 0,
    )
    builder.edges(number[sources], keys, number[targets])
    return banned, builder.build(check=False)


def detecting(text: bytes, vocabulary: Vocabulary, check_size: Callable[[int], None]) -> Automaton:
    """Look for a text, in any tokenization.

    The states are the numbers of bytes of the text that have been read. The last state is reached
    with the token that completes the text, whatever else the token holds.

    Args:
        text: the text, which is not empty.
        vocabulary: the bytes of each token.
        check_size: called with the number of edges, in parts, before the automaton is made.
    """
    n, trie = len(text), vocabulary.trie
    after = _read_by_tokens(text, vocabulary)
    tokens = np.flatnonzero(after)
    check_size(n + 1 + len(tokens))
    parts = [(np.zeros(len(tokens), np.int64), tokens, after[tokens])]
    # From each other state, along the text.
    symbols = np.frombuffer(text, np.uint8).astype(np.int64)
    at = to = np.arange(1, n)
    nodes = np.zeros(n - 1, np.int64)
    while len(at):
        child, found = looked_up(trie.keys, nodes << 8 | symbols[to])
        at, to, nodes = at[found], to[found] + 1, child[found] + 1
        first = trie.first[nodes]
        end = np.where(to == n, trie.end[nodes], trie.own_end[nodes])
        check_size(int((end - first).sum()))
        owner, place = members(first, end - first)
        parts.append((at[owner], trie.order[place], to[owner]))
        goes_on = to < n
        at, to, nodes = at[goes_on], to[goes_on], nodes[goes_on]
    states = np.arange(n + 1)
    builder, free = AutomatonBuilder(), np.zeros(n + 1, np.int64)
    is_link = (states > 0) & (states < n)
    links = np.append(_failure_links(text), n)
    builder.extend(free, free, links, is_failure_link=is_link)
    builder.edges(*map(np.concatenate, zip(*parts, strict=True)))
    return builder.build(check=False)


def _read_by_tokens(text: bytes, vocabulary: Vocabulary) -> Ints:
    """Compute how many bytes of a text each token ends with; all of them if it holds the text."""
    after = np.zeros(vocabulary.size, np.int64)
    data, is_last = vocabulary.data, vocabulary.is_last
    at = np.flatnonzero(data[: len(is_last)] == text[0])
    for n, symbol in enumerate(text, start=1):
        at = at[data[at] == symbol]
        is_end = is_last[at] if n < len(text) else np.ones(len(at), np.bool_)
        # The longest beginning of the text counts: it comes last.
        after[vocabulary.ends.searchsorted(at[is_end], side="right")] = n
        at = at[~is_end] + 1
    return after


def _failure_links(text: bytes) -> Ints:
    """Compute the length of the longest text that begins and ends each proper prefix."""
    links = [0, 0]
    for symbol in text[1:-1]:
        link = links[-1]
        while link and text[link] != symbol:
            link = links[link]
        links.append(link + (text[link] == symbol))
    return np.array(links[: len(text)])


def _places(
    trie: VocabularyTrie, nodes: Ints, separators: Sequence[Character]
) -> tuple[Ints, Ints, Ints]:
    """List the tokens below nodes where a text ends: ranges in ``order``, none of which is empty.

    With separators, a token counts if it ends at the node, or if a separator may follow: its first
    two bytes decide, and a token that ends within it counts.

    Returns:
        The index in ``nodes``, the start and the end of each range.
    """
    every = np.arange(len(nodes))
    found = [(every, trie.first[nodes], trie.end[nodes])]
    if separators:
        found = [(every, trie.first[nodes], trie.own_end[nodes])]
    for (low, high), *more in separators:
        if not more:
            found.append((every, _place(trie, nodes, low), _place(trie, nodes, high + 1)))
            continue
        child, has_child = looked_up(trie.keys, nodes << 8 | low)
        owner, child = every[has_child], child[has_child] + 1
        low, high = more[0]
        found.append((owner, trie.first[child], trie.own_end[child]))
        found.append((owner, _place(trie, child, low), _place(trie, child, high + 1)))
    owner, first, end = map(np.concatenate, zip(*found, strict=True))
    some = first < end
    return owner[some], first[some], end[some]


def _place(trie: VocabularyTrie, nodes: Ints, byte: int) -> Ints:
    """Find the place of the first token below each node that goes on with ``byte`` or higher."""
    keys = nodes << 8 | byte
    child = trie.keys.searchsorted(keys)
    is_below = trie.keys.take(child, mode="clip") >> 8 == nodes
    is_below &= child < len(trie.keys)
    return np.where(is_below, trie.first.take(child + 1, mode="clip"), trie.end[nodes])


def _from_root(
    automaton: ByteAutomaton, trie: VocabularyTrie, *, outermost: bool
) -> tuple[Ints, Ints]:
    """Compute the state after the bytes of each token, and the nodes of the trie where a text ends.

    This is one pass over the trie, level by level. With ``outermost``, nodes below a node where a
    text ends may be left out.
    """
    classes = automaton.next_state.shape[1]
    rows = automaton.next_state.ravel() * np.int64(classes)  # where the next state's row begins
    parent = trie.keys >> 8
    cells = automaton.class_of.astype(np.int64).take(trie.keys & 0xFF)
    row = np.zeros(len(trie.first), np.int64)
    for start, end in pairwise(trie.level_ends):
        cell = cells[start - 1 : end - 1]
        cell += row.take(parent[start - 1 : end - 1], mode="clip")  # does not check the bounds
        rows.take(cell, out=row[start:end], mode="clip")
    is_end = np.append(False, automaton.is_end.ravel().take(cells))
    ends = np.flatnonzero(is_end)
    if outermost:
        ends = ends[~is_end[parent[ends - 1]]]
    return row.take(trie.node_of) // classes, ends


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
