"""What a request brings or names that is Python: called row by row, unlike all else."""

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ...spec.errors import text_of
from .automaton import UNKNOWN, Automaton, UnknownTokenError, bounded
from .compile import Program
from .edits import Additions, Cells
from .live import LiveProcessor
from .plugins import HistoryRule

logger = logging.getLogger(__name__)

Report = Callable[[int, Exception, bool], None]
"""Called once for a request whose specs have failed.

Its arguments are the row or slot of the request, what happened, and whether the request is ended;
otherwise it goes on without its specs. It must not raise.
"""


class OwnCode:
    """A request's own callables and history rules.

    Args:
        vocab_size: number of tokens.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._processors: list[LiveProcessor] = []
        self._rules: list[HistoryRule] = []

    def append(self, part: HistoryRule | Callable[..., Any]) -> None:
        """Call this too.

        Raises:
            TypeError: as ``LiveProcessor`` does.
        """
        if isinstance(part, HistoryRule):
            self._rules.append(part)
        else:
            self._processors.append(LiveProcessor(part))

    def run(
        self,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        logits: torch.Tensor,
        row: int,
    ) -> list[Additions]:
        """Let the callables edit a row in place; what the rules add is returned.

        Args:
            prompt_ids: the prompt's token ids.
            output_ids: the output's token ids so far.
            logits: ``[rows, columns]``.
            row: which of them.

        Raises:
            UnknownTokenError: if an output id is not known; code is never shown a placeholder.
            Exception: whatever they raise, and ``ValueError`` for results that cannot be.
        """
        if UNKNOWN in output_ids:
            raise UnknownTokenError
        for processor in self._processors:
            processor(prompt_ids, output_ids, logits[row])
        return [
            self._additions(row, rule.additions(prompt_ids, output_ids)) for rule in self._rules
        ]

    def _additions(self, row: int, added: Mapping[int, float]) -> Additions:
        token_ids = np.fromiter(added.keys(), np.int64, len(added))
        values = np.fromiter(added.values(), np.float32, len(added))
        if len(added) and not 0 <= token_ids.min() <= token_ids.max() < self._vocab_size:
            raise beyond_vocabulary(self._vocab_size)
        if not np.isfinite(values).all():
            raise ValueError("values that are not finite; ban a token with BAN_BIAS")
        return Additions(Cells(np.full(len(added), row), token_ids), bounded(values))


def started(program: Program, vocab_size: int) -> tuple[list[Automaton], OwnCode | None]:
    """A program's automata with those that a new request gets its own of, and what is Python.

    Args:
        program: the request's.
        vocab_size: number of tokens.

    Raises:
        Exception: whatever the code raises that makes a request's own; ``ValueError`` for token
            ids beyond the vocabulary.
    """
    automata = [*program.automata]
    code: OwnCode | None = None
    for part in program.per_request:
        made = part.make()
        if isinstance(made, Automaton):
            automata.append(made)
        else:
            code = code or OwnCode(vocab_size)
            code.append(made)
    if any(automaton.highest_token >= vocab_size for automaton in automata):
        raise beyond_vocabulary(vocab_size)
    return automata, code


def beyond_vocabulary(vocab_size: int) -> ValueError:
    """The error of who names a token that there is not."""
    return ValueError(f"token ids beyond the vocabulary of {vocab_size} tokens")


def log_by(place: str) -> Report:
    """Log failures of requests of which nothing else is known than where they are.

    Args:
        place: what the numbers count, ``row`` or ``slot``.
    """

    def report(number: int, error: Exception, ends: bool) -> None:
        log_failure(f"the request in {place} {number}", error, ends=ends)

    return report


def log_failure(request: str, error: Exception, *, ends: bool) -> None:
    """Say, once, why the specs of a request do not act any more.

    Args:
        request: which one, "the request in row 3" for example.
        error: what happened.
        ends: whether it is ended, or goes on without its specs.
    """
    # The traceback without its last lines: they would show the exception's text as it is.
    logger.error(
        "The specs of %s cannot be realized: %s: %s. %s; no other request is affected.\n%s",
        request,
        type(error).__name__,
        text_of(error),
        "It is ended" if ends else "It goes on without them",
        "".join(traceback.format_tb(error.__traceback__)),
    )
