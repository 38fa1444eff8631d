"""Tries of sequences, and automata that follow many sequences of tokens.

For example, the sequences ``(1, 2)`` and ``(2, 1, 3)`` have six nodes: 0 is the root, 1 is ``(1,)``
and 2 is ``(1, 2)``, 3 is ``(2,)``, 4 is ``(2, 1)`` and 5 is ``(2, 1, 3)``. The failure link of node
2 leads to node 3, because ``(1, 2)`` ends with ``(2,)``; that of 4 leads to 1; those of the others
lead to the root.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..loops import loop
from .arrays import TOKEN, Ints, distinct, numbered, token_array
from .automaton import BAN_BIAS, Automaton, Edit
from .builder import AutomatonBuilder

Column = npt.NDArray[np.int32]
Values = npt.NDArray[np.float64]


class Trie(NamedTuple):
    """A trie of sequences of token ids, or of the bytes of all tokens.

    Nodes are numbered as a walk meets them: a node, then all below its first child, and so on. Node
    0 is the root. So one loop over the nodes reads all sequences, and ``node = end[node]`` leaves
    out what is below a node. The sequences below a node are neighbours in ``order``.

    Attributes:
        symbol: ``[nodes]``, the last token or byte of each node; 0 for the root.
        parent: ``[nodes]``, the node above each node; 0 for the root.
        depth: ``[nodes]``, the number of symbols that lead to each node.
        end: ``[nodes]``, the first node after those below each node.
        first: ``[nodes + 1]``, the index in ``order`` of the first sequence at or below each node.
            The sequences at a node end where those of the next node begin.
        node: ``[sequences]``, the node of each sequence in ``order``.
        order: ``[sequences]``, their indices in ascending order; empty ones are left out.
    """

    symbol: Column
    parent: Column
    depth: Column
    end: Column
    first: Column
    node: Column
    order: Column

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> "Trie":
        """Make the trie of some sequences."""
        key: Any = sequences.__getitem__
        order = sorted(filter(key, range(len(sequences))), key=key)
        ordered = [sequences[i] for i in order]
        ends = token_array(map(len, ordered)).cumsum(dtype=np.int32)
        symbols = token_array(chain.from_iterable(ordered))
        path = np.zeros(1 + max(map(len, ordered), default=0), np.int32)
        made: Any = (*lay_out(symbols.copy(), ends, path), np.array(order, np.int32))
        return cls(*made)

    @property
    def keys(self) -> Ints:
        """``[nodes]``, ``parent << 32 | token``; for the root, which no token leads to, -1."""
        keys = self.parent.astype(np.int64) << 32 | self.symbol
        keys[0] = -1
        return keys

    def add_edges(self, builder: AutomatonBuilder) -> None:
        """Add an edge from each parent to each child; the nodes are the first states."""
        parents = self.parent[1:].astype(np.int64)
        builder.edges(parents, self.symbol[1:], np.arange(1, len(self.parent)))


@loop
def lay_out(symbols: Any, ends: Any, path: Any) -> Any:
    """Lay out the nodes of sorted sequences, which lie end to end in ``symbols``; see ``Trie``.

    ``path`` is room for the nodes of one sequence.
    """
    node = np.zeros(len(ends), np.int32)
    symbol, parent, depth, end, first = np.zeros((5, len(symbols) + 2), np.int32)
    nodes, start, start_before, length_before = 1, 0, 0, 0
    for i in range(len(ends)):
        length, shared = ends[i] - start, 0
        while shared < min(length, length_before):
            if symbols[start + shared] != symbols[start_before + shared]:
                break
            shared += 1
        for left in path[shared + 1 : length_before + 1]:
            end[left] = nodes
        for at in range(shared, length):
            symbol[nodes], parent[nodes], depth[nodes] = symbols[start + at], path[at], at + 1
            first[nodes], path[at + 1] = i, nodes
            nodes += 1
        node[i], length_before = path[length], length
        start_before, start = start, ends[i]
    for left in path[: length_before + 1]:
        end[left] = nodes
    first[nodes] = len(ends)
    kept = symbol[:nodes].copy(), parent[:nodes].copy(), depth[:nodes].copy(), end[:nodes].copy()
    return *kept, first[: nodes + 1].copy(), node


@loop
def find_failures(keys: Any, by_key: Any, by_depth: Any) -> Any:
    """Compute the failure link of each node: the longest proper suffix of it that is a node.

    Args:
        keys: ``[nodes]``; see ``Trie``.
        by_key: the nodes, with ascending keys.
        by_depth: the nodes, the root first.
    """
    failure, ordered = np.zeros(len(keys), np.int64), keys[by_key]
    for node in by_depth:
        link, token = keys[node] >> 32, keys[node] & TOKEN
        while link > 0 and failure[node] == 0:
            link = failure[link]
            at = np.searchsorted(ordered, link << 32 | token)
            if at < len(keys) and ordered[at] == link << 32 | token:
                failure[node] = by_key[at]
    return failure


@loop
def count_endings(failure: Any, by_depth: Any, counts: Any) -> Any:
    """Add to each node's count those of the nodes that its failure links lead to."""
    totals = counts.copy()
    for node in by_depth[1:]:
        totals[node] += totals[failure[node]]
    return totals


