"""The one exception of the spec layer, and how anything that a client sent is shown."""

from .limits import MAX_MESSAGE, MAX_PATH


class SpecError(ValueError):
    """A spec or payload that cannot mean anything, or that goes beyond a limit.

    Message and path may hold what a client sent. They are safe to print: cut to ``MAX_MESSAGE`` and
    ``MAX_PATH`` characters, with every character escaped that is not printable.

    Attributes:
        message: what is wrong, with the limit in it where there is one.
        path: where, as a JSON path from the object that was constructed or decoded
            (``$.specs[0].token_ids[3]``).
    """

    def __init__(self, message: str, path: str = "$") -> None:
        self.message = shown(message)
        self.path = shown(path, MAX_PATH)
        super().__init__(self.message, self.path)

    def __str__(self) -> str:
        return self.message if self.path == "$" else f"{self.message} - at `{self.path}`"

    def under(self, parent: str) -> "SpecError":
        """The same error, seen from an object that holds the failed one at ``parent``."""
        return SpecError(self.message, parent + self.path.removeprefix("$"))


def shown(text: str, most: int = MAX_MESSAGE) -> str:
    r"""Make text safe for a terminal, a log and an HTTP response.

    Args:
        text: anything.
        most: how many characters to keep; of a longer text, the beginning and the end.

    Returns:
        The text with line breaks, control characters, terminal escapes and marks of direction
        written as ``\n``, ``\x1b`` and ``\u202e``.
    """
    if len(text) > most:
        text = _cut(text, most)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else _escaped(c) for c in text)
    return text if len(text) <= most else _cut(text, most)


def text_of(error: BaseException) -> str:
    """The text of an exception that is not ours, as ``shown`` has it.

    An exception's own ``__str__`` may fail; then the name of its type has to do.
    """
    try:
        return shown(str(error))
    except KeyboardInterrupt:
        raise
    except BaseException:
        return shown(type(error).__name__)


def _cut(text: str, most: int) -> str:
    end = (most - 3) // 3
    return f"{text[: most - 3 - end]}...{text[len(text) - end :]}"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
