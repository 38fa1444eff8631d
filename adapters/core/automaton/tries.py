"""Automata of many token sequences, made a level or a whole trie at a time.

A payload may hold thousands of sequences. One call per state would block the event loop of a front
end, so states, edges and sets are made as arrays.
"""

from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .arrays import TOKEN, Ints, distinct, looked_up, numbered, ranges, token_array
from .automaton import BAN_BIAS, Automaton, Edit
from .builder import AutomatonBuilder

Values = npt.NDArray[np.float64]

_SPREAD = (1 << 32) + 1
"""The dict key of an edge is ``node * _SPREAD + token``. With ``node << 32 | token``, a dict probes
by the token first and takes twice as long if most tokens are equal."""
FEW = 128
"""The most sequences that are taken token by token: a numpy call for all of them costs as much."""
ROUNDS = 64
"""The most rounds along failure links for many nodes at once, besides one for each depth. Then
nodes are taken one by one: that costs a dict of all edges, but a round may serve a single node.
"""


class Flat(NamedTuple):
    """Sequences of token ids, end to end: each begins at one of the ``starts`` in ``tokens``."""

    tokens: Ints
    starts: Ints
    lengths: Ints

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> "Flat":
        """Flatten the sequences of a spec."""
        lengths = token_array(map(len, sequences)).astype(np.int64)
        tokens = token_array(chain.from_iterable(sequences)).astype(np.int64)
        return cls(tokens, np.cumsum(lengths) - lengths, lengths)

    def where(self, wanted: npt.NDArray[np.bool_]) -> "Flat":
        """Select some of the sequences."""
        return Flat(self.tokens, self.starts[wanted], self.lengths[wanted])

    @property
    def last(self) -> Ints:
        """The last token of each sequence."""
        return self.tokens[self.starts + self.lengths - 1]


class Trie:
    """A trie of token sequences. Node 0 is the root; every other node has a parent.

    Attributes:
        ends: ``[sequences]``, the node that each sequence leads to.
        keys: ``[nodes]``, ``parent << 32 | token``, with the token that leads to the node; for the
            root, a meaningless 0.
        depth: ``[nodes]``, the number of tokens that lead to the node.
    """

    def __init__(self, sequences: Flat) -> None:
        tokens, starts, lengths = sequences
        self.ends = ends = np.zeros(len(lengths), np.int64)
        taken = np.zeros(len(lengths), np.int64)  # the number of tokens that have nodes
        keys: list[Ints] = [np.zeros(1, np.int64)]
        nodes, depth, longer = 1, 0, np.flatnonzero(lengths)
        while len(longer) > FEW:
            level, which = numbered(ends[longer] << 32 | tokens[starts[longer] + depth])
            ends[longer] = which + nodes
            keys.append(level)
            nodes, depth = nodes + len(level), depth + 1
            taken[longer] = depth
            is_shared = np.bincount(which)[which] > 1
            longer = longer[is_shared & (lengths[longer] > depth)]
        sizes = [*map(len, keys)]
        edges: dict[int, int] = {}
        find = edges.setdefault
        depths: list[int] = []
        for i in longer.tolist():
            node = int(ends[i])
            rest = tokens[starts[i] + depth : starts[i] + lengths[i]].tolist()
            for at, token_id in enumerate(rest, start=depth + 1):
                node = find(node * _SPREAD + token_id, nodes)
                if node == nodes:
                    nodes += 1
                    depths.append(at)
            ends[i] = node
        taken[longer] = lengths[longer]
        made = np.fromiter(edges, np.int64, len(edges))
        # The rest of these sequences is not shared: each token that is left has a node to itself.
        alone = np.flatnonzero(taken < lengths)
        left = (lengths - taken)[alone]
        last = nodes - 1 + np.cumsum(left)
        parents = np.arange(nodes - 1, nodes - 1 + left.sum())
        parents[last - left + 1 - nodes] = ends[alone]
        ends[alone] = last
        rest = parents << 32 | tokens[ranges((starts + taken)[alone], left)]
        self.keys = np.concatenate([*keys, made - (made >> 32), rest])
        self.depth = np.concatenate(
            [
                np.repeat(np.arange(len(sizes)), sizes),
                np.array(depths, np.int64),
                ranges(taken[alone] + 1, left),
            ]
        )

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def parent(self) -> Ints:
        """``[nodes]``, the parent of each node; 0 for the root."""
        return self.keys >> 32

    def add_edges(self, builder: AutomatonBuilder) -> None:
        """Add an edge from each parent to each child; the nodes are the first states."""
        builder.edges(self.parent[1:], self.keys[1:] & TOKEN, np.arange(1, len(self)))


