"""The key under which a request carries its payload, and the checks for specs beside it."""

import json
import re
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from typing import Any
from unicodedata import normalize

from ...spec import SpecError
from ...spec.base import kind_of
from ...spec.kinds import WIRE_KINDS

KEY = "logitport"
"""The name of the payload in a request's own parameters, on every engine."""

_NEAR = 0.77
"""From this ratio on, a name is a misspelt key: two letters of nine may be wrong or swapped."""

_LENGTHS = range(6, 15)
"""The lengths of a name that can have this ratio."""

_COUNTS = {letter: KEY.count(letter) for letter in KEY}
_NO_LETTER = re.compile(r"[\W_]+")

_QUOTE = r'\\{0,8}"'  # in a JSON text within a text, quotes are escaped
SPEC = re.compile(
    rf'"kind{_QUOTE}\s*:\s*{_QUOTE}({"|".join(sorted(map(kind_of, WIRE_KINDS)))})\\*"'
)
"""A spec in a JSON text, or in a JSON text within it."""

_BARE = "kind", "spec", "specs", "payload"
"""Names under which clients put specs, where the key is missing."""


def check_spelling(names: Iterable[object], path: str, key: str = KEY) -> None:
    """Refuse a name that is a misspelt key: an engine would ignore what is under it.

    Args:
        names: keys of an object of the request, as the client wrote them.
        path: path of the object.
        key: the key that is right there, ``KEY`` or a name with ``KEY`` in it.

    Raises:
        SpecError: for ``logit_port``, ``logitprot``, ``logitport_spec`` and alike.
    """
    for name in names:
        if name != key and isinstance(name, str) and is_near(name):
            raise SpecError.of_field(f"Expected the key `{key}`, got {name!r}", path)


def check_bare(arguments: Mapping[str, Any], path: str, place: str | None) -> None:
    """Refuse specs that are not under the key, as objects or as JSON text: no engine reads them.

    Args:
        arguments: an object that may hold a payload.
        path: path of the object.
        place: where this request's specs are expected, without the key; ``None`` for nowhere.

    Raises:
        SpecError: for ``{"specs": [...]}``, ``{"payload": "[...]"}``, ``{"kind": "dry"}``.
    """
    for name in _BARE:
        if name in arguments and SPEC.search(
            json.dumps({name: arguments[name]}, skipkeys=True, default=repr)
        ):
            where = f"{path}.{name}" if path else name
            what = f"Expected specs in `{place}.{KEY}`" if place else "This route takes no specs"
            raise SpecError.of_field(what, where)


def is_near(name: str) -> bool:
    """Whether a name is the key, has the key in it, or is nearly the key."""
    letters = similar_letters(name)
    return KEY in letters or (
        bool(letters) and SequenceMatcher(None, letters, KEY).ratio() >= _NEAR
    )


def similar_letters(name: str) -> str:
    """Return a name's letters and digits, if enough are the key's; else an empty text.

    Whether they are in the right order takes ten times as long to find out. Full-width letters and
    the like count as plain ones.
    """
    if len(name) < _LENGTHS.start or len(name) > 64:
        return ""
    letters = _NO_LETTER.sub("", normalize("NFKC", name).casefold())
    if KEY in letters:
        return letters
    if len(letters) not in _LENGTHS:
        return ""
    shared = sum(min(letters.count(letter), most) for letter, most in _COUNTS.items())
    return letters if 2 * shared >= _NEAR * (len(KEY) + len(letters)) else ""
