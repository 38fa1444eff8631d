"""What to write in place of an unknown name."""

from collections.abc import Iterable

MAX_NAME = 64
"""The characters of a name that is compared with others: the time grows with the square."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Ask for the known name that is nearest; return an empty text if none is near."""
    from difflib import get_close_matches  # for errors alone

    close = get_close_matches(name, known, 1) if len(name) <= MAX_NAME else ()
    return f"did you mean {close[0]}?" if close else ""


def instead_of(name: str, known: Iterable[str]) -> str:
    """Ask for the nearest known name, or list all."""
    known = sorted(known)
    return nearest(name, known) or f"there are {', '.join(known)}"
