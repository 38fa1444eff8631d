"""End a reply where its program leaves no token: the program's end token is forced."""

from typing import Any

import numpy as np

from ..automaton.automata import Automata
from .editors import Editor, Indices
from .requests import Request

_NO_ROWS: tuple[Any, int, Indices, Indices] = None, -1, np.zeros(0, np.int64), np.zeros(0, np.int64)


class LastResort:
    """The end tokens of a batch's requests.

    A request's end token is forced in a row where only banned tokens are left, and where a token
    was forced before the edits of this realizer, which ban it.
    """

    def __init__(self) -> None:
        self._of: dict[Request, int] = {}
        self._rows = _NO_ROWS
        self._forced: Any = None

    def put(self, request: Request, token: int | None) -> None:
        """Set the end token of a request, if it has one."""
        if token is not None:
            self._of[request] = token

    def remove(self, request: Request) -> None:
        """Remove the end token of a request, if it has one."""
        self._of.pop(request, None)
        if not self._of:
            self._rows = _NO_ROWS

    def look(self, logits: Any, editor: Editor) -> None:
        """Note the rows with a forced token, before the edits of a step.

        Args:
            logits: ``[rows, columns]``, before all edits.
            editor: the editor of the logits.
        """
        if self._of:
            self._forced = editor.find_forced(logits)

    def apply(self, logits: Any, editor: Editor, automata: Automata) -> None:
        """Force the end tokens.

        Args:
            logits: ``[rows, columns]``, after all edits.
            editor: the editor of the logits.
            automata: those of all requests; their generation changes with the rows.
        """
        if not self._of:
            return
        known, generation, rows, tokens = self._rows
        if known is not automata or generation != automata.generation:
            rows = np.array([request.row for request in self._of])
            tokens = np.array([*self._of.values()])
            self._rows = automata, automata.generation, rows, tokens
        editor.end_where_banned(logits, self._forced, rows, tokens)
