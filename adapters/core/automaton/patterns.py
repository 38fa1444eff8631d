"""Automata that detect a pattern of tokens."""

from collections.abc import Sequence

from .builder import AutomatonBuilder


def match(
    builder: AutomatonBuilder, states: Sequence[int], pattern: Sequence[int], found: int
) -> None:
    """Add edges so that ``states[i]`` has matched ``i`` tokens; the last match leads to ``found``.

    The states come from ``builder.watching``: a token that continues no match leads to the first.

    Each state also has the edges of its longest proper suffix's state (Knuth, Morris and Pratt,
    "Fast pattern matching in strings", SIAM J. Comput. 6(2), 1977), so no token is looked up
    twice. There are no more than two edges for each token of the pattern (Simon, "String matching
    algorithms and automata", LNCS 812, 1994).
    """
    edges_of: list[dict[int, int]] = []  # without edges to the first state
    end = 0
    for i, token in enumerate(pattern):
        of_end = edges_of[end] if i else {}
        edges_of.append({**of_end, token: i + 1})
        for token_id, matched in edges_of[i].items():
            target = states[matched] if matched < len(pattern) else found
            builder.edge(states[i], token_id, target)
        end = of_end.get(token, 0)
