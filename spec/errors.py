"""The one exception of the spec layer."""


class SpecError(ValueError):
    """A spec or payload that cannot mean anything, or that goes beyond a limit.

    Attributes:
        message: what is wrong, with the limit in it where there is one.
        path: where, as a JSON path from the object that was constructed or decoded
            (``$.specs[0].token_ids[3]``).
    """

    def __init__(self, message: str, path: str = "$") -> None:
        super().__init__(message, path)
        self.message = message
        self.path = path

    def __str__(self) -> str:
        return self.message if self.path == "$" else f"{self.message} - at `{self.path}`"

    def under(self, parent: str) -> "SpecError":
        """The same error, seen from an object that holds the failed one at ``parent``."""
        return SpecError(self.message, parent + self.path.removeprefix("$"))
