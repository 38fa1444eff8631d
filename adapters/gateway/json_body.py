"""The JSON object in a request's body, and whether the body can be of interest at all.

Servers read a body with Python's parser, which takes more than the standard: NaN, lone surrogates,
UTF-16, a byte order mark. The same parser reads it here, once, if a name in the body asks for it.
What that parser refuses, a server refuses as well.
"""

import json
import re
from codecs import IncrementalDecoder, getincrementaldecoder
from collections.abc import Iterator, Set
from contextlib import suppress
from functools import lru_cache
from typing import Any

from ...spec import SpecError
from ...spec.limits import MAX_BODY_BYTES
from .key import SPEC, is_near, similar_letters

Fields = dict[str, Any]
"""The fields of a JSON object."""

CONTAINERS = frozenset(
    ("custom_params", "extra_args", "extra_body", "instances", "options", "parameters")
) | {"sampling_params", "vllm_xargs"}
"""The request fields that may hold a payload, over all engines; ``instances`` is Vertex's, and
``options`` Ollama's. They may be nested, or be lists with one object for each prompt."""

MAX_NESTED = 4
"""The depth to which nested containers are searched."""

MAX_SIMILAR = 64
"""The most names in a body with the letters of the key, each of which takes 20 microseconds."""

MAX_CANDIDATES = 1 << 14
"""The most names that may be such names, each of which takes 3 microseconds."""

_LONGEST = 400
"""The characters of a name that is found, of which an escape takes six."""

_STEP = 1 << 18
"""So many characters are searched at a time, between which other threads run."""

_SPACES = re.compile(r"\s*")

_LETTERS = r"logitprLOGITPR\x80-\U0010ffff"
_CANDIDATE = re.compile(
    rf'"((?:(?:[^"\\{_LETTERS}]|\\(?!u))*+(?:[{_LETTERS}]|\\u)){{6}}[^"]{{0,{_LONGEST}}}+)(?="\s*:)'
)
"""A name that may be similar to the key: it has six of its letters, or others than ASCII's. Its end
may be the beginning of the next, as a string of a message ends like one begins."""


class Parts:
    """The text of a body, which may come in parts: a name may begin in one and end in the next."""

    def __init__(self) -> None:
        self._decoder: IncrementalDecoder | None = None
        self._end = ""

    def text_of(self, part: bytes) -> str | None:
        """Decode a part as Python's JSON parser does; return ``None`` if it is no text.

        The end of the part before comes first, without the white space that may follow a name.
        """
        if self._decoder is None:
            self._decoder = getincrementaldecoder(json.detect_encoding(part))("surrogatepass")
        text: str | None = None
        with suppress(UnicodeDecodeError):
            text = self._end + self._decoder.decode(part)
            self._end = text.rstrip(" \t\r\n")[-_LONGEST:]
        return text


def keys_in(text: str, names: frozenset[str]) -> frozenset[str] | None:
    """Return the names in a JSON text that are the key, or nearly; the text is not parsed.

    Strings of messages that look like names are found, too. In a text beyond the limit for bodies,
    the first name is enough.

    Args:
        text: the text of a body.
        names: names that are of interest besides the key; so is each with an escaped letter.

    Returns:
        The names; ``None`` if nothing is of interest, which includes specs under other names.

    Raises:
        SpecError: for too many names with the letters of the key.
    """
    if "\\u0022" in text:  # some clients escape quotes
        text = text.replace("\\u0022", '"')
    others = _pattern(names, has_escapes="\\u00" in text)
    seen, similar, start = set[str](), set[str](), 0
    is_any = SPEC.search(text) is not None
    while start < len(text) and not (is_any and len(text) > MAX_BODY_BYTES):
        begin = max(0, start - _LONGEST)
        start = _SPACES.match(text, start + _STEP).end() + 1  # pyright: ignore
        is_any = is_any or others.search(text, begin, start) is not None
        found = set(_CANDIDATE.findall(text, begin, start)) - seen
        if len(seen := seen | found) <= MAX_CANDIDATES:
            similar.update(filter(similar_letters, map(_name, found)))
        if len(seen) > MAX_CANDIDATES or len(similar) > MAX_SIMILAR:
            raise SpecError("Expected fewer names that have the letters of `logitport`")
        is_any = is_any or any(map(is_near, similar))
    return frozenset(filter(is_near, similar)) if is_any else None


@lru_cache(8)
def _pattern(names: frozenset[str], *, has_escapes: bool) -> re.Pattern[str]:
    """Match a name, or one with an escape that may hide a letter."""
    escaped = [r'[^"\\]*+\\+u00[4-7][^"]*+'] if has_escapes else []
    return re.compile(rf'"(?:{"|".join([*escaped, *map(re.escape, names)]) or "(?!)"})"\s*:')


def _name(raw: str) -> str:
    """Return a name without its escapes."""
    name = raw.rstrip("\\")  # the quote is escaped in a JSON text within a text, as may be others
    with suppress(ValueError):
        for _ in range(3):
            if "\\" in name:
                name = json.loads(f'"{name}"', strict=False)
    return name


def parse(text: str, *, is_strict: bool = False) -> Fields | None:
    """Parse a body; return ``None`` if it is not a JSON object, or not JSON at all.

    Args:
        text: the text of the body.
        is_strict: refuse an object that has a name twice, of which parsers take either value.

    Raises:
        SpecError: for a name that comes twice.
        RecursionError: for JSON that is nested too deeply.
    """
    try:
        parsed = json.loads(text, object_pairs_hook=_once if is_strict else None)
    except SpecError:
        raise
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _once(pairs: list[tuple[str, Any]]) -> Fields:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen = set[str]()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise SpecError(f"Expected `{twice}` once in an object")
    return fields


def encode(value: Any, *, is_ascii: bool = True) -> str:
    """Encode what was parsed: each value is read again as the same value, in the same order."""
    return json.dumps(value, ensure_ascii=is_ascii, separators=(",", ":"))


def join(path: str, name: str) -> str:
    """Return the path of a field of the object at a path; that of the whole body is empty."""
    return f"{path}.{name}" if path else name


def inner(value: Any, *names: str) -> Fields | None:
    """Return the object that is so deep in an object; ``None`` if there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else None


Container = tuple[str, Fields, Fields]
"""The path of an object, the object, and the object around it."""


def containers(fields: Fields, keys: Set[str] = frozenset()) -> Iterator[Container]:
    """Yield the request, the objects in its fields, and those in ``CONTAINERS`` within.

    Of the objects in other lists, such as messages and their parts, and of the containers within,
    it yields those with one of the keys.
    """
    yield "", fields, fields
    for name, value in [*fields.items()]:  # which the caller may change
        if name in CONTAINERS:
            yield from _nested(name, value, fields, MAX_NESTED)
        elif isinstance(value, dict):
            yield name, value, fields
        elif isinstance(value, list) and keys:
            nested = _nested(name, value, fields, MAX_NESTED, CONTAINERS | {"content"})
            yield from (each for each in nested if not keys.isdisjoint(each[1]))


def _nested(
    path: str, value: Any, owner: Fields, nested: int, names: Set[str] = CONTAINERS
) -> Iterator[Container]:
    """Yield the objects in a container, or in a list of them."""
    if isinstance(value, list):
        for i, each in enumerate(value):
            if isinstance(each, dict):
                yield from _nested(f"{path}[{i}]", each, owner, nested, names)
    elif isinstance(value, dict) and nested:
        yield path, value, owner
        for name in names & value.keys():
            yield from _nested(join(path, name), value[name], value, nested - 1, names)
