"""Editors, which apply a step's edits to logits in one kind of array."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..logits import FORCED_LOGIT, AnyAdditions, Cells, RowAdditions, Standing, attempt, merged
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
    def apply(self, logits: Any, more: Sequence[AnyAdditions] = ()) -> dict[int, Exception]:
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
        self._together: dict[tuple[Standing, ...], Standing] = {}  # see _by_row
        self._staying: list[RowAdditions] = []  # of the last step, for _in_order
        self._at_once: list[RowAdditions] = []  # the same, one part for each row
        self._maybe_empty: set[int] = set()  # rows in which an ALLOW may leave no finite logit
        self._kept: dict[str, tuple[object, Any]] = {}  # see _keep

    def update(self) -> None:
        """Follow the automata."""
        self._plan.update()

    def apply(self, logits: Any, more: Sequence[AnyAdditions] = ()) -> dict[int, Exception]:
        """Edit the logits in place. See ``Editor``."""
        plan = self._plan
        failed: dict[int, Exception] = {}
        narrow = self.highest_logit(logits.dtype) < FORCED_LOGIT
        added, allowed_rows = [*plan.added, *more], plan.allowed_rows
        is_any = added or allowed_rows or self._staying
        for part in self._in_order(added, allowed_rows, narrow) if is_any else ():
            attempt(failed, self._add, part, logits)
        if self._maybe_empty:
            for part in allowed_rows:
                if part.row in self._maybe_empty:
                    attempt(failed, self._keep_finite, part, logits)
            self._maybe_empty.clear()
        if len(plan.allowed.rows):
            attempt(failed, self._allow, plan.allowed, logits)
            plan.allowed.kept = None
        if len(plan.forced.rows):
            attempt(failed, self._force, plan.forced, logits)
        return failed

    def _in_order(
        self, added: list[AnyAdditions], allowed_rows: list[AllowedRow], narrow: bool
    ) -> list[AnyAdditions]:
        """Order the parts of a step: first those of several rows, then row by row.

        Most steps have the same staying parts as the last step. What moves is added to a row after
        what stays, because one pass has brought the whole row into the processor's cache.

        Args:
            added: the additions.
            allowed_rows: the rows with ALLOWs of many tokens.
            narrow: whether the logits' type cannot hold every sum.
        """
        if narrow:
            added += [part.edit for part in allowed_rows if len(part.edit.standing)]
            added = [merged(added)] if added else []
            return [*added, *(part.mask for part in allowed_rows)]
        ordered: list[AnyAdditions] = []
        staying: list[RowAdditions] = []
        moving: dict[int, list[RowAdditions]] = {}
        for part in chain(added, [part.edit for part in allowed_rows]):
            if not isinstance(part, RowAdditions):
                ordered.append(part)
            elif part.standing.moves:
                moving.setdefault(part.row, []).append(part)
            else:
                staying.append(part)
        if staying != self._staying:
            self._at_once, self._staying = self._by_row(staying), staying
        for part in self._at_once:
            ordered.append(part)
            ordered += moving.pop(part.row, ())
        return [*ordered, *chain(*moving.values())]

    def _by_row(self, staying: list[RowAdditions]) -> list[RowAdditions]:
        """Combine the parts of each row, so that one pass adds all that stays on a row."""
        of_row: dict[int, list[Standing]] = {}
        for part in staying:
            of_row.setdefault(part.row, []).append(part.standing)
        together: dict[tuple[Standing, ...], Standing] = {}  # what no row has any more is dropped
        for parts in map(tuple, of_row.values()):
            if len(parts) > 1 and parts not in together:
                together[parts] = self._together.get(parts) or Standing.together(parts)
        self._together = together
        return [
            (parts[0] if len(parts) == 1 else together[tuple(parts)]).on(row)
            for row, parts in of_row.items()
        ]

    def _keep(self, name: str, plan: Any, make: Callable[[Any], Any]) -> Any:
        """Return ``make(plan)``, which is made again only for another plan."""
        if name not in self._kept or self._kept[name][0] is not plan:
            self._kept[name] = plan, make(plan)
        return self._kept[name][1]

    def force(self, logits: Any, row: int, token_id: int) -> None:
        """See ``Editor``."""
        logits[row] = 0  # another token may have been forced
        logits[row, token_id] = self.highest_logit(logits.dtype)

    @abstractmethod
    def highest_logit(self, dtype: Any) -> float:
        """Return ``FORCED_LOGIT``, or a substitute that leaves a narrow type room for scaling."""

    @abstractmethod
    def _add(self, additions: AnyAdditions, logits: Any) -> None:
        """Add to cells; in a type that cannot hold every sum, each cell occurs only once.

        If an ALLOW of a row may leave no finite logit, the row comes into ``_maybe_empty``.
        """

    @abstractmethod
    def _allow(self, allowed: Allowed, logits: Any) -> None:
        """Mask all but the allowed cells of some rows."""

    @abstractmethod
    def _keep_finite(self, part: AllowedRow, logits: Any) -> None:
        """Set the logits of the allowed tokens of a row to 0 if all are -inf."""

    @abstractmethod
    def _force(self, forced: Cells, logits: Any) -> None:
        """Raise one cell of each row."""
