"""The tags of a thinking block, in the fields that kinds have in common.

These are ``start_token_ids``, ``end_token_ids``, ``other_start_token_ids`` and
``other_end_token_ids``.
"""

from collections.abc import Iterator
from typing import Any

from .base import check_pattern, check_total
from .errors import Path, SpecError
from .limits import MAX_PATTERN


def start_tags(spec: Any) -> tuple[tuple[int, ...], ...]:
    """Return the tags that begin a block."""
    return spec.start_token_ids, *spec.other_start_token_ids


def end_tags(spec: Any) -> tuple[tuple[int, ...], ...]:
    """Return the tags that end a block."""
    return spec.end_token_ids, *spec.other_end_token_ids


def tags_of(spec: Any) -> Iterator[tuple[Path, tuple[int, ...]]]:
    """Yield the tags with their paths."""
    yield ("start_token_ids",), spec.start_token_ids
    yield ("end_token_ids",), spec.end_token_ids
    for name in ("other_start_token_ids", "other_end_token_ids"):
        for i, tag in enumerate(getattr(spec, name)):
            yield (name, i), tag


def check_tags(spec: Any) -> None:
    """Check the lengths of the tags, and that no two are the same.

    Raises:
        SpecError: with the path of a tag.
    """
    for name in ("start_token_ids", "end_token_ids"):
        tag, others = getattr(spec, name), getattr(spec, f"other_{name}")
        check_pattern(tag, name)
        total = len(tag) + sum(map(len, others))
        check_total(total, MAX_PATTERN, f"token ids with {name}", f"other_{name}")
    if spec.start_token_ids == spec.end_token_ids:
        raise SpecError("The end tag is the same as the start tag", "end_token_ids")
    path_of: dict[tuple[int, ...], Path] = {}
    for path, tag in tags_of(spec):
        if path_of.setdefault(tag, path) != path:
            raise SpecError(("The same as ", path_of[tag]), *path)


def count_edges(spec: Any, newlines: int = 0) -> int:
    """Count the edges of states that look for tags: one for each other tag, two for a newline."""
    counts = ((start_tags(spec), 0), (end_tags(spec), newlines))
    return sum(sum(map(len, tags)) * (4 * (len(tags) - 1) + 2 * lines) for tags, lines in counts)
