"""Automata of texts: the texts' bytes, times the bytes of each token of a vocabulary.

A text has many tokenizations. These automata are exact for all of them, and for tokens that begin
before a text or end after it.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .automaton import Automaton, AutomatonBuilder, Ints
from .automaton.arrays import differ, distinct, looked_up, members, ranges, token_array
from .automaton.automaton import Edit, table_bytes
from .vocabulary import LAST, Vocabulary, VocabularyTrie

Symbol = tuple[bytes, ...]
"""One character of a text: its encodings, each of one byte or more, and none begins another. Two
symbols are equal, or have no encoding in common.
"""
Character = tuple[tuple[int, int], ...]
"""A range of characters: the first and the last value of each byte."""
Flags = npt.NDArray[np.bool_]

ENDED = 1 << 30


class ByteAutomaton(NamedTuple):
    """Aho and Corasick's automaton over bytes. A state is a proper prefix of a text.

    State 0 is the empty prefix. A state's failure link leads to the longest proper suffix that is
    a state, which has a lower number. With separators, a prefix begins with one of them.

    Attributes:
        start: the state in which a text may begin.
        failure: ``[states]``, the failure links.
        edges: ``[edges]``, ``state << 8 | byte``, by state.
        targets: ``[edges]``, the next prefix, or 0 if no text goes on.
        completes: ``[edges]``, whether the byte completes a text.
        class_of: ``[256]``, the class of each byte. Class 0 is that of the bytes in no text.
        after: ``[states, classes]``, the state after a byte, failure links followed; with the bit
            ``ENDED`` if the byte completes any text.
    """

    start: int
    failure: Ints
    edges: Ints
    targets: Ints
    completes: Flags
    class_of: npt.NDArray[np.uint8]
    after: npt.NDArray[np.int32]

    @classmethod
    def of(
        cls, texts: Sequence[Sequence[Symbol]], separators: Sequence[Character] = ()
    ) -> "ByteAutomaton":
        """Make the automaton of some texts, none of which is empty; see ``completing_texts``."""
        start, edges = _edges(texts, separators)
        used = sorted(set[int]().union(*edges))
        class_of = classes_of(used)
        number = class_of.tolist()
        failure = [0] * len(edges)
        after: list[array[int]] = []
        row = array("i", [0]) * (len(used) + 1)
        for state, following in enumerate(edges):
            if state:
                row = after[failure[state]][:]
            for byte, value in following.items():
                before = row[number[byte]]
                if value == ENDED:
                    row[number[byte]] = before | ENDED
                    continue
                row[number[byte]] = value | before & ENDED
                if state:
                    failure[value & ~ENDED] = before & ~ENDED
            after.append(row)
        sizes = [*map(len, edges)]
        values = token_array(chain.from_iterable(following.values() for following in edges))
        return cls(
            start,
            np.array(failure),
            np.repeat(np.arange(len(edges)) << 8, sizes) | token_array(chain.from_iterable(edges)),
            (values & ~ENDED).astype(np.int64),
            values >= ENDED,
            class_of,
            np.frombuffer(b"".join(after), np.int32).reshape(len(edges), -1),
        )


def classes_of(used: Sequence[int] | Ints) -> npt.NDArray[np.uint8]:
    """Give each of some bytes, which are distinct, a class: see ``ByteAutomaton``."""
    class_of = np.zeros(256, np.uint8)
    class_of[used] = np.arange(1, len(used) + 1)
    return class_of


def _edges(
    texts: Sequence[Sequence[Symbol]], separators: Sequence[Character]
) -> tuple[int, list[dict[int, int]]]:
    """Make the prefixes of texts, one symbol after the other, so that shorter ones come first.

    Returns:
        The state in which a text may begin; and for each state, by byte, the next prefix, with the
        bit ``ENDED`` if the byte completes a text.
    """
    edges: list[dict[int, int]] = [{}]

    def new_state() -> int:
        edges.append({})
        return len(edges) - 1

    def before_last(state: int, encoding: bytes) -> dict[int, int]:
        """Take all bytes of an encoding but the last."""
        for byte in encoding[:-1]:
            state = edges[state].get(byte) or edges[state].setdefault(byte, new_state())
        return edges[state]

    start = new_state() if separators else 0
    for *before, (first, last) in separators:
        state = 0
        for low, high in before:
            within = edges[state].get(low) or new_state()
            edges[state] |= dict.fromkeys(range(low, high + 1), within)
            state = within
        edges[state] |= dict.fromkeys(range(first, last + 1), start)
    after: dict[tuple[int, Symbol], int] = {}
    longer = [(start, text) for text in texts]
    for n in range(max(map(len, texts))):
        left, longer = longer, []
        for state, text in left:
            symbol, value = text[n], ENDED
            if n + 1 < len(text):
                if (state, symbol) not in after:
                    after[state, symbol] = new_state()
                value = after[state, symbol]
                longer.append((value, text))
            for encoding in symbol:
                following = before_last(state, encoding)
                following[encoding[-1]] = following.get(encoding[-1], 0) | value
    return start, edges


def completing_texts(
    texts: Sequence[Sequence[Symbol]],
    vocabulary: Vocabulary,
    check_cost: Callable[[int, int], None],
    separators: Sequence[Character] = (),
) -> tuple[Ints, Automaton | None]:
    """Ban each token that would complete a text, in any tokenization.

    A special token has no bytes. No text that begins before it is completed after it.

    Args:
        texts: the texts, each of one symbol or more.
        vocabulary: the bytes of each token.
        check_cost: called with the bytes of the automaton's tables and the tokens that a step may
            ban, or fewer, before they are made.
        separators: if there are any, a text counts only where one is before it and after it. The
            start of the output, the end of the output so far and a special token count as one. The
            first byte of several is not a range. No symbol is a separator in one of its encodings
            and none in another, and no text begins with one.

    Returns:
        The tokens that hold a text, which are banned in every state; and the automaton that bans
        the tokens that complete what earlier tokens have begun, ``None`` if none can begin one.
    """
    automaton, trie = ByteAutomaton.of(texts, separators), vocabulary.trie
    if not len(trie.order):
        return trie.order, None
    places, state, has_ended = _from_root(automaton, trie, for_good=not separators)
    tokens = trie.order[places]
    if not separators:
        banned = np.flatnonzero(has_ended.take(trie.node))
    else:
        _, first, end = _places(trie, np.flatnonzero(has_ended), separators)
        banned = distinct(ranges(first, end - first))
        special = np.flatnonzero(vocabulary.is_special)
        tokens = np.append(tokens, special)
        state = np.append(state, np.full_like(special, automaton.start))

    def check(memory: int, step: int) -> None:
        check_cost(memory + table_bytes(0, 0, len(banned)), step + len(banned))

    check(0, 0)
    return completing(automaton, vocabulary, banned, (tokens, state), check, separators)


def completing(
    automaton: ByteAutomaton,
    vocabulary: Vocabulary,
    banned: Ints,
    from_root: tuple[Ints, Ints],
    check_cost: Callable[[int, int], None],
    separators: Sequence[Character] = (),
) -> tuple[Ints, Automaton | None]:
    """Ban each token that would complete a text of an automaton.

    Args:
        automaton: the automaton over bytes.
        vocabulary: the bytes of each token.
        banned: the places in ``order`` of the tokens that hold a text, ascending.
        from_root: the tokens that lead from the root to other states, and these states.
        check_cost: see ``completing_texts``, as for what is returned.
        separators: see ``completing_texts``.
    """
    trie, is_banned = vocabulary.trie, np.zeros(vocabulary.size, np.bool_)
    is_banned[trie.order[banned]] = True
    everywhere = np.flatnonzero(is_banned)
    tokens, state = from_root
    if automaton.start == 0 and not len(tokens):
        return everywhere, None
    states, edges = len(automaton.failure), len(tokens)
    check_cost(table_bytes(states, edges, 0), 0)
    edge_parts = [(np.zeros(edges, np.int64), tokens, state)]
    ends: list[tuple[Ints, Ints]] = []
    for at, to, nodes, completes in _from_prefixes(automaton, trie):
        ends.append((at[completes], nodes[completes]))
        goes_on = to > 0
        first = trie.first[nodes[goes_on]]
        sizes = trie.own_end[nodes[goes_on]] - first
        edges += int(sizes.sum())
        check_cost(table_bytes(states, edges, 0), 0)
        owner, place = members(first, sizes)
        edge_parts.append((at[goes_on][owner], trie.order[place], to[goes_on][owner]))
    set_of, sets = _token_sets(automaton.failure, _completed(trie, ends, separators))
    # The places of the other tokens are counted without those of banned ones.
    bounds = np.array([*chain.from_iterable(sets)], np.int64).reshape(-1, 2).T
    first, end = bounds - banned.searchsorted(bounds)
    in_set = np.repeat(np.arange(len(sets)), token_array(map(len, sets)))
    lengths = np.bincount(in_set, end - first, len(sets)).astype(np.int64)
    check_cost(table_bytes(states, edges, int(lengths.sum())), int(lengths.max()))
    owner, other = members(first, end - first)
    place = other + (banned - np.arange(len(banned))).searchsorted(other, side="right")
    bits = vocabulary.size.bit_length()
    # Half as many bytes are sorted in half the time.
    dtype = np.uint32 if len(sets) << bits < 1 << 32 else np.int64
    cells = np.sort((in_set[owner] << bits | trie.order[place]).astype(dtype)).astype(np.int64)
    adds = lengths[set_of] > 0
    # An automaton begins in state 0: it changes places with the start.
    number = np.arange(states)
    number[[0, automaton.start]] = automaton.start, 0
    sources, keys, targets = map(np.concatenate, zip(*edge_parts, strict=True))
    builder = AutomatonBuilder()
    builder.token_sets(cells & (1 << bits) - 1, lengths)
    builder.extend(
        np.where(adds, Edit.ADD.value, Edit.FREE.value)[number],
        np.where(adds, set_of, 0)[number],
        number[automaton.failure][number],
        is_failure_link=number > 0,
    )
    builder.edges(number[sources], keys, number[targets])
    return everywhere, builder.build(check=False)


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
    data, is_last, ends = vocabulary.data, vocabulary.is_last, vocabulary.ends
    first, *others = text
    if not others:
        after[ends.searchsorted(vocabulary.places_of(first), side="right")] = 1
        return after
    at = vocabulary.places_of(first, LAST)
    after[ends.searchsorted(at[is_last[at]], side="right")] = 1
    at = vocabulary.places_of(first, others[0]) + 1
    for n, symbol in enumerate(others, start=2):
        at = at[data[at] == symbol]
        is_end = is_last[at] if n < len(text) else np.ones(len(at), np.bool_)
        # The longest beginning of the text counts: it comes last.
        after[ends.searchsorted(at[is_end], side="right")] = n
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

    With separators, a token counts if it ends at the node, or if a separator may follow: a token
    that ends within one counts, and bytes after which any character is a separator decide.

    Returns:
        The index in ``nodes``, the start and the end of each range.
    """
    owner = np.arange(len(nodes))
    if not separators:
        return owner, trie.first[nodes], trie.end[nodes]
    table, state = _separator_table(tuple(separators)), np.zeros_like(owner)
    parts = [(nodes[:0],) * 3]
    while len(nodes):
        parts.append((owner, trie.first[nodes], trie.own_end[nodes]))
        child_of, child = _children(trie, nodes)
        to = table[state[child_of], trie.byte[child - 1]]
        owner = owner[child_of]
        whole, within = to < 0, to > 0
        parts.append((owner[whole], trie.first[child[whole]], trie.end[child[whole]]))
        owner, nodes, state = owner[within], child[within], to[within]
    owner, first, end = map(np.concatenate, zip(*parts, strict=True))
    some = first < end
    return owner[some], first[some], end[some]