def choice(choices: Sequence[Sequence[int]], eos_token_id: int | None) -> Automaton:
    """Allow the tokens that continue a choice; after the first, any other token leads to EOS.

    Without EOS, the states after a choice are free, and no choice begins another.
    """
    trie = Trie(Flat.of(choices))
    nodes = len(trie)
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
    sequences: Flat, values: Values | None, check_size: Callable[[int], None]
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
    trie = Trie(sequences._replace(lengths=sequences.lengths - 1))
    nodes, failure = len(trie), _failures(trie)
    of_node, member = numbered(trie.ends << 32 | sequences.last)
    tokens, counts = of_node & TOKEN, np.bincount(of_node >> 32, minlength=nodes)
    starts = np.cumsum(counts) - counts
    # The first node along the failure links that sequences end at, or the root.
    ends_at = np.where(counts > 0, np.arange(nodes), failure)
    while ((counts[ends_at] == 0) & (ends_at > 0)).any():  # each round doubles the distance
        ends_at = ends_at[ends_at]
    owner, at = np.arange(nodes), ends_at
    cells: list[Ints] = []
    members: list[Ints] = []
    while len(owner := owner[at > 0]):  # one node from each chain that is left
        at = at[at > 0]
        lengths = counts[at]
        check_size(nodes + sum(map(len, cells)) + int(lengths.sum()))
        members.append(ranges(starts[at], lengths))
        cells.append(np.repeat(owner, lengths) << 32 | tokens[members[-1]])
        at = ends_at[failure[at]]
    if values is None:
        edited, sums = distinct(np.concatenate(cells), in_runs=True), BAN_BIAS
    else:
        edited, cell = numbered(np.concatenate(cells))
        of_member = np.empty(len(of_node))
        of_member[member] = values
        sums = np.bincount(cell, of_member[np.concatenate(members)]).astype(np.float64)
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


def _failures(trie: Trie) -> Ints:
    """Compute the failure link of each node: the longest proper suffix of it that is a node."""
    parent, tokens = trie.parent, trie.keys & TOKEN
    order = np.argsort(trie.keys[1:], kind="stable") + 1
    keys = trie.keys[order]
    by_depth = np.argsort(trie.depth, kind="stable")
    ends = np.cumsum(np.bincount(trie.depth)).tolist()
    failure = np.zeros(len(trie), np.int64)
    deeper = np.flatnonzero(trie.depth > 1)  # initial link: a node of one token, or the root
    index, found = looked_up(keys[: keys.searchsorted(1 << 32)], tokens[deeper])
    failure[deeper[found]] = order[index[found]]
    edges: dict[int, int] = {}
    rounds = 0
    for start, end in pairwise(ends[1:]):  # nodes of two tokens, of three, ...
        left = by_depth[start:end]
        links = failure[parent[left]]
        rounds -= 1  # one is due for each depth
        while len(left := left[on := links > 0]):
            links = links[on]
            index, found = looked_up(keys, links << 32 | tokens[left])
            failure[left[found]] = order[index[found]]
            missing = ~found
            left, links = left[missing], failure[links[missing]]
            rounds += 1
            if rounds > ROUNDS:
                edges = edges or dict(
                    zip((keys + (keys >> 32)).tolist(), order.tolist(), strict=True)
                )
                _follow(edges, failure, left, tokens[left], links)
                break
    return failure


def _follow(edges: dict[int, int], failure: Ints, nodes: Ints, tokens: Ints, links: Ints) -> None:
    """Set failure links one by one: in all no more steps than the sequences have tokens."""
    child, link_of = edges.get, failure.data
    for node, token, link in zip(nodes.tolist(), tokens.tolist(), links.tolist(), strict=True):
        while link:
            if found := child(link * _SPREAD + token):
                link_of[node] = found
                break
            link = link_of[link]
