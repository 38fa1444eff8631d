"""JSON objects that cannot change, so that a spec which holds one is a value like any other."""

import math
from collections.abc import Collection, Mapping
from typing import Any, NoReturn, TypeVar, cast

from .errors import SpecError
from .limits import MAX_DEPTH, MAX_JSON_VALUES

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict that cannot change, hashed by its content. It is equal to a dict of that content."""

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
    """A JSON value with its objects as ``FrozenDict`` and its arrays as tuples.

    Args:
        value: what a JSON parser could have made.

    Raises:
        SpecError: with the path below ``value``, for anything that JSON cannot say, integers
            beyond 64 bits included, and beyond ``MAX_DEPTH`` levels or ``MAX_JSON_VALUES`` values.
    """
    return _frozen(value, MAX_DEPTH, [MAX_JSON_VALUES])


_WORD = 1 << 63
_ATOMS = frozenset({type(None), bool})
_ARRAYS = frozenset({list, tuple})
_OBJECTS = frozenset({dict, FrozenDict})


def _frozen(value: Any, levels: int, left: list[int]) -> Any:
    """``frozen_json``, given how many levels and values may come yet.

    What a parser makes has one of a few exact types. They are told apart by those, at a tenth of
    the cost of asking whether a value is a ``Mapping``.
    """
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind in _ATOMS:
        return value
    if kind is str:
        return value if value.isascii() else _text(value)
    if kind is int and -_WORD <= value < _WORD:
        return value
    if kind is float and math.isfinite(value):
        return value
    if kind in _ARRAYS:
        return tuple(_frozen_all(value, None, levels, left))
    if kind in _OBJECTS:
        keys = [key if type(key) is str and key.isascii() else _text(key) for key in value]
        return FrozenDict(zip(keys, _frozen_all(value.values(), keys, levels, left), strict=True))
    return _plain(value, levels, left)


def _frozen_all(
    values: Collection[Any], keys: list[str] | None, levels: int, left: list[int]
) -> list[Any]:
    """The values of an array, or of an object that has these keys."""
    if levels == 0:
        raise SpecError(f"Nested more than {MAX_DEPTH} levels deep")
    left[0] -= len(values)
    if left[0] < 0:
        raise SpecError(f"Expected at most {MAX_JSON_VALUES} values in all")
    items: list[Any] = []
    try:
        for value in values:
            kind = type(value)  # pyright: ignore[reportUnknownVariableType]
            if kind in _ATOMS or (kind is str and value.isascii()):  # most are; spare the call
                items.append(value)
            else:
                items.append(_frozen(value, levels - 1, left))
    except SpecError as error:
        at = len(items)
        raise error.under(f"$[{at}]" if keys is None else f"$.{keys[at]}") from None
    return items


def _plain(value: Any, levels: int, left: list[int]) -> Any:
    """What has none of the types that a parser makes, or no value that JSON can say."""
    match value:
        case int() if -_WORD <= value < _WORD:
            return int(value)
        case int():
            raise SpecError("Expected an integer of at most 64 bits")
        case float() if math.isfinite(value):
            return float(value)
        case float():
            raise SpecError("Expected a finite number")
        case str():
            return _text(value)
        case list() | tuple():
            return _frozen(tuple(cast("list[object]", value)), levels, left)
        case Mapping():
            return _frozen(dict(cast("Mapping[object, object]", value)), levels, left)
        case _:
            raise SpecError(f"Expected a JSON value, got {type(value).__name__}")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise SpecError(f"Expected text as a key, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise SpecError("Expected valid Unicode") from None
    return str(value)
