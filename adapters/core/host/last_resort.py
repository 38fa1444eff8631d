"""End a reply where its program leaves no token: the program's end token is forced."""

from typing import Any

import numpy as np

from ..automaton.automata import Automata
from .editors import Editor


class LastResort:
    """The end tokens of a batch's requests.

    A request's end token is forced in a row where only banned tokens are left, and where a token
    was forced before the edits of this realizer, which ban it.
    """

    def __init__(self) -> None:
        self._of: tuple[Automata | None, int] = None, -1
        self._rows = self._tokens = np.zeros(0, np.int64)
        self._forced: Any = None

    def look(self, logits: Any, editor: Editor, automata: Automata) -> None:
        """Note the rows with a forced token, before the edits of a step.

        Args:
            logits: ``[rows, columns]``, before all edits.
            editor: the editor of the logits.
            automata: those of all requests; their generation changes with the rows.
        """
        if self._of != (automata, automata.generation):
            ending = [each for each in automata.requests if each.end_token is not None]
            self._rows = np.array([each.row for each in ending], np.int64)
            self._tokens = np.array([each.end_token for each in ending], np.int64)
            self._of = automata, automata.generation
        if len(self._rows):
            self._forced = editor.find_forced(logits)

    def apply(self, logits: Any, editor: Editor) -> None:
        """Force the end tokens, after all edits."""
        if len(self._rows):
            editor.end_where_banned(logits, self._forced, self._rows, self._tokens)
