"""Automata that look for texts, byte by byte."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..loops import loop

Symbol = tuple[bytes, ...]
"""One character of a text: its encodings, each of one byte or more, and none begins another. Two
symbols are equal, or have no encoding in common.
"""
Character = tuple[tuple[int, int], ...]
"""A range of characters: the first and the last value of each byte."""
Table = npt.NDArray[np.int32]

ENDED = 1 << 30
"""A bit beside a state: a text has ended."""
FOUND = 1
"""The state after a separator."""


class ByteAutomaton(NamedTuple):
    """Aho and Corasick's automaton over bytes. A state is a proper prefix of a text.

    State 0 is the empty prefix. A state's failure link leads to the longest proper suffix that is
    a state, which has a lower number. With separators, a prefix begins with one of them. Characters
    that are ignored lead from a prefix to itself, by states of their first bytes.

    Attributes:
        start: the state in which a text may begin.
        own: ``[states, 256]``, the longer prefix after a byte, or 0 if there is none; with the bit
            ``ENDED`` if the byte completes a text that begins with this prefix.
        after: ``[states, 256]``, the state after a byte, failure links followed; with the bit
            ``ENDED`` if the byte completes any text.
        failure: ``[states]``, the failure links.
    """

    start: int
    own: Table
    after: Table
    failure: Table

    @classmethod
    def of_edges(cls, start: int, own: Table) -> "ByteAutomaton":
        """Make the automaton of the edges between prefixes."""
        after, failure = np.zeros_like(own), np.zeros(len(own), np.int32)
        follow_failures(own, after, failure)
        return cls(start, own, after, failure)

    @classmethod
    def of(
        cls,
        texts: Sequence[Sequence[Symbol]],
        separators: Sequence[Character] = (),
        ignored: Sequence[Character] = (),
    ) -> "ByteAutomaton":
        """Make the automaton of some texts, none of which is empty; see ``completing_texts``.

        Prefixes are made one symbol after the other, and those that end within it come first: so
        each comes after its proper suffixes.
        """
        edges: dict[int, int] = {}  # by state << 8 | byte
        states = 1

        def add_state() -> int:
            nonlocal states
            states += 1
            return states - 1

        def add_edges(state: int, characters: Sequence[Character], to: int) -> None:
            for *before, (first, last) in characters:
                at = state
                for low, high in before:
                    within = edges.get(at << 8 | low) or add_state()
                    edges.update(dict.fromkeys(range(at << 8 | low, (at << 8 | high) + 1), within))
                    at = within
                edges.update(dict.fromkeys(range(at << 8 | first, (at << 8 | last) + 1), to))

        start = add_state() if separators else 0
        add_edges(0, separators, start)
        after: dict[tuple[int, Symbol], int] = {}
        longer = [(start, text) for text in texts]
        for n in range(max(map(len, texts))):
            left, longer = longer, []
            for state in dict.fromkeys(state for state, _ in left if state):
                add_edges(state, ignored, state)
            ends: list[list[int]] = []  # of each text, its edges by the last bytes of a symbol
            for state, text in left:
                ends.append([])
                for *within, last in text[n]:
                    at = state
                    for byte in within:
                        at = edges.get(at << 8 | byte) or edges.setdefault(
                            at << 8 | byte, add_state()
                        )
                    ends[-1].append(at << 8 | last)
            for (state, text), of_text in zip(left, ends, strict=True):
                value, key = ENDED, (state, text[n])
                if n + 1 < len(text):
                    value = after.get(key) or after.setdefault(key, add_state())
                    longer.append((value, text))
                for edge in of_text:
                    edges[edge] = edges.get(edge, 0) | value
        own = np.zeros(states << 8, np.int32)
        own[np.fromiter(edges, np.int64)] = np.fromiter(edges.values(), np.int32)
        return cls.of_edges(start, own.reshape(states, 256))


@loop
def follow_failures(own: Any, after: Any, failure: Any) -> None:
    """Compute ``after`` and ``failure`` from ``own``; see ``ByteAutomaton``."""
    for state in range(len(own)):
        if state:
            after[state] = after[failure[state]]
        for byte in range(256):
            to, before = own[state, byte], after[state, byte]
            if to:
                after[state, byte] = to | before & ENDED
                if to & ~ENDED == 0:  # no text goes on here, but a suffix may
                    after[state, byte] |= before
                elif state:
                    failure[to & ~ENDED] = before & ~ENDED


def separator_table(separators: Sequence[Character], ignored: Sequence[Character] = ()) -> Table:
    """Make the states after a text, ``[states, 256]``: by state and byte, the next one.

    In state 0, no separator may follow any more, in state ``FOUND`` there is one. The other states
    are within a separator, the first of them right after a text. Without separators, a text needs
    none: there are no other states, and it ends in ``FOUND``. After ``ignored`` characters, the
    state is as before them.
    """
    characters = [(each, FOUND) for each in separators] + [(each, FOUND + 1) for each in ignored]
    table = np.zeros((FOUND + 2 + sum(len(each) for each, _ in characters), 256), np.int32)
    table[FOUND] = FOUND
    states = FOUND + 2
    for character, to in characters:
        while to == FOUND and character[-1] == (0x80, 0xBF):  # any last byte
            character = character[:-1]
        *before, (low, high) = character
        state = FOUND + 1
        for byte, _ in before:
            if not table[state, byte]:
                table[state, byte], states = states, states + 1
            state = table[state, byte]
        table[state, low : high + 1] = to
    return table if separators else table[: FOUND + 1]
