"""Specs in notebooks: their fields as an HTML table."""

from collections.abc import Iterable, Mapping
from html import escape
from itertools import islice
from reprlib import Repr
from typing import Any, cast

import msgspec

MOST = 12
"""Items of a list that are shown."""

_short = Repr()
_short.maxstring = _short.maxother = 100


def table_of(struct: msgspec.Struct) -> str:
    """Make a table of the fields that are not left at their defaults, a row each.

    It has no colours of its own, so it looks as the notebook's other tables do, light or dark.
    """
    rows = (
        f"<tr><th>{field.name}</th><td>{_cell(value)}</td></tr>"
        for field in msgspec.structs.fields(struct)
        if not _is_default(value := getattr(struct, field.name), field)
    )
    tag = type(struct).__struct_config__.tag or type(struct).__name__
    return f"<table><caption>{tag}</caption>{''.join(rows)}</table>"


def _is_default(value: Any, field: msgspec.structs.FieldInfo) -> bool:
    return type(value) is type(field.default) and value == field.default


def _cell(value: Any) -> str:
    if isinstance(value, msgspec.Struct):
        return table_of(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return _joined((f"{_cell(key)}: {_cell(each)}" for key, each in items), len(items))
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        if items and isinstance(items[0], msgspec.Struct):
            return _joined(map(_cell, items), len(items), "")
        if items and isinstance(items[0], tuple):
            return _joined((f"({_cell(each)})" for each in items), len(items))
        return _joined(map(_cell, items), len(items))
    return escape(_short.repr(value))


def _joined(cells: Iterable[str], count: int, separator: str = ", ") -> str:
    more = f"{separator}and {count - MOST:,} more" if count > MOST else ""
    return separator.join(islice(cells, MOST)) + more
