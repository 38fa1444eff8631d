"""The tokens that come where a guard has left nothing but banned tokens."""

from typing import Any

import numpy as np

from .advance import Automata
from .editors import Editor, Indices
from .requests import Request

_NO_ROWS: tuple[Any, int, Indices, Indices] = None, -1, np.zeros(0, np.int64), np.zeros(0, np.int64)


class EndTokens:
    """The end tokens of the requests that no banned token may enter."""

    def __init__(self) -> None:
        self._of: dict[Request, int] = {}
        self._rows = _NO_ROWS

    def put(self, request: Request, token: int | None) -> None:
        """Set the end token of a request, if it has one."""
        if token is not None:
            self._of[request] = token

    def remove(self, request: Request) -> None:
        """Remove the end token of a request, if it has one."""
        self._of.pop(request, None)
        if not self._of:
            self._rows = _NO_ROWS

    def apply(self, logits: Any, editor: Editor, automata: Automata) -> None:
        """Force the end token in each row whose highest logit is that of a banned token.

        Args:
            logits: ``[rows, columns]``, after all edits.
            editor: the editor of the logits.
            automata: those of all requests; their generation tells when rows have changed.
        """
        if not self._of:
            return
        known, generation, rows, tokens = self._rows
        if known is not automata or generation != automata.generation:
            rows = np.array([request.row for request in self._of])
            tokens = np.array([*self._of.values()])
            self._rows = automata, automata.generation, rows, tokens
        editor.end_where_banned(logits, rows, tokens)
