"""The key under which a request carries its payload, and the check for misspelt keys."""

import re
from collections.abc import Iterable

from ...spec import SpecError

KEY = "logitport"
"""The name of the payload in a request's own parameters, on every engine."""

MAX_TYPOS = 2
"""The most letters that are left out, added or replaced in a misspelt key; two that are swapped
count twice."""

_PARTS = "log", "itp", "ort"
"""With so few typos, one of these parts of the key is still there."""

_NO_LETTER = re.compile(r"[\W_]+")


def check_spelling(names: Iterable[object], path: str, key: str = KEY) -> None:
    """Refuse a name that is a misspelt key: an engine would ignore what is under it.

    Args:
        names: keys of an object of the request, as the client wrote them.
        path: path of the object.
        key: the key that is right there, ``KEY`` or a name with ``KEY`` in it.

    Raises:
        SpecError: for ``logit_port``, ``logitprot``, ``LogitsPort``, ``logitport_spec`` and alike.
    """
    for name in names:
        if name != key and isinstance(name, str) and _is_misspelt(name):
            raise SpecError.of_field(f"Expected the key `{key}`, got {name!r}", path)


def _is_misspelt(name: str) -> bool:
    if len(name) > 64:
        return False
    letters = _NO_LETTER.sub("", name.lower())
    if KEY in letters:
        return True
    near = abs(len(letters) - len(KEY)) <= MAX_TYPOS and any(part in letters for part in _PARTS)
    return near and _are_near(letters, KEY, MAX_TYPOS)


def _are_near(a: str, b: str, typos: int) -> bool:
    """Whether so many typos make one text of the other: Levenshtein's distance, bounded."""
    if not a or not b:
        return len(a) + len(b) <= typos
    if a[0] == b[0]:
        return _are_near(a[1:], b[1:], typos)
    return typos > 0 and (
        _are_near(a[1:], b[1:], typos - 1)
        or _are_near(a[1:], b, typos - 1)
        or _are_near(a, b[1:], typos - 1)
    )
