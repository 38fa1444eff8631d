"""Immutable JSON objects, so that a spec which holds one is a value like any other spec."""

import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, NoReturn, TypeVar, cast

import msgspec

from .errors import Path, SpecError
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
    frozen = _frozen(value, MAX_DEPTH)
    try:
        msgspec.msgpack.encode(frozen)  # checks all texts, at a fraction of the cost of one by one
    except UnicodeEncodeError:
        raise SpecError("Expected valid Unicode", *next(_invalid_texts(frozen))) from None
    return frozen


def parts_of(value: object) -> int:
    """Count the parts of a JSON value as ``MAX_PARTS`` does: what it takes to go through it all."""
    return parts(msgspec.json.encode(value))


def parts(text: bytes) -> int:
    """Count the parts of a JSON text."""
    arrays, objects = text.count(b"["), text.count(b"{")
    return text.count(b",") + text.count(b":") + 2 * arrays + 4 * objects


_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_NO_BRACKETS = bytes(each for each in range(256) if each not in b"[]{}")


def is_deeper(text: bytes, most: int) -> bool:
    """Whether a JSON text's arrays and objects have more levels, as far as it is valid."""
    depth = 0
    if text.count(b"[") + text.count(b"{") > most:
        # In valid JSON, each text has a part before it.
        for bracket in _TEXT.sub(b"", text, MAX_PARTS).translate(None, _NO_BRACKETS):
            depth += 1 if bracket in b"[{" else -1
            if not 0 <= depth <= most:
                break
    return depth > most


def _invalid_texts(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of each text that is not valid Unicode; for a key, that of its object."""
    match value:
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                yield path
        case tuple():
            for at, item in enumerate(cast("tuple[Any, ...]", value)):
                yield from _invalid_texts(item, (*path, at))
        case FrozenDict():
            for key, item in cast("FrozenDict[str, Any]", value).items():
                yield from _invalid_texts(key, path)
                yield from _invalid_texts(item, (*path, key))
        case _:
            pass


_WORD = 1 << 63
_ATOMS = frozenset({str, bool, type(None)})


def _frozen(value: Any, levels: int) -> Any:
    """Freeze a value of at most so many levels; raise if JSON cannot express it."""
    # A parser's values have one of a few exact types, which are compared at a tenth of the cost of
    # asking whether a value is a ``Mapping``.
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind in _ATOMS:
        return value
    if kind is int:
        if not -_WORD <= value < _WORD:
            raise SpecError("Expected an integer of at most 64 bits")
        return value
    if kind is float:
        if not isfinite(value):
            raise SpecError("Expected a finite number")
        return value
    if kind is not dict and kind is not list:
        return _frozen(_plain(value), levels)
    if levels == 0:
        raise SpecError(f"Nested more than {MAX_DEPTH} levels deep")
    at, inner = None, list[Any]()
    try:
        for at, item in value.items() if kind is dict else enumerate(value):  # noqa: B007
            inner.append(_frozen(item, levels - 1))
    except SpecError as error:
        raise error.at(cast("Any", at)) from None
    return tuple(inner) if kind is list else FrozenDict(zip(map(_text, value), inner, strict=True))


def _plain(value: object) -> Any:
    """Return a value of the type that a parser has for it."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, list | tuple):
        return [*cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    raise SpecError(f"Expected a JSON value, got {type(value).__name__}")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise SpecError(f"Expected text as a key, got {type(value).__name__}")
    return str(value)


_DIGITS_AS_0 = bytes.maketrans(b"123456789E", b"000000000e")


def check_text(text: bytes) -> None:
    """Limit the objects that a parser may make of a payload's text, by counts without a parser.

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
        (parts(text), MAX_PARTS, "parts (commas, colons, [ twice, { four times)"),
        (numbers, MAX_EXTREME_NUMBERS, "numbers with three digits of exponent, or 256 in a row"),
    ):
        if got > most:
            raise SpecError(f"Expected a payload with at most {most} {what}, got {got}")
    if is_deeper(text, MAX_LEVELS):
        raise payload_too_deep()


def payload_too_deep() -> SpecError:
    """Make the error for a payload that is nested too deeply."""
    return SpecError(f"Expected a payload with at most {MAX_LEVELS} levels of arrays and objects")
