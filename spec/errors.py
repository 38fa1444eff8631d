"""The only exception of the spec layer, and the safe display of text from clients."""

from .limits import MAX_MESSAGE, MAX_PATH


class SpecError(ValueError):
    """An error in a spec or payload that has no meaning or exceeds a limit.

    Message and path may hold text from a client. They are safe to print: cut to ``MAX_MESSAGE`` and
    ``MAX_PATH`` characters, with all unprintable characters escaped.

    Attributes:
        message: the description of the error, with the limit if there is one.
        path: the place of the error, as a JSON path from the object that was constructed or decoded
            (``$.specs[0].token_ids[3]``).
    """

    def __init__(self, message: str, path: str = "$") -> None:
        self.message = shown(message)
        self.path = shown(path, MAX_PATH)
        super().__init__(self.message, self.path)

    def __str__(self) -> str:
        return self.message if self.path == "$" else f"{self.message} - at `{self.path}`"

    def under(self, parent: str) -> "SpecError":
        """Return this error for an object that holds the failed object at ``parent``."""
        return SpecError(self.message, parent + self.path.removeprefix("$"))


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


def _cut(text: str, most: int) -> str:
    end = (most - 3) // 3
    return f"{text[: most - 3 - end]}...{text[len(text) - end :]}"
