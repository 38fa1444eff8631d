"""Automata of Unicode scripts: the bytes of their characters.

Characters have one to four bytes in UTF-8, and no character's bytes are within those of others. So
a ban of characters is a ban of texts: of the shortest bytes that begin none but banned characters.
"""

from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...spec import SpecError
from .automaton import Automaton, Ints
from .automaton.arrays import TOKEN, differ, distinct, members
from .texts import ENDED, ByteAutomaton, classes_of, completing
from .vocabulary import Vocabulary

Bytes = npt.NDArray[np.uint8]
Kinds = Bytes
"""``[scripts]``: ``FREE``, ``BANNED``, or 0 for a script whose characters do not count."""
FREE, BANNED = 1, 2
MIXED = FREE | BANNED

SHARED = ("Zyyy", "Zinh")
"""The codes of Common and Inherited: characters that all scripts use."""
UNKNOWN = "Zzzz"
"""The code of the characters that are in no script: unassigned, or for private use."""
NOTHING = ""
"""The code of what is no character: surrogates, and numbers that UTF-8 does not encode."""

FORMS = ((0x00, 0x0, 0x80), (0xC0, 0x80, 0x800), (0xE0, 0x800, 0x10000), (0xF0, 0x10000, 0x140000))
"""Of one to four bytes: the lowest first byte, the lowest character, and what they can count to."""
_SIX_BITS = np.arange(64)
SURROGATES = slice(0xD800, 0xE000)
LAST = 0x10FFFF

_FIRST_BYTES = np.array([first_byte for first_byte, _, _ in FORMS])
_FOLLOWING = np.full(256, -1, np.int8)
"""``[256]``, the number of bytes that follow each first byte; -1 for no first byte."""
for _n, (_first_byte, _, _high) in enumerate(FORMS):
    _FOLLOWING[_first_byte : _first_byte + (_high >> 6 * _n)] = _n


class _Scripts(NamedTuple):
    """Unicode's table of scripts.

    Attributes:
        codes: the codes of the scripts, four letters each, and ``NOTHING``.
        of_character: of each of ``FORMS``, ``[characters]``, the index of each number's script.
        of_prefix: of each of ``FORMS``, for 1, 2, ... bytes less: where the scripts of the
            characters begin that have the same first bytes, and these scripts.
    """

    codes: list[str]
    of_character: list[Bytes]
    of_prefix: list[list[tuple[Ints, Bytes]]]


@cache
def _scripts() -> _Scripts:
    from fontTools.unicodedata import Scripts

    codes = sorted({NOTHING, *Scripts.VALUES})
    index = {code: i for i, code in enumerate(codes)}
    every = np.full(FORMS[-1][-1], index[NOTHING], np.uint8)
    lengths = np.diff([*Scripts.RANGES, LAST + 1])
    every[: LAST + 1] = np.repeat(np.array([index[code] for code in Scripts.VALUES]), lengths)
    every[SURROGATES] = index[NOTHING]
    of_character: list[Bytes] = []
    of_prefix: list[list[tuple[Ints, Bytes]]] = []
    for n, (_, low, high) in enumerate(FORMS):
        scripts = every[:high].copy()
        scripts[:low] = index[NOTHING]
        of_character.append(scripts)
        of_prefix.append([])
        for bits in range(6, 6 * n + 1, 6):
            pairs = distinct((np.arange(high) >> bits << 8) + scripts, in_runs=True)
            starts = np.flatnonzero(differ(pairs >> 8))
            of_prefix[-1].append((np.append(starts, len(pairs)), pairs.astype(np.uint8)))
    return _Scripts(codes, of_character, of_prefix)


class _Characters(NamedTuple):
    """The characters in the tokens of a vocabulary.

    Attributes:
        starts: ``[scripts + 1]``, where the tokens of each script begin.
        places: the tokens with whole characters of each script that is known, by their places in
            the order of the vocabulary's trie.
        others: ``[others, 4]``, the bytes of other characters, and of parts of characters.
        lengths: ``[others]``, the number of these bytes.
        owner: ``[others]``, the place of the token of each.
        is_last: ``[others]``, whether the token ends with it.
    """

    starts: Ints
    places: Ints
    others: Bytes
    lengths: Ints
    owner: Ints
    is_last: npt.NDArray[np.bool_]


def prepare(vocabulary: Vocabulary) -> None:
    """Make what rules about text look up in a vocabulary, which takes half a second.

    Without the table of scripts, there can be no rule about them.
    """
    vocabulary.prepare()
    if find_spec("fontTools") is not None:
        _characters(vocabulary)


