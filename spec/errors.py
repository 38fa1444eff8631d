"""The only exception of the spec layer, and the safe display of text from clients."""

from collections.abc import Callable, Sequence

from .limits import MAX_MESSAGE, MAX_PATH


class Key(str):
    """A key of an object that is data, such as a token id: ``$.bias[5]``."""

    __slots__ = ()


class Name(str):
    """What a path begins with instead of ``$``: a field of a request, outside of its payload."""

    __slots__ = ()


Path = tuple[str | int, ...]
"""The names and indices that lead to a value: ``("specs", 3, "token_ids")``."""

Message = str | Sequence[str | Path]
"""A text, or texts and the paths of other specs between them. The paths move with the error."""


class SpecError(ValueError):
    """An error in a spec or payload that has no meaning or exceeds a limit.

    Message and path may hold text from a client. They are safe to print: cut to ``MAX_MESSAGE`` and
    ``MAX_PATH`` characters, with all unprintable characters escaped.

    ``SpecError("Too long", "specs", 3, "token_ids")`` reads
    ``Too long - at `$.specs[3].token_ids```.

    Attributes:
        parts: the description of the error, with the limit if there is one; see ``Message``.
        location: the path of the error, from the object that was constructed or decoded.
    """

    def __init__(self, message: Message, *location: str | int) -> None:
        parts = (message,) if isinstance(message, str) else message
        # Caches keep errors, so parts are cut here. Twice the length leaves the end to ``message``.
        self.parts = tuple(
            shown(each, 2 * MAX_MESSAGE) if isinstance(each, str) else _cut_path(each)
            for each in parts
        )
        self.location = _cut_path(location)
        super().__init__(self.parts, *self.location)

    @classmethod
    def of_field(cls, message: Message, field: str) -> "SpecError":
        """Make the error of a request's own field: its path, outside of the payload, is a text."""
        return cls(message, Name(field))

    @property
    def message(self) -> str:
        """The description as text."""
        return shown(
            "".join(each if isinstance(each, str) else _quoted(each) for each in self.parts)
        )

    @property
    def path(self) -> str:
        """The location as a JSON path: ``$.specs[0].token_ids[3]``."""
        return shown(path_text(self.location), MAX_PATH)

    def __str__(self) -> str:
        return f"{self.message} - at `{self.path}`" if self.location else self.message

    def at(self, *parents: str | int) -> "SpecError":
        """Return this error for an object that holds the failed object at ``parents``."""
        return self.moved(lambda path: (*parents, *path))

    def specs_at(self, path_of: Callable[[int], Path]) -> "SpecError":
        """Return this error with ``path_of(i)`` in place of each ``("specs", i)``."""

        def move(path: Path) -> Path:
            match path:
                case ("specs", int(i), *within):
                    return (*path_of(i), *within)
                case _:
                    return path

        return self.moved(move)

    def moved(self, move: Callable[[Path], Path]) -> "SpecError":
        """Return this error with each path moved that begins at ``$``."""

        def moved(path: Path) -> Path:
            return path if _is_outside(path) else move(path)

        parts = [each if isinstance(each, str) else moved(each) for each in self.parts]
        return SpecError(parts, *moved(self.location))


def path_text(path: Path) -> str:
    """Write a path as a JSON path: ``$.bias[5]`` for ``("bias", Key("5"))``."""
    text = "" if _is_outside(path) else "$"
    for each in path:
        match each:
            case Name():
                text += each
            case int() | Key():
                text += f"[{each}]"
            case _:
                text += f".{each}"
    return text


def shown(text: str, most: int = MAX_MESSAGE) -> str:
    r"""Make text safe for a terminal, a log and an HTTP response.

    Args:
        text: anything.
        most: the number of characters to keep; of a longer text, the beginning and the end.

    Returns:
        The text with line breaks, control characters, terminal escapes and marks of direction
        written as ``\n``, ``\x1b`` and ``\u202e``.
    """
    if len(text) > most:
        text = _cut(text, most)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return text if len(text) <= most else _cut(text, most)


def text_of(error: BaseException) -> str:
    """Return the text of an exception that is not ours, made safe by ``shown``.

    An exception's own ``__str__`` may fail; then the text is the name of its type.
    """
    try:
        return shown(str(error))
    except KeyboardInterrupt:
        raise
    except BaseException:
        return shown(type(error).__name__)


_JSON_TYPES: dict[type, str] = {type(None): "null", dict: "object", list: "array"}


def type_of(value: object) -> str:
    """Return the name of a value's type: JSON's where msgspec's errors have it, else Python's."""
    return _JSON_TYPES.get(type(value), type(value).__name__)


def _is_outside(path: Path) -> bool:
    return isinstance(next(iter(path), None), Name)


def _quoted(path: Path) -> str:
    return path_text(path) if _is_outside(path) else f"`{path_text(path)}`"


def _cut_path(path: Path) -> Path:
    most = 2 * MAX_PATH
    return tuple(each if isinstance(each, int) else type(each)(shown(each, most)) for each in path)


def _cut(text: str, most: int) -> str:
    end = (most - 3) // 3
    return f"{text[: most - 3 - end]}...{text[len(text) - end :]}"
