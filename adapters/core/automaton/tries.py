"""Tries of sequences, and automata that follow many sequences of tokens.

For example, the sequences ``(1, 2)`` and ``(2, 1, 3)`` have six nodes: 0 is the root, 1 is ``(1,)``
and 2 is ``(2,)``, 3 is ``(1, 2)`` and 4 is ``(2, 1)``, and 5 is ``(2, 1, 3)``. The failure link of
node 3 leads to node 2, because ``(1, 2)`` ends with ``(2,)``; that of 4 leads to 1; those of the
others lead to the root.
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

Values = npt.NDArray[np.float64]


class Trie(NamedTuple):
    """A trie of token sequences. Nodes are numbered level by level; node 0 is the root.

    Attributes:
        keys: ``[nodes]``, ascending, ``parent << 32 | token``, with the token that leads to the
            node; for the root, a meaningless 0.
        ends: ``[sequences]``, the node that each sequence leads to.
    """

    keys: Ints
    ends: Ints

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> "Trie":
        """Make the trie of some sequences."""
        order = sorted(range(len(sequences)), key=sequences.__getitem__)
        lengths = token_array(len(sequences[i]) for i in order)
        tokens = token_array(chain.from_iterable(sequences[i] for i in order))
        keys, depth, ends = lay_out(tokens.copy(), lengths.copy())
        by_level = depth.argsort(kind="stable")
        number = np.empty_like(by_level)
        number[by_level] = np.arange(len(by_level))
        of_sequence = np.empty(len(ends), np.int64)
        of_sequence[order] = number[ends]
        keys = keys[by_level]
        return cls(number[keys >> 32] << 32 | keys & TOKEN, of_sequence)

    def add_edges(self, builder: AutomatonBuilder) -> None:
        """Add an edge from each parent to each child; the nodes are the first states."""
        keys = self.keys[1:]
        builder.edges(keys >> 32, keys & TOKEN, np.arange(1, len(self.keys)))


@loop
def lay_out(tokens: Any, lengths: Any) -> Any:
    """Make the nodes of sorted sequences, which lie end to end: all below a node come after it.

    Returns:
        ``[nodes]``, the key and the depth of each node; and the node of each sequence.
    """
    keys, depth = np.zeros(1 + len(tokens), np.int64), np.zeros(1 + len(tokens), np.int64)
    path, ends = np.zeros(1 + len(tokens), np.int64), np.zeros(len(lengths), np.int64)
    nodes, start, start_before, length_before = 1, 0, 0, 0
    for i in range(len(lengths)):
        shared = 0
        while shared < min(lengths[i], length_before):
            if tokens[start + shared] != tokens[start_before + shared]:
                break
            shared += 1
        for at in range(shared, lengths[i]):
            keys[nodes], depth[nodes] = path[at] << 32 | tokens[start + at], at + 1
            path[at + 1] = nodes
            nodes += 1
        ends[i], length_before = path[lengths[i]], lengths[i]
        start_before, start = start, start + lengths[i]
    return keys[:nodes], depth[:nodes], ends


@loop
def find_failures(keys: Any, counts: Any) -> Any:
    """Compute the failure link of each node: the longest proper suffix of it that is a node.

    Returns:
        The links; and ``counts`` of each node, added to those of all nodes that its links lead to.
    """
    failure, totals = np.zeros(len(keys), np.int64), counts.copy()
    for node in range(1, len(keys)):
        link, token = keys[node] >> 32, keys[node] & TOKEN
        while link > 0 and failure[node] == 0:
            link = failure[link]
            child = 1 + np.searchsorted(keys[1:], link << 32 | token)
            if child < len(keys) and keys[child] == link << 32 | token:
                failure[node] = child
        totals[node] += totals[failure[node]]
    return failure, totals


@loop
def list_endings(failure: Any, counts: Any, totals: Any) -> Any:
    """List, for each node, what ends at it and at the nodes that its failure links lead to.

    Args:
        failure: ``[nodes]``, the failure links.
        counts: ``[nodes]``, how much ends at each node itself, numbered in order of nodes.
        totals: ``[nodes]``, how much there is to list.

    Returns:
        The node, and the number of what ends there.
    """
    start = np.cumsum(totals) - totals
    owner, ending = np.zeros(totals.sum(), np.int64), np.zeros(totals.sum(), np.int64)
    n = own = 0
    for node in range(len(failure)):
        for _ in range(counts[node]):
            owner[n], ending[n] = node, own
            n, own = n + 1, own + 1
        link = failure[node]
        for i in range(start[link], start[link] + totals[node] - counts[node]):
            owner[n], ending[n] = node, ending[i]
            n += 1
    return owner, ending


def choice(choices: Sequence[Sequence[int]], eos_token_id: int | None) -> Automaton:
    """Allow the tokens that continue a choice; after the first, any other token leads to EOS.

    Without EOS, the states after a choice are free, and no choice begins another.
    """
    trie = Trie.of(choices)
    nodes = len(trie.keys)
    stops = trie.ends[:0] if eos_token_id is None else trie.ends << 32 | eos_token_id
    options = distinct(np.concatenate([trie.keys[1:], stops]))
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
    nodes = len(trie.keys)
    last = token_array(sequence[-1] for sequence in sequences)
    endings, of_sequence = numbered(trie.ends << 32 | last)
    counts = np.bincount(endings >> 32, minlength=nodes)
    failure, totals = find_failures(trie.keys, counts)
    check_size(nodes + int(totals.sum()))
    owner, ending = list_endings(failure, counts, totals)
    cells = owner << 32 | endings[ending] & TOKEN
    if values is None:
        edited, sums = distinct(cells, in_runs=True), BAN_BIAS
    else:
        edited, cell = numbered(cells)
        of_ending = np.empty(len(endings))
        of_ending[of_sequence] = values
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
