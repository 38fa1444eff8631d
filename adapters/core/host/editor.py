"""Editors, which apply a step's edits to logits in one kind of array."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ..logits import FORCED_LOGIT, Additions, Cells, attempt, merged
from .batch import AutomatonBatch
from .plan import Allowed, AllowedRow, EditPlan

if TYPE_CHECKING:
    import torch


class Editor(ABC):
    """An editor, which applies the edits of automata to logits on one kind of array or device."""

    @abstractmethod
    def update(self) -> None:
        """Follow the automata: their states, requests or rows may have changed."""

    @abstractmethod
    def apply(self, logits: Any, more: Sequence[Additions] = ()) -> dict[int, Exception]:
        """Edit the logits in place.

        If this raises, no logit has changed, and the call may be repeated.

        Args:
            logits: ``[rows, columns]``, of a floating-point type; rows may be any distance apart.
            more: additions of this step alone.

        Returns:
            Rows that have received only part of their edits, with the reason.
        """

    @abstractmethod
    def force(self, logits: Any, row: int, token_id: int) -> None:
        """Force a token, whatever the row's earlier edits were."""

    def as_tensor(self, logits: Any) -> "AbstractContextManager[torch.Tensor]":
        """Give callables the logits as a torch tensor, and take over what they have written."""
        return nullcontext(logits)


class PlanEditor(Editor):
    """An editor that applies an ``EditPlan`` part by part; subclasses edit one kind of array.

    Args:
        automata: the automata to follow.
        vocab_size: the number of tokens.
    """

    def __init__(self, automata: AutomatonBatch, vocab_size: int) -> None:
        self._plan = EditPlan(automata, vocab_size)

    def update(self) -> None:
        """Follow the automata."""
        self._plan.update()

    def apply(self, logits: Any, more: Sequence[Additions] = ()) -> dict[int, Exception]:
        """Edit the logits in place. See ``Editor``."""
        plan = self._plan
        added = [*plan.added, *more]
        if added and self.highest_logit(logits.dtype) < FORCED_LOGIT:
            added = [merged(added)]
        failed: dict[int, Exception] = {}
        for additions in added:
            attempt(failed, self._add, additions, logits)
        if len(plan.allowed.rows):
            attempt(failed, self._allow, plan.allowed, logits)
            plan.allowed.kept = None
        for allowed in plan.allowed_rows:
            if len(allowed.penalty.values):
                attempt(failed, self._add, allowed.penalty, logits)
            attempt(failed, self._allow_in_row, allowed, logits)
        if len(plan.forced.rows):
            attempt(failed, self._force, plan.forced, logits)
        return failed

    def force(self, logits: Any, row: int, token_id: int) -> None:
        """See ``Editor``."""
        logits[row] = 0  # another token may have been forced
        logits[row, token_id] = self.highest_logit(logits.dtype)

    @abstractmethod
    def highest_logit(self, dtype: Any) -> float:
        """Return ``FORCED_LOGIT``, or a substitute that leaves a narrow type room for scaling."""

    @abstractmethod
    def _add(self, additions: Additions, logits: Any) -> None:
        """Add to cells; in a type that cannot hold every sum, each cell occurs only once."""

    @abstractmethod
    def _allow(self, allowed: Allowed, logits: Any) -> None:
        """Mask all but the allowed cells of some rows."""

    @abstractmethod
    def _allow_in_row(self, part: AllowedRow, logits: Any) -> None:
        """Mask all but the allowed cells of one row."""

    @abstractmethod
    def _force(self, forced: Cells, logits: Any) -> None:
        """Raise one cell of each row."""
