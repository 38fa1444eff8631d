"""Automata of many sequences, made a level or a whole trie at a time.

A payload may hold thousands of sequences. What costs a call per state would hold up the event loop
of a front end, so states, edges and sets are made as arrays.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from .automaton import Automaton, AutomatonBuilder, Edit, Ints

_TOKEN = 0xFFFFFFFF


class Trie:
    """Sequences that share their beginnings. Node 0 is the empty one; each other has a parent.

    Args:
        sequences: of token ids.

    Attributes:
        edges: ``parent << 32 | token`` -> node, in the order of the nodes.
        ends: the node that each sequence leads to.
        parent: ``[nodes]``, that of the root is 0.
        token: ``[nodes]``, the token that leads to the node; that of the root means nothing.
    """

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self.edges: dict[int, int] = {}
        self.ends: list[int] = []
        find, nodes = self.edges.setdefault, 1
        for sequence in sequences:
            node = 0
            for token_id in sequence:
                node = find(node << 32 | token_id, nodes)
                if node == nodes:
                    nodes += 1
            self.ends.append(node)
        keys = np.fromiter(self.edges, np.int64, nodes - 1)
        self.parent: Ints = np.concatenate([[0], keys >> 32])
        self.token: Ints = np.concatenate([[0], keys & _TOKEN])

    def __len__(self) -> int:
        return len(self.parent)

    def add_edges(self, builder: AutomatonBuilder) -> None:
        """Make an edge of each parent to each child; the nodes are the first states."""
        builder.edges(self.parent[1:], self.token[1:], np.arange(1, len(self)))

    def levels(self) -> list[Ints]:
        """The nodes of each length, 1 and longer."""
        order = np.argsort(self.parent[1:], kind="stable") + 1
        parents = self.parent[order]
        levels: list[Ints] = []
        front = np.zeros(1, np.int64)
        while True:
            lo, hi = parents.searchsorted(front), parents.searchsorted(front, "right")
            lengths = hi - lo
            if not lengths.any():
                return levels
            within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            front = order[np.repeat(lo, lengths) + within]
            levels.append(front)


def choice(choices: Sequence[Sequence[int]], eos_token_id: int) -> Automaton:
    """Allow what goes on with a choice; whatever does not, from the second token on, ends it."""
    trie = Trie(choices)
    nodes = len(trie)
    complete = np.array(trie.ends, np.int64)
    options = np.unique(
        np.concatenate([trie.parent[1:] << 32 | trie.token[1:], complete << 32 | eos_token_id])
    )
    owner, tokens = options >> 32, options & _TOKEN
    counts = np.bincount(owner, minlength=nodes)
    several = counts > 1
    argument = np.cumsum(several) - 1  # the set of those that have one
    argument[~several] = tokens[~several[owner]]
    builder = AutomatonBuilder()
    builder.token_sets(tokens[several[owner]], counts[several])
    otherwise = np.full(nodes, nodes)
    otherwise[0] = 0
    builder.extend(np.where(several, Edit.ALLOW.value, Edit.FORCE.value), argument, otherwise)
    builder.force(eos_token_id)
    trie.add_edges(builder)
    return builder.build()


class BannedSequences:
    """Aho and Corasick, "Efficient string matching", CACM 18(6), 1975, over proper prefixes.

    A state is the longest end of the history that begins a sequence; it bans what would complete
    one.

    Args:
        sequences: each of two token ids or more.

    Attributes:
        cells: states, and tokens in their sets, one that two sequences ban counted twice. It is
            known before the sets are made.
    """

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._trie = trie = Trie(sequence[:-1] for sequence in sequences)
        levels = trie.levels()
        self._failure = failure = _failures(trie, levels)
        bans = np.unique(
            np.array(trie.ends, np.int64) << 32
            | np.fromiter((sequence[-1] for sequence in sequences), np.int64, len(sequences))
        )
        nodes = len(trie)
        self._banned = bans & _TOKEN
        self._counts = np.bincount(bans >> 32, minlength=nodes)
        self._starts = np.cumsum(self._counts) - self._counts
        # The next node along the failure links that bans anything by itself, and how many all ban.
        self._bans_at = bans_at = np.where(self._counts > 0, np.arange(nodes), 0)
        sizes = self._counts.copy()
        for level in levels:
            sizes[level] += sizes[failure[level]]
            bans_at[level] = np.where(bans_at[level] > 0, level, bans_at[failure[level]])
        self.cells = nodes + int(sizes.sum())

    def automaton(self) -> Automaton:
        """Build it."""
        trie, failure, nodes = self._trie, self._failure, len(self._trie)
        owner, at = np.arange(nodes), self._bans_at
        found: list[Ints] = []
        while len(at):  # each round takes one node from each of the chains that are left
            owner, at = owner[at > 0], at[at > 0]
            lengths = self._counts[at]
            within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            tokens = self._banned[np.repeat(self._starts[at], lengths) + within]
            found.append(np.repeat(owner, lengths) << 32 | tokens)
            at = self._bans_at[failure[at]]
        cells = np.unique(np.concatenate(found))
        counts = np.bincount(cells >> 32, minlength=nodes)
        bans = counts > 0
        builder = AutomatonBuilder()
        builder.token_sets(cells & _TOKEN, counts[bans])
        builder.extend(
            np.where(bans, Edit.ADD.value, Edit.FREE.value),
            np.where(bans, np.cumsum(bans) - 1, 0),
            failure,
            consumes=np.arange(nodes) == 0,
        )
        trie.add_edges(builder)
        return builder.build()


def _failures(trie: Trie, levels: Sequence[Ints]) -> Ints:
    """For each node, the longest proper end of its sequence that is a node."""
    failure = np.zeros(len(trie), np.int64)
    keys = trie.parent[1:] << 32 | trie.token[1:]
    order = np.argsort(keys, kind="stable")
    keys, targets = np.append(keys[order], np.iinfo(np.int64).max), np.append(order + 1, 0)
    for level in levels[1:]:
        left, tokens = level, trie.token[level]
        links = failure[trie.parent[level]]
        while len(left) > 64:
            wanted = links << 32 | tokens
            index = keys.searchsorted(wanted)
            hit = keys[index] == wanted
            failure[left[hit]] = targets[index[hit]]
            on = ~hit & (links > 0)
            left, tokens, links = left[on], tokens[on], failure[links[on]]
        _follow(trie.edges, failure, left.tolist(), tokens.tolist(), links.tolist())
    return failure


def _follow(
    edges: dict[int, int],
    failure: npt.NDArray[np.int64],
    nodes: list[int],
    tokens: list[int],
    links: list[int],
) -> None:
    """The same one by one, which is faster for a few."""
    for node, token, link in zip(nodes, tokens, links, strict=True):
        while link and (link << 32 | token) not in edges:
            link = int(failure[link])
        failure[node] = edges.get(link << 32 | token, 0)
