"""No n-gram twice: the history rule of ``no_repeat_ngram``, for all rows at once.

Only what a rule lets repeat is looked up rule by rule.
"""

import numpy as np
import numpy.typing as npt

from ...spec import NoRepeatNgramSpec
from .automaton import Ints, UnknownTokenError
from .edits import NO_CELLS, Cells
from .slots import FOLDED, ROW, Failures, Request, Slots

LENGTH, N, WINDOW, EXCEPTS = 2, 3, 4, 5
"""Columns: tokens in the history; n; how many of the newest tokens count; whether some may repeat.
"""


class Ngrams(Slots):
    """One slot per request and rule, with the history (prompt and output) as a row of a matrix.

    Args:
        vocab_size: a prompt may have other tokens, such as images' placeholders: none is banned.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__(columns=6)
        self._vocab_size = vocab_size
        self._history = np.zeros((16, 1024), np.int32)

    def start(self, request: Request, spec: NoRepeatNgramSpec) -> None:
        """Let the rule act on a request."""
        allowed = np.unique(np.array(spec.allowed_token_ids, np.int64))
        slot = self.new(request, allowed).slot
        self.values[N, slot] = spec.n
        self.values[WINDOW, slot] = spec.window or np.iinfo(np.int64).max
        self.values[EXCEPTS, slot] = len(allowed) > 0
        self._make_room(slot + 1, 0)
        self._read(slot)

    def delete(self, slot: int) -> None:
        """See ``Slots``."""
        self._history[slot] = self._history[len(self) - 1]
        super().delete(slot)
        # What one long request has needed is not kept for ever.
        longest = int(self.values[LENGTH, : len(self)].max(initial=0))
        if self._history.shape[1] > max(1024, 8 * longest):
            self._history = self._history[:, : max(1024, 2 * longest)].copy()

    def _read(self, slot: int) -> None:
        request = self.handles[slot].request
        tokens = np.array([*request.prompt_ids, *request.output_ids], np.int32)
        if (tokens < 0).any():
            raise UnknownTokenError
        self._make_room(0, len(tokens) + 1)
        self._history[slot, : len(tokens)] = tokens
        self.values[LENGTH, slot] = len(tokens)
        self.values[FOLDED, slot] = len(request.output_ids)

    def _make_room(self, slots: int, length: int) -> None:
        rows, columns = self._history.shape
        more_rows = 2 * slots - rows if slots > rows else 0
        more_columns = 2 * length - columns if length > columns else 0
        if more_rows or more_columns:
            self._history = np.pad(self._history, ((0, more_rows), (0, more_columns)))

    def advance(self, failed: Failures) -> None:
        """Read the new output ids; requests that cannot go on are put into ``failed``."""
        grown = self.grown()
        for slot in np.flatnonzero((grown < 0) | (grown > 1)).tolist():
            try:
                self._read(slot)
            except UnknownTokenError as error:
                failed[self.handles[slot].request] = error
        if len(by_one := np.flatnonzero(grown == 1)):
            newest = np.array([self.outputs[slot][-1] for slot in by_one.tolist()], np.int32)
            for slot in by_one[newest < 0].tolist():
                failed[self.handles[slot].request] = UnknownTokenError()
            lengths = self.values[LENGTH, by_one]
            self._make_room(0, int(lengths.max()) + 2)
            self._history[by_one, lengths] = newest
            self.values[LENGTH, by_one] += 1
            self.values[FOLDED, by_one] += 1

    def banned(self) -> Cells:
        """The cells that would complete an n-gram which is there already."""
        slots = len(self)
        lengths, n = self.values[LENGTH, :slots], self.values[N, :slots]
        longest = int(lengths.max(initial=0))
        if longest == 0:
            return NO_CELLS
        history = self._history
        # A candidate is a token that followed an earlier occurrence of the newest n - 1 tokens.
        positions = np.arange(longest)
        first = np.maximum(lengths - self.values[WINDOW, :slots], 0) + n - 1
        candidate = (positions >= first[:, None]) & (positions < lengths[:, None])
        longer = np.flatnonzero((n > 1) & (lengths > 0))
        newest = history[longer, lengths[longer] - 1]
        candidate[longer, 1:] &= history[longer, : longest - 1] == newest[:, None]
        slot, position = np.nonzero(candidate)
        for back in range(2, int(n.max(initial=0))):
            other = np.where(lengths[slot] >= back, history[slot, lengths[slot] - back], -1)
            same = (back >= n[slot]) | (history[slot, position - back] == other)
            slot, position = slot[same], position[same]
        tokens = history[slot, position].astype(np.int64)
        keep = tokens < self._vocab_size
        for i in np.flatnonzero(self.values[EXCEPTS, :slots]).tolist():
            own = slice(*np.searchsorted(slot, [i, i + 1]))  # a slot's are next to each other
            keep[own] &= ~_among(tokens[own], self.handles[i].what)
        cells = np.unique(self.values[ROW, slot[keep]] << 32 | tokens[keep])
        return Cells(cells >> 32, cells & 0xFFFFFFFF)


def _among(tokens: Ints, ascending: Ints) -> npt.NDArray[np.bool_]:
    """Which of ``tokens`` are among those of a sorted array, which is not empty."""
    at = np.searchsorted(ascending, tokens)
    return ascending[np.minimum(at, len(ascending) - 1)] == tokens
