"""Automata of banned characters: their bytes, times the bytes of each token of a vocabulary.

Characters have one to four bytes in UTF-8, and no character's bytes are within those of others. So
a ban of characters is a ban of texts: of the shortest bytes that begin none but banned characters.
"""

from typing import Any

import numpy as np

from ..automaton import Automaton, Ints
from ..loops import loop
from .byte_automaton import ENDED, ByteAutomaton, separator_table
from .scripts import AFTER_ALL, BANNED, MIXED, Kinds, script_ranges
from .token_product import completing
from .vocabulary import Vocabulary

FORMS = (
    (0x00, 0x0, 0x80),
    (0xC0, 0x80, 0x800),
    (0xE0, 0x800, 0x10000),
    (0xF0, 0x10000, AFTER_ALL),
)
"""Of one to four bytes: the lowest first byte, the lowest character, and what they can count to."""


def completing_characters(
    kinds: Kinds, vocabulary: Vocabulary, room: int
) -> tuple[Ints, Automaton | None]:
    """Ban each token that completes a banned character, or leaves no free one to complete.

    Args:
        kinds: which characters are banned.
        vocabulary: the bytes of each token.
        room: how many bytes the tables may take, without what is banned everywhere.

    Returns:
        See ``completing_texts``.
    """
    starts = script_ranges()[1]
    most = 1 + 3 * len(starts)  # a range's bound is within three longer beginnings or fewer
    own, beginnings = np.zeros((most, 256), np.int32), np.zeros((most + len(FORMS), 6), np.int32)
    for n, (byte, lowest, after) in enumerate(FORMS):
        beginnings[n] = 0, byte, after >> 6 * n, 0, 6 * n, lowest
    states = split(starts, kinds, own, beginnings)
    automaton, separator = ByteAutomaton.of_edges(0, own[:states]), separator_table(())
    return completing(automaton, vocabulary, room, separator, counts_everywhere=False)


@loop
def split(starts: Any, kinds: Any, own: Any, beginnings: Any) -> int:
    """Make the automaton that completes a text where no free character is left.

    Its states are the beginnings of both free and banned characters.

    Args:
        starts: the starts of ranges of characters, and the end of the last.
        kinds: which ranges are banned.
        own: zeros, filled with the edges; see ``ByteAutomaton``.
        beginnings: the beginnings of characters, those of ``FORMS`` first: the state, the first of
            the bytes that may follow, their number, the first character, the logarithm of the
            characters of each byte, and the lowest character of the form.

    Returns:
        The number of states.
    """
    states, count = 1, len(beginnings) - len(own)
    for i in range(len(beginnings)):
        if i == count:
            break
        state, byte, children, low, bits, lowest = beginnings[i]
        at = np.searchsorted(starts, max(low, lowest), "right") - 1
        for child in range(byte, byte + children):
            after = low + (1 << bits)
            if after > lowest:
                kind = kinds[at]
                while starts[at + 1] < after:
                    at += 1
                    kind |= kinds[at]
                if kind == MIXED:
                    own[state, child] = states
                    longer = beginnings[count]
                    longer[0], longer[1], longer[2] = states, 0x80, 64
                    longer[3], longer[4], longer[5] = low, bits - 6, lowest
                    states, count = states + 1, count + 1
                elif kind == BANNED:
                    own[state, child] = ENDED
                if starts[at + 1] == after:
                    at = min(at + 1, len(kinds) - 1)
            low = after
    return states
