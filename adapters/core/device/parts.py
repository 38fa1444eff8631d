"""Parts of a step's edits that are written as a whole, and again if that fails."""

from collections.abc import Callable
from typing import Any, Protocol, Self

from ..automaton import Ints


class Part(Protocol):
    """A part of a step's edits that is written as a whole."""

    @property
    def rows(self) -> Ints:
        """The rows that the part edits, each at least once."""
        ...

    def of_row(self, row: int, /) -> Self:
        """Return the edits of one of the rows."""
        ...


def attempt(
    failed: dict[int, Exception], write: Callable[..., None], part: Part, *target: Any
) -> None:
    """Write a part of the edits: if it fails, write it again, and then row by row.

    Earlier parts are not written again, because biases would be added twice. ``write`` takes the
    part and the target; ``failed`` gets the rows whose edits still fail, with the reason.
    """
    for _ in range(2):
        try:
            write(part, *target)
            return
        except Exception:
            continue
    for row in set(part.rows.tolist()):
        try:
            write(part.of_row(row), *target)
        except Exception as error:
            failed[row] = error
