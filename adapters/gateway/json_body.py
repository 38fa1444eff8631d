"""The JSON object in a request's body, of which only the parts that are asked for are decoded.

Most of a body is messages or images, which have no specs. Servers read a body with Python's parser,
which takes more than the standard: NaN, lone surrogates, UTF-16, a byte order mark. What that
parser takes is split here as it would be; what it refuses, a server refuses as well.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import count
from time import sleep
from typing import Any

import msgspec

from ...spec import SpecError

MAX_DECODED = 1 << 17
"""The most bytes of an object or array that is decoded: token ids, words and biases."""

_MANY = 1 << 14
"""With more commas than this, a text is split in steps, between which other threads run. Within
msgspec they do not, and a MB of short values takes it 3 ms, or 40 if they are fields."""

MAX_FIELDS = 1 << 15
"""The most fields of one object that is split, and the most objects of an array. More fields are
one long step in Python's collector, and each object takes microseconds."""

_STEP = 1 << 12
"""So many brackets, commas and strings take a millisecond."""

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])

_TOKEN = re.compile(rb'["\[\]{},]|[^"\[\]{},]{4096}')
_COLON = re.compile(rb"\s*:")


class Fields(Mapping[str, Any]):
    """The fields of a JSON object, each decoded on access.

    Args:
        values: by name, the JSON text.
    """

    def __init__(self, values: dict[str, msgspec.Raw]) -> None:
        self._values: dict[str, msgspec.Raw | Fields] = {**values}

    def __getitem__(self, name: str) -> Any:
        """Decode a field as Python's parser does.

        Raises:
            KeyError: if there is no such field.
            SpecError: if Python cannot decode it, or if it is an object or array of more than
                ``MAX_DECODED`` bytes.
        """
        text = _encoded(self._values[name])
        if len(text) > MAX_DECODED and text[:1] in b"[{":
            raise SpecError.of_field(f"Expected at most {MAX_DECODED} bytes, got {len(text)}", name)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SpecError.of_field(f"Expected JSON that Python can read: {error}", name) from None

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def put(self, name: str, value: Any) -> None:
        """Set a field to a JSON value, or to an object of fields."""
        is_object = isinstance(value, Fields)
        self._values[name] = value if is_object else msgspec.Raw(json.dumps(value).encode())

    def drop(self, name: str) -> None:
        """Remove a field."""
        del self._values[name]

    def is_set(self, name: str) -> bool:
        """Whether there is a field, and it is not null. It is not decoded."""
        return name in self and self._first(name) != b"n"

    def is_nested(self, name: str) -> bool:
        """Whether a field is an object or an array."""
        return self._first(name) in (b"{", b"[")

    def _first(self, name: str) -> bytes:
        """Return the first byte of a field's JSON text, which says what type it has."""
        value = self._values[name]
        return (
            bytes(memoryview(value)[:1]) if isinstance(value, msgspec.Raw) else _encoded(value)[:1]
        )

    def text(self, name: str) -> str:
        """Return the JSON text of a field.

        Raises:
            SpecError: if its bytes are no text.
        """
        try:
            return _encoded(self._values[name]).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise SpecError.of_field("Expected valid Unicode", name) from None

    def object(self, name: str) -> "Fields | None":
        """Return the object in a field, as a part of this one; ``None`` if there is none."""
        if name not in self or self._first(name) != b"{":
            return None
        value = self._values[name]
        if not isinstance(value, Fields):
            value = self._values[name] = self._inner(_encoded(value), name)
        return value

    def objects(self, name: str) -> "Iterator[Fields]":
        """Yield copies of the objects in a field that is an array.

        Raises:
            SpecError: if there are more than ``MAX_FIELDS``.
        """
        if self._first(name) == b"[":
            for i, each in enumerate(_split_array(_encoded(self._values[name]))):
                if i == MAX_FIELDS:
                    raise SpecError.of_field(f"Expected at most {MAX_FIELDS} objects", name)
                yield self._inner(each, name)

    @staticmethod
    def _inner(text: bytes, name: str) -> "Fields":
        try:
            return Fields(_split(text))
        except SpecError as error:
            raise SpecError.of_field(error.message, name) from None
        except ValueError as error:
            raise SpecError.of_field(f"Expected JSON that Python can read: {error}", name) from None

    def encode(self) -> bytes:
        """Encode the object. What has not been decoded stays as it was, to the last byte."""
        fields = (b"%b:%b" % (json.dumps(n).encode(), _encoded(v)) for n, v in self._values.items())
        return b"{%b}" % b",".join(fields)


def join(path: str, name: str) -> str:
    """Return the path of a field of the object at a path; that of the whole body is empty."""
    return f"{path}.{name}" if path else name


def parse(body: bytes) -> Fields | None:
    """Parse a body; return ``None`` if it is not a JSON object, or not JSON at all.

    Raises:
        SpecError: if it has more than ``MAX_FIELDS`` fields.
    """
    encoding = json.detect_encoding(body)
    try:
        if encoding != "utf-8":
            body = body.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
        text = body.strip()
        return Fields(_split(text)) if text.startswith(b"{") else None
    except SpecError:
        raise
    except ValueError:
        return None


def _split(text: bytes) -> dict[str, msgspec.Raw]:
    """Split the text of an object into its fields.

    Raises:
        ValueError: if it is not JSON. Not all that is wrong is found.
        SpecError: if it has more than ``MAX_FIELDS`` fields.
    """
    if text.count(b",") <= _MANY:
        try:
            return _fields.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # not in the standard
    fields = dict[str, msgspec.Raw]()
    name, start = None, 0
    for depth, at, end in _tokens(text):
        first = text[at]
        if first == ord('"') and depth == 1 and name is None:
            if colon := _COLON.match(text, end):
                name, start = json.loads(text[at:end]), colon.end()
        elif name is not None and ((first == ord(",") and depth == 1) or depth == 0):
            fields[name] = msgspec.Raw(text[start:at].strip())
            name = None
            if len(fields) > MAX_FIELDS:
                raise SpecError(f"Expected at most {MAX_FIELDS} fields of one object")
    return fields


def _split_array(text: bytes) -> Iterator[bytes]:
    """Yield the objects in the text of an array."""
    start = 0
    for depth, at, end in _tokens(text):
        if text[at] == ord("{") and depth == 2:
            start = at
        elif text[at] == ord("}") and depth == 1:
            yield text[start:end]


def _tokens(text: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield brackets, commas and strings: the depth after each, its start and its end."""
    depth = at = 0
    for step in count(1):
        if step % _STEP == 0:
            sleep(1e-6)  # has the event loop go on at once, and not after Python's 5 ms
        if (token := _TOKEN.search(text, at)) is None:
            return
        start, at = token.span()
        match text[start]:
            case 0x5B | 0x7B:  # [ {
                depth += 1
            case 0x5D | 0x7D:  # ] }
                depth -= 1
            case 0x22:  # "
                at = _end_of_string(text, at)
            case 0x2C:  # ,
                pass
            case _:  # a piece of white space or of a number
                continue
        yield depth, start, at


def _end_of_string(text: bytes, at: int) -> int:
    """Return the end of the string that begins before an index.

    Raises:
        ValueError: if it has none.
    """
    while True:
        quote = at = text.index(b'"', at)
        while text[at - 1] == 0x5C:  # a backslash; two are one that escapes nothing
            at -= 1
        if (quote - at) % 2 == 0:
            return quote + 1
        at = quote + 1


def _encoded(value: msgspec.Raw | Fields) -> bytes:
    return value.encode() if isinstance(value, Fields) else bytes(value)
