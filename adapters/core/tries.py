"""Automata of many sequences, made a level or a whole trie at a time.

A payload may hold thousands of sequences. What costs a call per state would hold up the event loop
of a front end, so states, edges and sets are made as arrays.
"""

from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .automaton import (
    Automaton,
    AutomatonBuilder,
    Edit,
    Ints,
    distinct,
    looked_up,
    numbered,
    token_array,
)

_TOKEN = 0xFFFFFFFF
FEW = 128
"""So many sequences are taken token by token: a call to numpy for all of them costs as much."""


class Flat(NamedTuple):
    """Sequences of token ids, end to end.

    Attributes:
        tokens: of all of them.
        starts: ``[sequences]``, where each begins in ``tokens``.
        lengths: ``[sequences]``.
    """

    tokens: Ints
    starts: Ints
    lengths: Ints

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> "Flat":
        """Those that a spec has as tuples."""
        lengths = token_array(map(len, sequences)).astype(np.int64)
        tokens = token_array(chain.from_iterable(sequences)).astype(np.int64)
        return cls(tokens, np.cumsum(lengths) - lengths, lengths)

    def where(self, wanted: npt.NDArray[np.bool_]) -> "Flat":
        """Some of the sequences."""
        return Flat(self.tokens, self.starts[wanted], self.lengths[wanted])

    @property
    def last(self) -> Ints:
        """The last token of each."""
        return self.tokens[self.starts + self.lengths - 1]


class Trie:
    """Sequences that share their beginnings. Node 0 is the empty one; each other has a parent.

    Args:
        sequences: of token ids.

    Attributes:
        ends: ``[sequences]``, the node that each leads to.
        keys: ``[nodes]``, ``parent << 32 | token`` of the token that leads to the node; 0 of the
            root, which means nothing.
        depth: ``[nodes]``, how many tokens lead to the node.
    """

    def __init__(self, sequences: Flat) -> None:
        tokens, starts, lengths = sequences
        self.ends = ends = np.zeros(len(lengths), np.int64)
        keys: list[Ints] = [np.zeros(1, np.int64)]
        nodes, depth, longer = 1, 0, np.flatnonzero(lengths)
        while len(longer) > FEW:
            level, which = numbered(ends[longer] << 32 | tokens[starts[longer] + depth])
            ends[longer] = which + nodes
            keys.append(level)
            nodes, depth = nodes + len(level), depth + 1
            longer = longer[lengths[longer] > depth]
        sizes = [*map(len, keys)]
        edges: dict[int, int] = {}
        find = edges.setdefault
        depths: list[int] = []
        for i in longer.tolist():
            node = int(ends[i])
            rest = tokens[starts[i] + depth : starts[i] + lengths[i]].tolist()
            for at, token_id in enumerate(rest, start=depth + 1):
                node = find(node << 32 | token_id, nodes)
                if node == nodes:
                    nodes += 1
                    depths.append(at)
            ends[i] = node
        self.keys = np.concatenate([*keys, np.fromiter(edges, np.int64, len(edges))])
        self.depth = np.append(np.repeat(np.arange(len(sizes)), sizes), np.array(depths, np.int64))

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def parent(self) -> Ints:
        """``[nodes]``, the node that each goes on from; that of the root is 0."""
        return self.keys >> 32

    def add_edges(self, builder: AutomatonBuilder) -> None:
        """Make an edge of each parent to each child; the nodes are the first states."""
        builder.edges(self.parent[1:], self.keys[1:] & _TOKEN, np.arange(1, len(self)))


def _ranges(starts: Ints, lengths: Ints) -> Ints:
    """``[start, start + 1, ...]`` for each of several lengths, one after the other."""
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(starts - before, lengths)


def choice(choices: Sequence[Sequence[int]], eos_token_id: int) -> Automaton:
    """Allow what goes on with a choice; whatever does not, from the second token on, ends it."""
    trie = Trie(Flat.of(choices))
    nodes = len(trie)
    options = distinct(np.concatenate([trie.keys[1:], trie.ends << 32 | eos_token_id]))
    owner, tokens = options >> 32, options & _TOKEN
    counts = np.bincount(owner, minlength=nodes)
    several = counts > 1
    argument = np.cumsum(several) - 1  # the set of those that have one
    in_set = several[owner]
    argument[~several] = tokens[~in_set]
    builder = AutomatonBuilder()
    builder.token_sets(tokens[in_set], counts[several])
    otherwise = np.full(nodes, nodes)
    otherwise[0] = 0
    builder.extend(np.where(several, Edit.ALLOW.value, Edit.FORCE.value), argument, otherwise)
    builder.force(eos_token_id)
    trie.add_edges(builder)
    return builder.build(check=False)


