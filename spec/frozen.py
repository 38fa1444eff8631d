"""JSON objects that cannot change, so that a spec which holds one is a value like any other."""

import math
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar, cast

from .errors import SpecError
from .limits import MAX_DEPTH

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict that cannot change, hashed by its content. It is equal to a dict of that content."""

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise TypeError("A FrozenDict cannot change")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = _refuse
    setdefault = update = _refuse  # pyright: ignore[reportAssignmentType]

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:  # copies and pickles are made whole, not item by item
        return FrozenDict, (dict(self),)


def frozen_json(value: object, levels: int = MAX_DEPTH) -> Any:
    """A JSON value with its objects as ``FrozenDict`` and its arrays as tuples.

    Args:
        value: what a JSON parser could have made.
        levels: how deep it may nest.

    Raises:
        SpecError: with the path below ``value``, for anything that JSON cannot say, integers
            beyond 64 bits included.
    """
    match value:
        case None | bool():
            return value
        case int() if -(1 << 63) <= value < 1 << 63:
            return int(value)
        case int():
            raise SpecError("Expected an integer of at most 64 bits")
        case float() if math.isfinite(value):
            return float(value)
        case float():
            raise SpecError("Expected a finite number")
        case str():
            return _text(value)
        case list() | tuple() | Mapping() if levels == 0:
            raise SpecError(f"Nested more than {MAX_DEPTH} levels deep")
        case list() | tuple():
            items = enumerate(cast("list[object]", value))
            return tuple([_below(i, item, levels) for i, item in items])
        case Mapping():
            fields = cast("Mapping[object, object]", value).items()
            return FrozenDict({_text(key): _below(key, item, levels) for key, item in fields})
        case _:
            raise SpecError(f"Expected a JSON value, got {type(value).__name__}")


def _below(key: object, value: object, levels: int) -> Any:
    try:
        return frozen_json(value, levels - 1)
    except SpecError as error:
        raise error.under(f"$[{key}]" if isinstance(key, int) else f"$.{key}") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise SpecError(f"Expected text as a key, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise SpecError("Expected valid Unicode") from None
    return str(value)
