"""The trie of a vocabulary, for loops that read all tokens."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..automaton.arrays import token_array
from ..loops import loop

Column = npt.NDArray[np.int32]


class Trie(NamedTuple):
    """A trie over the bytes of all tokens.

    Nodes are numbered as a walk meets them: a node, then all below its first child, and so on. Node
    0 is the root. So one loop over the nodes reads all tokens, and ``node = end[node]`` leaves out
    what is below a node. The tokens below a node are neighbours in ``order``.

    Attributes:
        byte: ``[nodes]`` uint8, the last byte of each node; 0 for the root.
        parent: ``[nodes]``, the node above each node; 0 for the root.
        end: ``[nodes]``, the first node after those below each node.
        first: ``[nodes + 1]``, the index in ``order`` of the first token at or below each node. The
            tokens at a node end where those of the next node begin.
        node: ``[tokens]``, the node of each token in ``order``.
        order: ``[tokens]``, the token ids in the order of their bytes; special tokens are left out.
    """

    byte: npt.NDArray[np.uint8]
    parent: Column
    end: Column
    first: Column
    node: Column
    order: Column

    @classmethod
    def of(cls, tokens: Sequence[bytes]) -> "Trie":
        """Make the trie of the tokens that have bytes."""
        by_text = sorted(filter(tokens.__getitem__, range(len(tokens))), key=tokens.__getitem__)
        ends = token_array(len(tokens[i]) for i in by_text).cumsum(dtype=np.int32)
        data = np.frombuffer(b"".join(tokens[i] for i in by_text), np.uint8).copy()
        path = np.zeros(1 + max((len(tokens[i]) for i in by_text), default=0), np.int32)
        order = np.array(by_text, np.int32)
        return cls(*lay_out(data, ends, path), order)


@loop
def lay_out(data: Any, ends: Any, path: Any) -> Any:
    """Lay out the nodes of sorted tokens, which lie end to end in ``data``; see ``Trie``.

    ``path`` is room for the nodes of one token.
    """
    most = 1 + len(data)
    byte, node = np.zeros(most, np.uint8), np.zeros(len(ends), np.int32)
    parent, end, first = np.zeros((3, most + 1), np.int32)
    nodes, start, start_before, length_before = 1, 0, 0, 0
    for i in range(len(ends)):
        length, shared = ends[i] - start, 0
        while shared < min(length, length_before):
            if data[start + shared] != data[start_before + shared]:
                break
            shared += 1
        for left in path[shared + 1 : length_before + 1]:
            end[left] = nodes
        for at in range(shared, length):
            byte[nodes], parent[nodes], first[nodes] = data[start + at], path[at], i
            path[at + 1] = nodes
            nodes += 1
        node[i] = path[length]
        start_before, length_before, start = start, length, ends[i]
    for left in path[: length_before + 1]:
        end[left] = nodes
    first[nodes] = len(ends)
    return (
        byte[:nodes].copy(),
        parent[:nodes].copy(),
        end[:nodes].copy(),
        first[: nodes + 1].copy(),
        node,
    )