@cache
def _separator_table(separators: tuple[Character, ...]) -> Ints:
    """Make the states within a separator: by state and byte, the next one, -1 if it is found."""
    table = [[0] * 256]
    for character in separators:
        while character[-1] == (0x80, 0xBF):  # any last byte
            character = character[:-1]
        *before, (low, high) = character
        state = 0
        for byte, _ in before:
            if not table[state][byte]:
                table[state][byte] = len(table)
                table.append([0] * 256)
            state = table[state][byte]
        table[state][low : high + 1] = [-1] * (high + 1 - low)
    return np.array(table)


def _children(trie: VocabularyTrie, nodes: Ints) -> tuple[Ints, Ints]:
    """List the children of some nodes: the index in ``nodes``, and the child."""
    first, end = trie.keys.searchsorted([nodes << 8, nodes + 1 << 8])
    owner, key = members(first, end - first)
    return owner, key + 1


def _from_root(
    automaton: ByteAutomaton, trie: VocabularyTrie, *, for_good: bool
) -> tuple[Ints, Ints, Flags]:
    """Compute the state after the bytes of each token, and the nodes where a text has ended.

    This is one pass over the trie, level by level. With ``for_good``, a text that has ended above
    a node counts, too.

    Returns:
        The places in ``order`` of the tokens that lead to a state other than the root, these
        states, and ``[nodes]`` flags.
    """
    states, classes = automaton.after.shape
    # Where the next state's row begins. The second half of the rows is for texts that have ended.
    to, has_ended = automaton.after & ~ENDED, automaton.after // ENDED
    rows = np.empty((2, states, classes), np.int32)
    rows[:] = (to + has_ended * states) * classes
    if for_good:
        rows[1] = (to + states) * classes
    rows = rows.ravel()
    cells = automaton.class_of.astype(np.int32).take(trie.byte)
    row = np.zeros(len(trie.first), np.int32)
    for start, end in pairwise(trie.level_ends):
        cell = cells[start - 1 : end - 1]
        cell += row.take(trie.parent[start - 1 : end - 1], mode="clip")  # does not check the bounds
        rows.take(cell, out=row[start:end], mode="clip")
    of_place = row.take(trie.node)
    places = np.flatnonzero(of_place != 0)
    state = of_place[places].astype(np.int64) // classes % states
    return places[state > 0], state[state > 0], row >= states * classes


