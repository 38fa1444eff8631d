"""Automata of Unicode scripts: the bytes of their characters.

Characters have one to four bytes in UTF-8, and no character's bytes are within those of others. So
a ban of characters is a ban of texts: of the shortest bytes that begin none but banned characters.
"""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...spec import SpecError
from .automaton import Ints
from .texts import NOWHERE, ByteAutomaton

Kinds = npt.NDArray[np.uint8]
"""``[scripts]``: ``FREE``, ``BANNED``, or 0 for a script whose characters do not count."""
FREE, BANNED = 1, 2
MIXED = FREE | BANNED

SHARED = ("Zyyy", "Zinh")
"""The codes of Common and Inherited: characters that all scripts use."""
UNKNOWN = "Zzzz"
"""The code of the characters that are in no script: unassigned, or for private use."""

FORMS = ((0x00, 0x0, 0x80), (0xC0, 0x80, 0x800), (0xE0, 0x800, 0x10000), (0xF0, 0x10000, 0x140000))
"""Of one to four bytes: the lowest first byte, the lowest character, and what they can count to."""
_SIX_BITS = np.arange(64)
SURROGATES = slice(0xD800, 0xE000)
LAST = 0x10FFFF


class _Scripts(NamedTuple):
    """Unicode's table of scripts.

    Attributes:
        codes: the codes of the scripts, four letters each.
        lengths: ``[ranges]``, the number of code points in each range, which cover all in order.
        script: ``[ranges]``, the index in ``codes`` of each range.
    """

    codes: list[str]
    lengths: Ints
    script: Ints


@cache
def _scripts() -> _Scripts:
    from fontTools.unicodedata import Scripts

    codes = sorted({*Scripts.VALUES})
    index = {code: i for i, code in enumerate(codes)}
    lengths = np.diff([*Scripts.RANGES, LAST + 1])
    return _Scripts(codes, lengths, np.array([index[code] for code in Scripts.VALUES]))


def script_codes(names: Iterable[str]) -> list[str]:
    """Return the code of each script.

    Raises:
        SpecError: at the first name that is not a script's.
        ModuleNotFoundError: if fontTools is missing.
    """
    from fontTools.unicodedata import script_code

    codes: list[str] = []
    for i, name in enumerate(names):
        try:
            code = script_code(name)
        except KeyError:
            code = UNKNOWN
        if code in (UNKNOWN, *SHARED):
            what = "no script" if code == UNKNOWN else "shared by all scripts"
            raise SpecError(
                f"Expected a script of Unicode, like Han, Latin or Old Italic; {name!r} is {what}",
                f"$.scripts[{i}]",
            )
        codes.append(code)
    return codes


def banned_scripts(codes: Iterable[str]) -> Kinds:
    """Ban the characters of some scripts. Those of no script do not count."""
    return _kinds(dict.fromkeys(codes, BANNED) | {UNKNOWN: 0}, FREE)


def scripts_beside(codes: Iterable[str]) -> Kinds:
    """Ban the characters of all other scripts, and of none. Those that all scripts use are free."""
    return _kinds(dict.fromkeys((*codes, *SHARED), FREE), BANNED)


def _kinds(kinds: dict[str, int], default: int) -> Kinds:
    return np.array([kinds.get(code, default) for code in _scripts().codes], np.uint8)


def automaton_of(of_script: Kinds) -> ByteAutomaton:
    """Make the automaton that completes a text where no free character is left.

    Its states are the beginnings of both free and banned characters.
    """
    scripts = _scripts()
    characters = np.zeros(FORMS[-1][-1], np.uint8)
    characters[: LAST + 1] = np.repeat(of_script[scripts.script], scripts.lengths)
    characters[SURROGATES] = 0
    edges: list[tuple[Ints, Ints]] = []
    levels = [np.zeros(1, np.int64)]
    states = 1
    for n, (first_byte, low, high) in enumerate(FORMS):
        of_prefix = [characters[:high].copy()]
        of_prefix[0][:low] = 0
        for _ in range(n):
            of_prefix.append(np.bitwise_or.reduce(of_prefix[-1].reshape(-1, 64), axis=1))
        prefixes = np.arange(len(of_prefix[-1]))
        keys = first_byte + prefixes
        for level, kinds in enumerate(reversed(of_prefix), start=1):
            kinds = kinds[prefixes]
            goes_on = kinds == MIXED
            new = np.arange(states, states + np.count_nonzero(goes_on))
            targets = np.where(kinds == BANNED, NOWHERE, 0)
            targets[goes_on] = new
            kept = kinds >= BANNED
            edges.append((keys[kept], targets[kept]))
            levels.append(np.full(len(new), level))
            states += len(new)
            prefixes = ((prefixes[goes_on] << 6)[:, np.newaxis] + _SIX_BITS).ravel()
            keys = ((new << 8)[:, np.newaxis] + 0x80 + _SIX_BITS).ravel()
    keys, targets = map(np.concatenate, zip(*edges, strict=True))
    ends = keys[targets == NOWHERE]
    return ByteAutomaton.of_edges(keys, targets, ends, np.concatenate(levels))