def banned(sequences: Flat, check_size: Callable[[int], None]) -> Automaton:
    """Ban what would complete a sequence.

    Aho and Corasick, "Efficient string matching", CACM 18(6), 1975, over proper prefixes: a state
    is the longest end of the history that begins a sequence.

    Args:
        sequences: each of two token ids or more.
        check_size: told how many cells there are so far, at least, as long as more are made: a few
            sequences may mean very many bans.
    """
    trie = Trie(sequences._replace(lengths=sequences.lengths - 1))
    nodes, failure = len(trie), _failures(trie)
    of_node = distinct(trie.ends << 32 | sequences.last)
    tokens, counts = of_node & _TOKEN, np.bincount(of_node >> 32, minlength=nodes)
    starts = np.cumsum(counts) - counts
    # The next node along the failure links that bans anything by itself, or the root.
    bans_at = np.where(counts > 0, np.arange(nodes), failure)
    while ((counts[bans_at] == 0) & (bans_at > 0)).any():  # twice as far in each round
        bans_at = bans_at[bans_at]
    owner, at = np.arange(nodes), bans_at
    found: list[Ints] = []
    while len(owner := owner[at > 0]):  # takes one node from each of the chains that are left
        at = at[at > 0]
        lengths = counts[at]
        check_size(nodes + sum(map(len, found)) + int(lengths.sum()))
        found.append(np.repeat(owner, lengths) << 32 | tokens[_ranges(starts[at], lengths)])
        at = bans_at[failure[at]]
    cells = distinct(np.concatenate(found))
    sizes = np.bincount(cells >> 32, minlength=nodes)
    bans = sizes > 0
    builder = AutomatonBuilder()
    builder.token_sets(cells & _TOKEN, sizes[bans])
    builder.extend(
        np.where(bans, Edit.ADD.value, Edit.FREE.value),
        np.where(bans, np.cumsum(bans) - 1, 0),
        failure,
        consumes=np.arange(nodes) == 0,
    )
    trie.add_edges(builder)
    return builder.build(check=False)


def _failures(trie: Trie) -> Ints:
    """For each node, the longest proper end of its sequence that is a node."""
    parent, tokens = trie.parent, trie.keys & _TOKEN
    order = np.argsort(trie.keys[1:], kind="stable") + 1
    keys = trie.keys[order]

    def child(among: Ints, wanted: Ints) -> Ints:
        index, found = looked_up(among, wanted)
        return np.where(found, order[index], 0)

    by_depth = np.argsort(trie.depth, kind="stable")
    ends = np.cumsum(np.bincount(trie.depth)).tolist()
    of_root = keys[: keys.searchsorted(1 << 32)]
    failure = np.where(trie.depth > 1, child(of_root, tokens), 0)
    edges: dict[int, int] = {}
    for start, end in pairwise(ends[1:]):  # those of two tokens, of three, ...
        left = by_depth[start:end]
        links = failure[parent[left]]
        left, links = left[links > 0], links[links > 0]
        while len(left):
            found = child(keys, links << 32 | tokens[left])
            failure[left[found > 0]] = found[found > 0]
            links = failure[links]
            on = (found == 0) & (links > 0)
            left, links = left[on], links[on]
            if 0 < len(left) <= FEW:
                edges = edges or dict(zip(keys.tolist(), order.tolist(), strict=True))
                _follow(edges, failure, left.tolist(), tokens[left].tolist(), links.tolist())
                break
    return failure


def _follow(
    edges: dict[int, int], failure: Ints, nodes: list[int], tokens: list[int], links: list[int]
) -> None:
    """The same one by one, which is faster for a few."""
    for node, token, link in zip(nodes, tokens, links, strict=True):
        while link:
            if found := edges.get(link << 32 | token):
                failure[node] = found
                break
            link = int(failure[link])
