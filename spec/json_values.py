"""JSON: the limits of a payload's text, and immutable objects, so that specs can hold them."""

import re
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NoReturn, TypeVar, cast

import msgspec

from .errors import SpecError
from .limits import (
    MAX_DEPTH,
    MAX_EXTREME_NUMBERS,
    MAX_LEVELS,
    MAX_PARTS,
    MAX_PAYLOAD_BYTES,
)

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """An immutable dict, hashed by its content. It is equal to a dict with the same content."""

    __slots__ = ()

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise TypeError("A FrozenDict cannot change")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = _refuse
    setdefault = update = _refuse  # pyright: ignore[reportAssignmentType]

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:  # copies and pickles are made whole, not item by item
        return FrozenDict, (dict(self),)


def frozen_json(value: object) -> Any:
    """Make a JSON value immutable: its objects become ``FrozenDict``, and its arrays tuples.

    The payload limits the number of values.

    Args:
        value: a value that a JSON parser could have made.

    Raises:
        SpecError: with the path below ``value``, for a value that JSON cannot express, an integer
            beyond 64 bits, or more than ``MAX_DEPTH`` levels.
    """
    frozen = _frozen(value, MAX_DEPTH, _PLAIN)
    try:
        msgspec.msgpack.encode(frozen)  # checks all texts, at a fraction of the cost of one by one
    except UnicodeEncodeError:
        return _frozen(value, MAX_DEPTH, frozenset())  # raises at the text
    return frozen


_PLAIN = frozenset({type(None), bool, str})
"""The types of a parser's values that stay as they are, for which no function is called."""


def _frozen(value: Any, levels: int, plain: frozenset[type]) -> Any:
    """Freeze a value of at most ``levels`` levels. Texts of a ``plain`` type are not checked."""
    match value:
        case str():
            return _text(value)
        case None | bool():
            return value
        case int() if -_WORD <= value < _WORD:
            return int(value)
        case float() if isfinite(value):
            return float(value)
        case list() | tuple() | Mapping() if levels == 0:
            raise SpecError(f"Nested more than {MAX_DEPTH} levels deep")
        case list() | tuple():
            items = [*cast("Sequence[Any]", value)]
            for at, item in enumerate(items):
                if type(item) not in plain:
                    try:
                        items[at] = _frozen(item, levels - 1, plain)
                    except SpecError as error:
                        raise error.at(at) from None
            return tuple(items)
        case Mapping():
            fields = dict[str, Any]()
            for key, item in cast("Mapping[Any, Any]", value).items():
                name = key if str in plain and type(key) is str else _text(key)
                try:
                    is_plain = type(item) in plain
                    fields[name] = item if is_plain else _frozen(item, levels - 1, plain)
                except SpecError as error:
                    raise error.at(name) from None
            return FrozenDict(fields)
        case int():
            raise SpecError("Expected an integer of at most 64 bits")
        case float():
            raise SpecError("Expected a finite number")
        case _:
            raise SpecError(f"Expected a JSON value, got {type(value).__name__}")


_WORD = 1 << 63


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise SpecError(f"Expected text as a key, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise SpecError("Expected valid Unicode") from None
    return str(value)


def parts_of(value: object) -> int:
    """Count the parts of a JSON value as ``MAX_PARTS`` does: what it takes to go through it all."""
    return _parts(msgspec.json.encode(value))


def _parts(text: bytes) -> int:
    """Count the parts of a JSON text."""
    arrays, objects = text.count(b"["), text.count(b"{")
    return text.count(b",") + text.count(b":") + 2 * arrays + 4 * objects


_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_NO_BRACKETS = bytes(each for each in range(256) if each not in b"[]{}")


def _is_deeper(text: bytes, most: int) -> bool:
    """Whether a JSON text's arrays and objects have more levels, as far as it is valid."""
    depth = 0
    if text.count(b"[") + text.count(b"{") > most:
        # In valid JSON, each text has a part before it.
        for bracket in _TEXT.sub(b"", text, MAX_PARTS).translate(None, _NO_BRACKETS):
            depth += 1 if bracket in b"[{" else -1
            if not 0 <= depth <= most:
                break
    return depth > most


_DIGITS_AS_0 = bytes.maketrans(b"123456789E", b"000000000e")


def check_limits(text: bytes) -> None:
    """Limit the objects that a JSON parser may make of a text, by counts that need no parser.

    Raises:
        SpecError: beyond ``MAX_PAYLOAD_BYTES``, ``MAX_PARTS``, ``MAX_EXTREME_NUMBERS`` or
            ``MAX_LEVELS``.
    """
    if len(text) > MAX_PAYLOAD_BYTES:
        raise SpecError(f"The payload has {len(text)} bytes; the limit is {MAX_PAYLOAD_BYTES}")
    zeros = text.translate(_DIGITS_AS_0, b"+-")
    numbers = zeros.count(b"0" * 256)
    if zeros.count(b"e") > MAX_EXTREME_NUMBERS:
        numbers += zeros.count(b"e000")
    for got, most, what in (
        (_parts(text), MAX_PARTS, "parts (commas, colons, [ twice, { four times)"),
        (numbers, MAX_EXTREME_NUMBERS, "numbers with three digits of exponent, or 256 in a row"),
    ):
        if got > most:
            raise SpecError(f"Expected a payload with at most {most} {what}, got {got}")
    if _is_deeper(text, MAX_LEVELS):
        raise too_deep()


def too_deep() -> SpecError:
    """Return the error of a payload with more than ``MAX_LEVELS`` levels."""
    return SpecError(f"Expected a payload with at most {MAX_LEVELS} levels of arrays and objects")
