"""Automata of texts: an automaton over bytes, times the bytes of each token of a vocabulary.

A text has many tokenizations. These automata are exact for all of them, and for tokens that begin
before a text or end after it.

For example, two texts and five tokens: ``aba`` and ``ac`` are banned, and the tokens are ``0: a``,
``1: ab``, ``2: ba``, ``3: c`` and ``4: cac``. The automaton over bytes has a state for each proper
prefix of a text: 0 for the empty one, 1 for ``a`` and 2 for ``ab``.

*From the root* (``read_from_root``), token 0 leads to state 1, and so does token 2: its ``b``
begins no text. Token 1 leads to state 2. Token 4 holds a text, so it is banned everywhere.

*From each other state* (``read_from_states``), tokens are read along the state's own texts. From
state 1, the ``b`` of token 2 goes on, and its ``a`` completes ``aba``; the ``c`` of token 3
completes ``ac``, and so does that of token 4. From state 2, token 0 completes ``aba``. What else
may begin in the middle of a state is read from its failure link, which is the root for both.

So the automaton over tokens has three states. It needs edges from state 0 alone: by tokens 0 and 2
to state 1, by token 1 to state 2. State 1 bans the tokens 2 and 3, and state 2 the token 0::

    everywhere, automaton = completing_texts(
        [[(b"a",), (b"b",), (b"a",)], [(b"a",), (b"c",)]],
        Vocabulary.of_tokens([b"a", b"ab", b"ba", b"c", b"cac"]),
        room=1 << 20,
    )
    everywhere.tolist()  # [4]
    automaton.keys.tolist(), automaton.targets.tolist()  # [0, 1, 2], [1, 2, 1]
    automaton.set_tokens.tolist(), automaton.set_ends.tolist()  # [2, 3, 0], [0, 2, 3]
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....spec import SpecError
from ..automaton import Automaton, AutomatonBuilder, Edit, Ints
from ..automaton.arrays import TOKEN, members, token_array
from ..automaton.automaton import table_bytes
from ..automaton.tries import Trie
from ..loops import loop
from .byte_automaton import (
    ENDED,
    FOUND,
    ByteAutomaton,
    Character,
    Symbol,
    Table,
    separator_table,
)
from .vocabulary import Vocabulary

MOST = 1 << 16
"""The most edges: 2.7 MB of tables. To make so many takes 10 ms."""
ROOM = 1 << 13
"""The edges and the ranges of tokens that there is room for at first."""


class FromRoot(NamedTuple):
    """What each token does at the root.

    Attributes:
        states: ``[tokens]``, the state after each token in the trie's ``order``.
        holds: ``[tokens]``, whether it holds a text, with the separators around it.
        others: ``[tokens]``, the ids of the tokens that hold none, in this order.
        before: ``[tokens + 1]``, the number of these before each token.
    """

    states: Table
    holds: npt.NDArray[np.bool_]
    others: Table
    before: Table


@loop
def read_from_root(after: Any, separator: Any, trie: Any) -> Any:
    """Read all tokens from the root; see ``FromRoot`` and ``separator_table``."""
    symbol, parent_of, _, _, _, node_of, order = trie
    nodes, tokens, once_ended = len(symbol), len(order), min(FOUND + 1, len(separator) - 1)
    state_at, tail_at = np.empty(nodes, np.int32), np.empty(nodes, np.uint8)
    state_at[0] = tail_at[0] = 0
    for node in range(1, nodes):
        parent, byte, tail = parent_of[node], symbol[node], 0
        to = after[state_at[parent], byte]
        if tail_at[parent]:
            tail = separator[tail_at[parent], byte]
        if to & ENDED and tail != FOUND:
            tail = once_ended
        state_at[node], tail_at[node] = to & ~ENDED, tail
    states, holds = np.zeros(tokens, np.int32), np.zeros(tokens, np.bool_)
    others, before = np.zeros(tokens, np.int32), np.zeros(tokens + 1, np.int32)
    count = 0
    for i in range(tokens):
        states[i], holds[i] = state_at[node_of[i]], tail_at[node_of[i]] > 0
        others[count] = order[i]
        count += not holds[i]
        before[i + 1] = count
    return states, holds, others, before


@loop
def read_from_states(own: Any, separator: Any, trie: Any, edges: Any, completed: Any) -> Any:
    """Read tokens from each state but the root, along its own texts.

    Args:
        own: see ``ByteAutomaton``.
        separator: see ``separator_table``.
        trie: a ``Trie`` as a tuple. (numba's cache would name the class, and fail once it moves.)
        edges: ``[room, 3]``, the state, the token, and the state after it.
        completed: ``[room, 3]``, the state, and the first and the end of a range in ``order``: the
            tokens that complete a text. No two ranges of a state overlap or meet.

    Returns:
        The number of edges and of ranges. What there is no room for is counted, too, up to
        ``MOST``.
    """
    symbol, parent_of, _, end_of, first_of, _, order = trie
    nodes, once_ended = len(symbol), min(FOUND + 1, len(separator) - 1)
    state_at, tail_at = np.empty(nodes, np.int32), np.empty(nodes, np.uint8)
    edge_count = range_count = tail_at[0] = 0
    for state in range(1, len(own)):
        state_at[0], stop, node = state, -1, 1
        while node < nodes:
            parent, byte, to, tail = parent_of[node], symbol[node], 0, 0
            if state_at[parent]:
                to = own[state_at[parent], byte]
            if tail_at[parent]:
                tail = separator[tail_at[parent], byte]
            if to & ENDED and tail != FOUND:
                tail = once_ended
            to &= ~ENDED
            state_at[node], tail_at[node] = to, tail
            below = node + 1 if to or tail > FOUND else end_of[node]
            first, end = first_of[node], first_of[below]
            if to:
                for i in range(first, end):
                    if edge_count < len(edges):
                        edge = edges[edge_count]
                        edge[0], edge[1], edge[2] = state, order[i], to
                    edge_count += 1
                if edge_count > MOST:
                    return edge_count, range_count
            if tail and first < end:
                is_new = first != stop  # else the range before goes on
                range_count += is_new
                stop = end
                if range_count <= len(completed):
                    part = completed[range_count - 1]
                    if is_new:
                        part[0], part[1] = state, first
                    part[2] = end
            node = below
    return edge_count, range_count


def _from_states(automaton: ByteAutomaton, trie: Trie, separator: Table) -> tuple[Ints, Ints]:
    """Return the edges and the ranges of ``read_from_states``.

    Raises:
        SpecError: if there are more than ``MOST`` edges.
    """
    room = ROOM
    while True:
        made = np.empty((2, room, 3), np.int64)
        edges, ranges = read_from_states(automaton.own, separator, tuple(trie), *made)
        if edges > MOST:
            what = f"Expected a rule about text with at most {MOST} edges in its tables, with this"
            raise SpecError(f"{what} vocabulary; this one has more")
        if max(edges, ranges) <= room:
            return made[0, :edges], made[1, :ranges]
        room = max(edges, ranges)


def completing_texts(
    texts: Sequence[Sequence[Symbol]],
    vocabulary: Vocabulary,
    room: int,
    separators: Sequence[Character] = (),
    ignored: Sequence[Character] = (),
) -> tuple[Ints, Automaton | None]:
    """Ban each token that would complete a text, in any tokenization.

    A special token has no bytes. No text that begins before it is completed after it.

    Args:
        texts: the texts, each of one symbol or more.
        vocabulary: the bytes of each token.
        room: how many bytes the tables may take, with what is banned everywhere.
        separators: if there are any, a text counts only where one is before it and after it. The
            start of the output, the end of the output so far and a special token count as one. The
            first byte of several is not a range. No symbol is a separator in one of its encodings
            and none in another, and no text begins with one. A token that ends within a separator
            counts as if it had it, and bytes after which any character is one decide.
        ignored: characters that are left out of the output, with separators on either side of a
            text, too. They are in no text, and their first bytes are in no separator.

    Returns:
        The tokens that hold a text, which are banned in every state; and the automaton that bans
        the tokens that complete what earlier tokens have begun, ``None`` if none can begin one.

    Raises:
        SpecError: before larger tables are made.
    """
    automaton = ByteAutomaton.of(texts, separators, ignored)
    return completing(automaton, vocabulary, room, separator_table(separators, ignored))


def completing(
    automaton: ByteAutomaton,
    vocabulary: Vocabulary,
    room: int,
    separator: Table,
    counts_everywhere: bool = True,
) -> tuple[Ints, Automaton | None]:
    """Ban each token that would complete a text of an automaton; see ``completing_texts``."""
    trie, states, start = vocabulary.trie, len(automaton.own), automaton.start
    root = FromRoot(*read_from_root(automaton.after, separator, tuple(trie)))
    banned = int(root.holds.sum()) if counts_everywhere else 0
    _check_memory(table_bytes(0, 0, banned), room)
    is_banned = np.zeros(vocabulary.size, np.bool_)
    is_banned[trie.order[root.holds]] = True
    everywhere = np.flatnonzero(is_banned)
    begins = root.states > 0
    tokens, targets = trie.order[begins], root.states[begins]
    if start:
        special = np.flatnonzero(vocabulary.is_special)
        tokens, targets = np.append(tokens, special), np.append(targets, special * 0 + start)
    elif not len(tokens):
        return everywhere, None
    _check_memory(table_bytes(states, len(tokens), banned), room)
    edges, completed = _from_states(automaton, trie, separator)
    _check_memory(table_bytes(states, len(tokens) + len(edges), banned), room)
    set_of, sets = _token_sets(automaton.failure, completed)
    # What is banned everywhere is in no set.
    first, end = root.before[np.array([*chain(*sets)], np.int64).reshape(-1, 2).T]
    in_set = np.repeat(np.arange(len(sets)), token_array(map(len, sets)))
    lengths = np.bincount(in_set, end - first, len(sets)).astype(np.int64)
    memory = table_bytes(states, len(tokens) + len(edges), banned + int(lengths.sum()))
    _check_memory(memory, room)
    owner, which = members(first, end - first)
    members_of_sets = np.sort(in_set[owner] << 32 | root.others[which])
    adds = lengths[set_of] > 0
    # An automaton begins in state 0: it changes places with the start.
    number = np.arange(states)
    number[[0, start]] = start, 0
    builder = AutomatonBuilder()
    builder.token_sets(members_of_sets & TOKEN, lengths)
    builder.extend(
        np.where(adds, Edit.ADD.value, Edit.FREE.value)[number],
        np.where(adds, set_of, 0)[number],
        number[automaton.failure][number],
        is_failure_link=number > 0,
    )
    builder.edges(np.full(len(tokens), start), tokens, number[targets])
    builder.edges(number[edges[:, 0]], edges[:, 1], number[edges[:, 2]])
    return everywhere, builder.build(check=False)


def _check_memory(memory: int, room: int) -> None:
    """Refuse more bytes of tables than a rule about text may have.

    They bound the logits that it changes in a step, too.
    """
    if memory > room:
        raise SpecError(
            f"Expected a spec that costs at most {room} bytes of memory with this vocabulary; this "
            f"one costs {memory} or more"
        )


Ranges = tuple[tuple[int, int], ...]
"""Ranges in the ``order`` of a trie, ascending; no two overlap or meet."""


def _token_sets(failure: Table, completed: Ints) -> tuple[Ints, list[Ranges]]:
    """Collect the tokens that complete a text in each state, for it and for its failure links.

    Returns:
        The index of each state's set, and the sets. Many states share a set: it depends only on
        what is left of the texts.
    """
    own: dict[int, list[tuple[int, int]]] = {}
    for state, first, end in completed.tolist():
        own.setdefault(state, []).append((first, end))
    sets: dict[Ranges, int] = {(): 0}
    of_state: list[Ranges] = [()]
    for state, link in enumerate(failure[1:].tolist(), start=1):
        ranges = of_state[link]
        if state in own:
            ranges = _union(sorted((*ranges, *own[state])))
        of_state.append(ranges)
        sets.setdefault(ranges, len(sets))
    return np.array([sets[ranges] for ranges in of_state]), [*sets]


def _union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Join ranges that overlap or meet."""
    joined: list[tuple[int, int]] = []
    for first, end in ranges:
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((first, end))
    return tuple(joined)


def detecting(texts: Sequence[bytes], vocabulary: Vocabulary, room: int) -> Automaton:
    """Look for texts, in any tokenization.

    The states are the beginnings of the texts. The last state is reached with the token that
    completes the first text, whatever else the token holds.

    Args:
        texts: the texts, at least one. None is empty.
        vocabulary: the bytes of each token.
        room: how many bytes the tables may take.

    Raises:
        SpecError: beyond the room.
    """
    # A text that holds another is never the first. Of those left, none is completed within the
    # beginning of another, whose edges would hide it.
    left = [text for text in dict.fromkeys(texts) if sum(each in text for each in {*texts}) == 1]
    automaton = ByteAutomaton.of([[(bytes((byte,)),) for byte in text] for text in left])
    n, trie, separator = len(automaton.own), vocabulary.trie, separator_table(())
    root = FromRoot(*read_from_root(automaton.after, separator, tuple(trie)))
    targets = np.where(root.holds, n, root.states)
    begins = targets > 0
    edges, completed = _from_states(automaton, trie, separator)
    sources, first, end = completed.T
    size = int(np.count_nonzero(begins)) + len(edges) + int((end - first).sum())
    _check_memory(table_bytes(n + 1, size, 0), room)
    owner, which = members(first, end - first)
    states = np.arange(n + 1)
    builder, free = AutomatonBuilder(), np.zeros(n + 1, np.int64)
    is_link = (states > 0) & (states < n)
    builder.extend(free, free, np.append(automaton.failure, n), is_failure_link=is_link)
    builder.edges(np.zeros(int(begins.sum()), np.int64), trie.order[begins], targets[begins])
    builder.edges(*edges.T)
    builder.edges(sources[owner], trie.order[which], np.full(len(owner), n))
    return builder.build(check=False)