@lru_cache(maxsize=4)
def _characters(vocabulary: Vocabulary) -> _Characters:
    """Find the characters of all tokens, in one pass over their bytes."""
    scripts, ends = _scripts(), vocabulary.ends
    data = np.append(vocabulary.data, np.zeros(3, np.uint8))
    owner = np.repeat(np.arange(vocabulary.size), np.diff(ends, prepend=0))
    following = _FOLLOWING[data[: len(owner)]]
    at = np.flatnonzero(following >= 0)
    owner, following = owner[at], following[at]
    numbers = data[at] - _FIRST_BYTES[following]
    lengths, left = np.ones(len(at), np.int64), np.flatnonzero(following)
    for n in range(1, len(FORMS)):
        left = left[(following[left] >= n) & (at[left] + n < ends[owner[left]])]
        byte = data[at[left] + n]
        is_following = byte & 0xC0 == 0x80
        left, byte = left[is_following], byte[is_following]
        numbers[left] = numbers[left] << 6 | byte & 0x3F
        lengths[left] += 1
    script = np.zeros(len(at), np.uint8)
    for n, of_character in enumerate(scripts.of_character):
        whole = np.flatnonzero((following == n) & (lengths == n + 1))
        script[whole] = of_character[numbers[whole]]
    nothing, unknown = map(scripts.codes.index, (NOTHING, UNKNOWN))
    is_other = (script == nothing) | (script == unknown) | (lengths <= following)
    place = np.empty(vocabulary.size, np.int64)
    place[vocabulary.trie.order] = np.arange(len(vocabulary.trie.order))
    pairs = script[~is_other].astype(np.int64) << 32 | place[owner[~is_other]]
    pairs = distinct(pairs[differ(pairs)])
    starts = pairs.searchsorted(np.arange(len(scripts.codes) + 1) << 32)
    at, lengths, owner = (each[is_other] for each in (at, lengths, owner))
    others = data[at[:, np.newaxis] + np.arange(len(FORMS))]
    is_last = at + lengths == ends[owner]
    return _Characters(starts, pairs & TOKEN, others, lengths, place[owner], is_last)


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
                "scripts",
                i,
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
    kinds[NOTHING] = 0
    return np.array([kinds.get(code, default) for code in _scripts().codes], np.uint8)


def completing_characters(
    of_script: Kinds, vocabulary: Vocabulary, check_cost: Callable[[int, int], None]
) -> tuple[Ints, Automaton | None]:
    """Ban each token that completes a banned character, or leaves no free one to complete.

    Args:
        of_script: which scripts are banned.
        vocabulary: the bytes of each token.
        check_cost: see ``completing_texts``, as for what is returned.
    """
    automaton, characters = _automaton_of(of_script), _characters(vocabulary)
    is_banned = np.zeros(len(vocabulary.trie.order), np.bool_)
    banned = np.flatnonzero(of_script == BANNED)
    first, end = characters.starts[banned], characters.starts[banned + 1]
    is_banned[characters.places[members(first, end - first)[1]]] = True
    state = np.zeros(len(characters.others), np.int64)
    ended = np.zeros(len(state), np.bool_)
    for n in range(characters.others.shape[1]):
        after = automaton.after[state, automaton.class_of[characters.others[:, n]]]
        counts = characters.lengths > n
        ended |= counts & (after >= ENDED)
        state[counts] = (after & ~ENDED)[counts]
    is_banned[characters.owner[ended]] = True
    leads = characters.is_last & (state > 0)
    from_root = vocabulary.trie.order[characters.owner[leads]], state[leads]
    return completing(automaton, vocabulary, np.flatnonzero(is_banned), from_root, check_cost)


def _automaton_of(of_script: Kinds) -> ByteAutomaton:
    """Make the automaton that completes a text where no free character is left.

    Its states are the beginnings of both free and banned characters.
    """
    scripts = _scripts()
    edges: list[tuple[Ints, Ints]] = []
    states = 1
    for n, (first_byte, _, high) in enumerate(FORMS):
        prefixes = np.arange(high >> 6 * n)
        keys = first_byte + prefixes
        for level in range(1, n + 2):
            if level > n:
                kinds = of_script[scripts.of_character[n][prefixes]]
            else:
                starts, of_prefix = scripts.of_prefix[n][n - level]
                first, size = starts[prefixes], starts[prefixes + 1] - starts[prefixes]
                at = members(first, size)[1]
                kinds = np.bitwise_or.reduceat(of_script[of_prefix[at]], np.cumsum(size) - size)
            goes_on = kinds == MIXED
            new = np.arange(states, states + np.count_nonzero(goes_on))
            targets = np.zeros(len(kinds), np.int64)
            targets[goes_on] = new
            kept = kinds >= BANNED
            edges.append((keys[kept], targets[kept]))
            states += len(new)
            prefixes = ((prefixes[goes_on] << 6)[:, np.newaxis] + _SIX_BITS).ravel()
            keys = ((new << 8)[:, np.newaxis] + 0x80 + _SIX_BITS).ravel()
            if not len(prefixes):
                break
    keys, targets = map(np.concatenate, zip(*edges, strict=True))
    order = keys.argsort()
    keys, targets = keys[order], targets[order]
    ends, class_of = targets == 0, classes_of(distinct(keys & 0xFF))
    after = np.zeros((states, class_of.max() + 1), np.int32)
    to, at_root = np.where(ends, ENDED, targets), keys.searchsorted(1 << 8)
    after[:, class_of[keys[:at_root]]] = to[:at_root]
    after[keys >> 8, class_of[keys & 0xFF]] = to
    return ByteAutomaton(0, np.zeros(states, np.int64), keys, targets, ends, class_of, after)
