"""``banned_scripts``. It has a meaning only with a vocabulary: see ``completing``."""

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import product

from ....spec import BannedScriptsSpec
from ....spec.kinds.banned_scripts import ScriptsSpec
from .base import Kind, Tokens, text_of

SHARED = ("Common", "Inherited")
FREE, BANNED, NEITHER = "free", "banned", "neither"


def completing(
    specs: Sequence[ScriptsSpec], vocabulary: Sequence[bytes | None], output: Tokens
) -> set[int]:
    """Find the tokens that would complete a banned character, or leave no other to complete.

    This is the reference, by the characters of the whole output. It needs fontTools.

    Args:
        specs: all that a request has of ``banned_scripts`` and ``allowed_scripts``.
        vocabulary: the bytes of each token, ``None`` for a special token.
        output: the output so far.
    """
    before = text_of(vocabulary, output)
    return {
        token
        for token, piece in enumerate(vocabulary)
        if piece is not None
        if any(
            _is_banned(specs, (before + piece[:n])[-length:])
            for n in range(1, len(piece) + 1)
            for length in range(1, 5)
        )
    }


def _is_banned(specs: Sequence[ScriptsSpec], begun: bytes) -> bool:
    """Whether bytes begin a banned character and none that is free, and no fewer of them do."""
    kinds = [
        {_kind(specs, script) for script in _scripts_of(begun[: n + 1])} for n in range(len(begun))
    ]
    *before, last = [BANNED in each and FREE not in each for each in kinds]
    return last and not any(before)


def _kind(specs: Sequence[ScriptsSpec], script: str) -> str:
    kinds: set[str] = set()
    for spec in specs:
        is_named = _plain(script) in map(_plain, spec.scripts)
        if isinstance(spec, BannedScriptsSpec):
            is_unknown = script == "Unknown"
            kinds.add(NEITHER if is_unknown else BANNED if is_named else FREE)
        else:
            kinds.add(FREE if is_named or script in SHARED else BANNED)
    return BANNED if BANNED in kinds else FREE if FREE in kinds else NEITHER


def _plain(name: str) -> str:
    """Return a name without case, spaces, hyphens and underscores."""
    return "".join(filter(str.isalnum, name)).lower()


@cache
def _scripts_of(begun: bytes) -> frozenset[str]:
    """List the scripts of the characters whose bytes begin so."""
    from fontTools.unicodedata import script, script_name

    lead = begun[0]
    missing = (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0) + 1 - len(begun)
    found: set[str] = set()
    for rest in product(range(0x80, 0xC0), repeat=max(missing, 0)):
        with suppress(UnicodeDecodeError):
            character = (begun + bytes(rest)).decode()
            if len(character) == 1:
                found.add(script(character))
    return frozenset(map(script_name, found))


KIND = Kind(
    BannedScriptsSpec(("Han",)),
)
