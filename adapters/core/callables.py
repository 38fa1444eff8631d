"""Python callables and history rules that a request brings or names, called row by row."""

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...spec.errors import text_of
from .automaton import UNKNOWN, Automaton, Lane, UnknownTokenError
from .automaton.automaton import bounded
from .logits import Additions
from .parts import Program
from .plugins import HistoryRule, takes_prompt

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

Report = Callable[[int, Exception, bool], None]
"""A function that is called once for a request whose specs have failed, and must not raise.

Its arguments are the row or slot of the request, the error, and whether the request is ended;
otherwise the request goes on without its specs.
"""


class RequestCallables:
    """A request's own callables and history rules.

    Args:
        parts: the callables and rules. A callable takes (output ids, logits) or (prompt ids, output
            ids, logits), and edits the logits, ``[columns]``, in place or returns a new tensor of
            the same shape. vLLM's processors of one request and Dynamo's do the same.
        vocab_size: the number of tokens.

    Attributes:
        reads_logits: whether there are callables, which get the logits as a tensor.

    Raises:
        TypeError: if a part is not callable or takes other arguments.
        ImportError: without torch, whose tensors a callable takes.
    """

    def __init__(self, parts: Sequence[HistoryRule | Callable[..., Any]], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rules = [part for part in parts if isinstance(part, HistoryRule)]
        others = (part for part in parts if not isinstance(part, HistoryRule))
        self._processors = [(part, takes_prompt(part)) for part in others]
        self.reads_logits = bool(self._processors)
        if self.reads_logits:
            import torch  # noqa: F401  # without it, this request ends, and no other one

    def run(
        self,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        logits: "torch.Tensor",
        row: int,
    ) -> list[Additions]:
        """Let the callables edit a row of ``[rows, columns]``, and return the rules' additions.

        Raises:
            UnknownTokenError: if an output id is not known; callables never get a placeholder.
            Exception: any error of a callable or rule, and ``ValueError`` for invalid results.
        """
        if UNKNOWN in output_ids:
            raise UnknownTokenError
        for processor, takes_prompt_ids in self._processors:
            tokens = (prompt_ids, output_ids) if takes_prompt_ids else (output_ids,)
            self._call(processor, tokens, logits[row])
        return [
            self._additions(row, rule.additions(prompt_ids, output_ids)) for rule in self._rules
        ]

    def _call(
        self, processor: Callable[..., Any], tokens: Sequence[Any], logits: "torch.Tensor"
    ) -> None:
        """Let a callable edit a row in place, or leave it unchanged and raise.

        Raises:
            ValueError: if the result has another shape or leaves no token to choose.
        """
        from torch import Tensor

        row = logits.clone()
        returned = processor(*tokens, row)
        result = row if returned is None else returned
        if not isinstance(result, Tensor) or result.shape != logits.shape:
            shape = tuple(getattr(result, "shape", ())) or type(result).__name__
            raise ValueError(f"{processor!r} returned {shape}, expected {tuple(logits.shape)}")
        # The check would wait for a device; it is free in host memory only.
        if result.device.type == "cpu" and not result.max() > -np.inf:
            raise ValueError(f"{processor!r} left no finite logit")
        logits.copy_(result)

    def _additions(self, row: int, added: Mapping[int, float]) -> Additions:
        token_ids = np.fromiter(added.keys(), np.int64, len(added))
        values = np.fromiter(added.values(), np.float32, len(added))
        if len(added) and not 0 <= token_ids.min() <= token_ids.max() < self._vocab_size:
            raise beyond_vocabulary(self._vocab_size)
        if not np.isfinite(values).all():
            raise ValueError("values that are not finite; ban a token with BAN_BIAS")
        return Additions(np.full(len(added), row), token_ids, bounded(values))


def instantiate(program: Program, vocab_size: int) -> tuple[list[Lane], RequestCallables | None]:
    """Start a program for a new request: return all its automata, and its callables if any.

    Raises:
        Exception: any error of the code that makes the request's own parts; ``ValueError`` for
            token ids beyond the vocabulary.
    """
    made = [part.make() for part in program.per_request]
    lanes = [*program.lanes, *(Lane(part) for part in made if isinstance(part, Automaton))]
    others = [part for part in made if not isinstance(part, Automaton)]
    code = RequestCallables(others, vocab_size) if others else None
    if any(automaton.highest_token >= vocab_size for automaton, *_ in lanes):
        raise beyond_vocabulary(vocab_size)
    return lanes, code


def beyond_vocabulary(vocab_size: int) -> ValueError:
    """Make the error for token ids that are not in the vocabulary."""
    return ValueError(f"token ids beyond the vocabulary of {vocab_size} tokens")


def stop_in(vocab_size: int, stop_token_id: int | None) -> int | None:
    """Return a stop token that can be forced; ``None`` for one that the vocabulary does not have.

    Engines take stop tokens as clients send them.
    """
    in_vocabulary = stop_token_id is not None and 0 <= stop_token_id < vocab_size
    return stop_token_id if in_vocabulary else None


def log_by(place: str) -> Report:
    """Make a ``Report`` that logs failures by number: the request's ``row`` or ``slot``."""
    return lambda number, error, ends: log_failure(
        f"the request in {place} {number}", error, ends=ends
    )


def log_failure(request: str, error: Exception, *, ends: bool) -> None:
    """Log once why the specs of a request no longer act.

    Args:
        request: the request, "the request in row 3" for example.
        error: the reason.
        ends: whether the request is ended, or goes on without its specs.
    """
    # Omit the traceback's last lines: they would show the exception's text without escapes.
    logger.error(
        "The specs of %s cannot be realized: %s: %s. %s; no other request is affected.\n%s",
        request,
        type(error).__name__,
        text_of(error),
        "It is ended" if ends else "It continues without them",
        "".join(traceback.format_tb(error.__traceback__)),
    )
