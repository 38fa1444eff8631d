"""Automata that detect patterns of tokens."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from .arrays import Ints
from .builder import AutomatonBuilder

FOUND = -1
"""In place of a node: a pattern is complete. It is the last index of any array."""


class Matcher(NamedTuple):
    """A detector of a few patterns: the first that is complete is found.

    Aho and Corasick, "Efficient string matching", CACM 18(6), 1975. Each node also has the edges
    of its longest proper suffix's node, so no token is looked up twice. For one pattern, there are
    no more than two edges for each token (Simon, "String matching algorithms and automata", LNCS
    812, 1994).

    Attributes:
        edges: ``[nodes]``, by token: the next node or ``FOUND``. Other tokens lead to node 0, which
            has matched nothing.
        begun: ``[nodes]``, the first pattern that the node is the beginning of, and the number of
            tokens that it has matched.
    """

    edges: list[dict[int, int]]
    begun: list[tuple[int, int]]

    @classmethod
    def of(cls, patterns: Sequence[Sequence[int]]) -> "Matcher":
        """Make the nodes, shorter beginnings first. No pattern is empty."""
        edges: list[dict[int, int]] = []
        lengths = [*map(len, patterns)]
        # Of each node: the patterns that begin with it, and the node of its longest proper suffix.
        nodes = [([*range(len(patterns))], 0, 0)]
        for beginning, matched, suffix in nodes:
            following = edges[suffix].copy() if matched else {}
            longer = {patterns[beginning[0]][matched]: beginning}
            if len(beginning) > 1:
                longer = dict[int, list[int]]()
                for which in beginning:
                    longer.setdefault(patterns[which][matched], []).append(which)
            for token, those in longer.items():
                of_suffix = following.get(token, 0)
                if of_suffix == FOUND or min(map(lengths.__getitem__, those)) == matched + 1:
                    following[token] = FOUND
                else:
                    following[token] = len(nodes)
                    nodes.append((those, matched + 1, of_suffix))
            edges.append(following)
        return cls(edges, [(beginning[0], matched) for beginning, matched, _ in nodes])

    def link(
        self,
        builder: AutomatonBuilder,
        states: Sequence[int],
        into: Sequence[int] | Ints,
        found: int,
        *,
        nodes: Sequence[int] | None = None,
    ) -> None:
        """Add the edges of nodes to states.

        Args:
            builder: the builder of the states.
            states: the states to add edges to, in a row.
            into: for each node, the state that edges to it lead to.
            found: the state after a pattern.
            nodes: the nodes that the states stand for; by default all, in order.
        """
        edges = self.edges if nodes is None else [self.edges[node] for node in nodes]
        sizes = [*map(len, edges)]
        tokens = np.fromiter(chain.from_iterable(edges), np.int64, sum(sizes))
        following = chain.from_iterable(each.values() for each in edges)
        targets = np.fromiter(following, np.int64, len(tokens))
        sources = np.repeat(np.arange(len(states)), sizes) + states[0]
        builder.edges(sources, tokens, np.append(into, found)[targets])


def first_end(patterns: Sequence[Sequence[int]], tokens: Sequence[int]) -> int | None:
    """Find the end of the pattern that is complete first."""
    following = Matcher.of(patterns).edges
    node = 0
    for i, token in enumerate(tokens):
        node = following[node].get(token, 0)
        if node == FOUND:
            return i + 1
    return None
