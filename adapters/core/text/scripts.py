"""Unicode's scripts, and the characters that rules about them ban."""

from bisect import bisect_right
from collections.abc import Iterable
from functools import cache

import numpy as np
import numpy.typing as npt

from ....spec import SpecError

Kinds = npt.NDArray[np.uint8]
"""``[ranges]``: ``FREE``, ``BANNED``, or 0 where characters do not count."""
FREE, BANNED = 1, 2
MIXED = FREE | BANNED

SHARED = ("Zyyy", "Zinh")
"""The codes of Common and Inherited: characters that all scripts use."""
UNKNOWN = "Zzzz"
"""The code of the characters that are in no script: unassigned, or for private use."""
NOTHING = ""
"""The code of what is no character: surrogates, and numbers that UTF-8 does not encode."""

SURROGATES, AFTER_SURROGATES, AFTER_LAST = 0xD800, 0xE000, 0x110000
AFTER_ALL = 0x140000
"""What four bytes in UTF-8 can count to."""


@cache
def script_ranges() -> tuple[list[str], npt.NDArray[np.int32]]:
    """Read Unicode's table of scripts: ranges of characters of the same script, in order.

    Returns:
        The code of each range of characters, and where the ranges start, with the end of the last.
    """
    from fontTools.unicodedata import Scripts

    bounds = {*Scripts.RANGES, SURROGATES, AFTER_SURROGATES, AFTER_LAST, AFTER_ALL}
    *starts, end = sorted(bounds)
    codes = [Scripts.VALUES[bisect_right(Scripts.RANGES, start) - 1] for start in starts]
    for nothing in (SURROGATES, AFTER_LAST):
        codes[starts.index(nothing)] = NOTHING
    return codes, np.array([*starts, end], np.int32)


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


def kinds_of(codes: Iterable[str], *, are_allowed: bool) -> Kinds:
    """Ban the characters of some scripts, or those of all others and of none.

    Where others are banned, those that all scripts use are free. Where these are, those of no
    script do not count.
    """
    if are_allowed:
        kinds, default = dict.fromkeys((*codes, *SHARED), FREE), BANNED
    else:
        kinds, default = {**dict.fromkeys(codes, BANNED), UNKNOWN: 0}, FREE
    kinds[NOTHING] = 0
    return np.array([kinds.get(code, default) for code in script_ranges()[0]], np.uint8)