def _from_prefixes(
    automaton: ByteAutomaton, trie: VocabularyTrie
) -> Iterator[tuple[Ints, Ints, Ints, Flags]]:
    """Go on from each state but the root along its own texts, as far as the bytes of a token lead.

    Yields:
        For 1, 2, ... bytes: the states, the next prefixes or 0, the nodes of the trie,
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
        goes_on = to > 0
        at, to, nodes = at[goes_on], to[goes_on], nodes[goes_on]


def _completed(
    trie: VocabularyTrie, ends: Sequence[tuple[Ints, Ints]], separators: Sequence[Character]
) -> dict[int, list[tuple[int, int]]]:
    """Group the tokens that complete a text by state.

    Args:
        trie: the vocabulary.
        ends: states, and nodes where texts end that have begun there.
        separators: see ``_places``.
    """
    at, nodes = map(np.concatenate, zip(*ends, strict=True))
    owner, first, end = _places(trie, nodes, separators)
    owner = at[owner]
    # Neighbours become one range.
    is_first, is_last = differ(owner), np.ones(len(owner), np.bool_)
    is_first[1:] |= first[1:] != end[:-1]
    is_last[:-1] = is_first[1:]
    completed: dict[int, list[tuple[int, int]]] = {}
    parts = (each.tolist() for each in (owner[is_first], first[is_first], end[is_last]))
    for state, start, stop in zip(*parts, strict=True):
        completed.setdefault(state, []).append((start, stop))
    return completed


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
