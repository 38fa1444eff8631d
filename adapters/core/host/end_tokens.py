"""The tokens that come where a guard has left nothing but banned tokens."""

from typing import Any

import numpy as np
import torch

from ..logits import end_where_banned, to_device
from .advance import Automata
from .requests import Request

_NO_ROWS: tuple[Any, int, torch.Tensor] = None, -1, torch.empty(0)


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

    def apply(self, logits: Any, automata: Automata) -> None:
        """Force the end token in each row whose highest logit is that of a banned token.

        Args:
            logits: ``[rows, columns]``, after all edits.
            automata: those of all requests; their generation tells when rows have changed.
        """
        if not self._of:
            return
        known, generation, tokens = self._rows
        if known is not automata or generation != automata.generation or len(tokens) != len(logits):
            of_rows = np.full(len(logits), -1)
            for request, token in self._of.items():
                of_rows[request.row] = token
            tokens = to_device(of_rows, logits.device)
            self._rows = automata, automata.generation, tokens
        end_where_banned(logits, tokens)