@loop
def list_endings(failure: Any, counts: Any, totals: Any) -> Any:
    """List, for each node, what ends at it and at the nodes that its failure links lead to.

    Args:
        failure: ``[nodes]``, the failure links.
        counts: ``[nodes]``, how much ends at each node itself, numbered in order of nodes.
        totals: the same with failure links; see ``count_endings``.

    Returns:
        The node, and the number of what ends there.
    """
    starts = np.cumsum(counts) - counts
    owner, ending = np.zeros((2, totals.sum()), np.int64)
    n = 0
    for node in range(len(failure)):
        at, end = node, n + totals[node]
        while n < end:
            for i in range(counts[at]):
                owner[n], ending[n] = node, starts[at] + i
                n += 1
            at = failure[at]
    return owner, ending


def choice(choices: Sequence[Sequence[int]], eos_token_id: int | None) -> Automaton:
    """Allow the tokens that continue a choice; after the first, any other token leads to EOS.

    Without EOS, the states after a choice are free, and no choice begins another.
    """
    trie = Trie.of(choices)
    keys, nodes = trie.keys[1:], len(trie.parent)
    stops = keys[:0] if eos_token_id is None else trie.node.astype(np.int64) << 32 | eos_token_id
    options = distinct(np.concatenate([keys, stops]))
    owner, tokens = options >> 32, options & TOKEN
    counts = np.bincount(owner, minlength=nodes)
    several = counts > 1
    operand = np.cumsum(several) - 1  # the token set, for nodes with several options
    in_set = several[owner]
    operand[counts == 1] = tokens[~in_set]
    operand[counts == 0] = 0
    builder = AutomatonBuilder()
    builder.token_sets(tokens[in_set], counts[several])
    default_target = np.full(nodes, nodes)
    default_target[0] = 0
    edits = np.array([Edit.FREE, Edit.FORCE, Edit.ALLOW])[np.minimum(counts, 2)]
    builder.extend(edits, operand, default_target)
    if eos_token_id is None:
        builder.free()
    else:
        builder.force(eos_token_id)
    trie.add_edges(builder)
    return builder.build(check=False)


def completing(
    sequences: Sequence[Sequence[int]], values: Values | None, check_size: Callable[[int], None]
) -> Automaton:
    """Add to the logit of each token that would complete a sequence.

    Aho and Corasick, "Efficient string matching", CACM 18(6), 1975, over proper prefixes: a state
    is the longest suffix of the history that is a proper prefix of a sequence.

    Args:
        sequences: each of two token ids or more.
        values: ``[sequences]``, the value to add for each sequence, in which case no two sequences
            are equal; ``None`` bans the tokens.
        check_size: called with a lower bound of the automaton's cells before more are made,
            because a few sequences may mean very many cells.
    """
    trie = Trie.of([sequence[:-1] for sequence in sequences])
    keys, nodes, by_depth = trie.keys, len(trie.parent), trie.depth.argsort(kind="stable")
    failure = find_failures(keys, keys.argsort(kind="stable"), by_depth)
    last = token_array([sequence[-1] for sequence in sequences])[trie.order]
    endings, of_sequence = numbered(trie.node.astype(np.int64) << 32 | last)
    counts = np.bincount(endings >> 32, minlength=nodes)
    totals = count_endings(failure, by_depth, counts)
    check_size(nodes + int(totals.sum()))
    owner, ending = list_endings(failure, counts, totals)
    cells = owner << 32 | endings[ending] & TOKEN
    if values is None:
        edited, sums = distinct(cells), BAN_BIAS
    else:
        edited, cell = numbered(cells)
        of_ending = np.empty(len(endings))
        of_ending[of_sequence] = values[trie.order]
        sums = np.bincount(cell, of_ending[ending]).astype(np.float64)
    sizes = np.bincount(edited >> 32, minlength=nodes)
    adds = sizes > 0
    builder = AutomatonBuilder()
    builder.token_sets(edited & TOKEN, sizes[adds], sums)
    builder.extend(
        np.where(adds, Edit.ADD.value, Edit.FREE.value),
        np.where(adds, np.cumsum(adds) - 1, 0),
        failure,
        is_failure_link=np.arange(nodes) > 0,
    )
    trie.add_edges(builder)
    return builder.build(check=False)
