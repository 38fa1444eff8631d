"""Matchers: what the grammars of a request leave at a step, as a function of its tokens."""

from time import thread_time
from typing import Any

import numpy as np
import numpy.typing as npt

from ....spec import SpecError
from ..automaton import BAN_BIAS, Edit
from ..automaton.history import Tokens
from ..loops import loop
from ..parts import Grammar

Words = npt.NDArray[np.int32]
"""A bit for each token, from the lowest bit of the first word on: whether it may come."""

MAX_SECONDS, EACH_STEP, MEASURED = 0.05, 0.001, 4
"""The most seconds of the thread that a request's grammars may take at once, which read 20,000
tokens of JSON, and so much more for each step. They are measured after each so many tokens."""

ALLOW, ADD, BAN = int(Edit.ALLOW), int(Edit.ADD), np.float32(BAN_BIAS / 2)


class Matcher:
    """A grammar of one request, of whose text the output consists since its phase began.

    Args:
        grammar: the grammar.
        phase: the number of its phase.
        rank: the rank of ``grammar.closing`` among the request's automata, or -1.
        stop_token_id: a token that makes the engine end the request, if there is one.
        spent: the seconds that all grammars of the request have spent, but those that each step has
            for free; changed.

    Attributes:
        same: so many tokens of the history, with the prompt's, are those that were there before.
    """

    def __init__(
        self,
        grammar: Grammar,
        phase: int,
        rank: int,
        stop_token_id: int | None,
        spent: list[float],
    ) -> None:
        self._grammar = grammar
        self._matcher: Any = None
        ends = {*grammar.end_tokens, *(() if stop_token_id is None else (stop_token_id,))}
        self._ends = frozenset() if rank >= 0 else frozenset(ends)
        highest = max(grammar.size, *self._ends, 0)  # an end may be beyond the tokenizer's tokens
        self._words = np.zeros(highest // 32 + 1, np.int32)
        self._of_text = self._words[: grammar.size // 32 + 1]
        self._is_read = False
        self._tokens = np.zeros(0, np.int32)
        self._origin, self._taken = -1, 0
        self.phase, self.rank, self.same, self._spent = phase, rank, 0, spent

    def take(self, tokens: Tokens, since: int, length: int) -> None:
        """Take the tokens of a history from ``since`` on, but those that have been taken.

        Raises:
            SpecError: for a token that the grammar does not have there, and after ``MAX_SECONDS``.
        """
        begun = thread_time()
        self._tokens = tokens
        if since != self._origin:
            self._matcher, self._is_read = self._grammar.start.copy(), False
            self._origin, self._taken = since, 0
        kept = min(self._taken, max(self.same - since, 0))
        if kept < self._taken:
            if not self._matcher.rollback(self._taken - kept):
                self._matcher, kept = self._grammar.start.copy(), 0
            self._is_read = False
        self._taken = kept
        for count, token in enumerate(tokens[since + kept : length].tolist(), 1):
            if count % MEASURED == 1 and self._spent[0] + thread_time() - begun > MAX_SECONDS:
                raise SpecError("The grammar takes too long to follow its text")
            if self.is_complete or (token in self._ends and self._matcher.is_accepting()):
                break  # nothing acts after the text
            if not (self._matcher.consume_token(token) or self._takes_again(token)):
                raise SpecError(f"The grammar does not go on with token {token}")
            self._taken += 1
            self._is_read = False
        self.same = since + self._taken
        self._spent[0] += thread_time() - begun

    def _takes_again(self, token: int) -> bool:
        return self._begin_again() and self._matcher.consume_token(token)

    def _begin_again(self) -> bool:
        """Take the tokens anew if the lexer of all requests has stopped, be it by others'."""
        if "lexer error" not in self._matcher.get_error():
            return False
        self._matcher = self._grammar.start.another()
        taken = self._tokens[self._origin : self._origin + self._taken]
        return all(map(self._matcher.consume_token, taken.tolist()))

    @property
    def is_complete(self) -> bool:
        """Whether no more text may follow."""
        if self._matcher.is_stopped():
            return True
        return self.rank >= 0 and self._matcher.is_accepting() and not self._read().any()

    @property
    def may_end(self) -> bool:
        """Whether the text may end here, by a token that ends the reply."""
        return bool(self._ends) and self._matcher.is_accepting()

    def ends_at(self, length: int) -> bool:
        """Whether the text is complete after so many tokens of the history, and not before."""
        begun = thread_time()
        is_complete = self._origin + self._taken == length and self.is_complete
        self._spent[0] += thread_time() - begun
        return is_complete

    def find(self, length: int) -> Words | None:
        """Return the tokens that may come after so many; ``None`` if any may, after the text.

        The array is the same at each call.

        Raises:
            SpecError: if llguidance goes no further.
        """
        if self._origin + self._taken < length:
            return None
        begun = thread_time()
        words = self._read()
        self._spent[0] = max(self._spent[0] + thread_time() - begun - EACH_STEP, 0.0)
        if self._matcher.is_accepting():
            for token in self._ends:
                words.view(np.uint32)[token >> 5] |= np.uint32(1 << (token & 31))
            if not self._ends and self._matcher.is_stopped():
                return None
        return words

    def _read(self) -> Words:
        """Read which tokens go on with the text; raises as ``find`` does."""
        words, end = self._words, self._grammar.size
        if not self._is_read:
            words[len(self._of_text) :] = 0
            compute = words.ctypes.data, self._of_text.nbytes
            self._matcher.unsafe_compute_mask_ptr(*compute)
            if self._matcher.is_error() and self._begin_again():
                self._matcher.unsafe_compute_mask_ptr(*compute)
            if self._matcher.is_error():
                why = self._matcher.get_error().split("\n")[0]
                raise SpecError(f"The grammar cannot be followed: {why}")
            words.view(np.uint32)[end >> 5] &= np.uint32(~(1 << (end & 31)) & 0xFFFFFFFF)
            self._is_read = True
        return words


@loop
def leaves_none(
    words: Any,
    states: Any,
    edits: Any,
    operands: Any,
    set_ends: Any,
    set_tokens: Any,
    set_values: Any,
    may_end: bool,
) -> bool:
    """Return whether the first list, which is strict, or bans leave none of the tokens of a mask.

    Bans leave the end of the text, if it may end.
    """
    of_list, listed, has_biases = -1, 0, False
    for state in states:
        has_biases |= edits[state] == ADD
    kept = words.copy() if has_biases else words
    for state in states:
        operand = operands[state]  # a set's index, or a forced token
        if edits[state] == ADD:
            for at in range(set_ends[operand], set_ends[operand + 1]):
                token = set_tokens[at]
                if set_values[at] < BAN and token >> 5 < len(kept):
                    kept[token >> 5] &= ~(np.uint32(1) << np.uint32(token & 31))
        elif edits[state] == ALLOW and of_list < 0:
            of_list = operand
    if of_list < 0:
        return not (may_end or kept.any())
    for token in set_tokens[set_ends[of_list] : set_ends[of_list + 1]]:
        if token >> 5 < len(kept):
            if kept[token >> 5] >> np.uint32(token & 31) & np.uint32(1):
                return False
            listed += words[token >> 5] >> np.uint32(token & 31) & np.uint32(1)
    return not (may_end and listed > 0)


@loop
def keep(logits: Any, start: int, columns: int, words: Any) -> None:
    """Leave the tokens of a row that may come, and mask the others."""
    for first in range(0, columns, 32):
        word = words[first >> 5] if first >> 5 < len(words) else 0
        if word != -1:
            for token in range(first, min(first + 32, columns)):
                if not (word >> (token - first)) & 1:
                    logits[start + token] = -np.inf
