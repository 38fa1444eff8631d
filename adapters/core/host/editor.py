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
        self._staying: list[RowAdditions | AllowedRow] = []  # of the last step, for _in_order
        self._of_row: dict[int, tuple[list[RowAdditions], list[AllowedRow]]] = {}
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
            write = self._allow_in_row if isinstance(part, AllowedRow) else self._add
            attempt(failed, write, part, logits)
        if len(plan.allowed.rows):
            attempt(failed, self._allow, plan.allowed, logits)
            plan.allowed.kept = None
        if len(plan.forced.rows):
            attempt(failed, self._force, plan.forced, logits)
        return failed

    def _in_order(
        self, added: list[AnyAdditions], allowed_rows: list[AllowedRow], narrow: bool
    ) -> list[AnyAdditions | AllowedRow]:
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
            return [*added, *chain(*((part.mask, part) for part in allowed_rows))]
        ordered: list[AnyAdditions | AllowedRow] = []
        staying: list[RowAdditions] = []
        moving: dict[int, list[RowAdditions]] = {}
        for part in chain(added, [part.edit for part in allowed_rows]):
            if not isinstance(part, RowAdditions):
                ordered.append(part)
            elif part.standing.moves:
                moving.setdefault(part.row, []).append(part)
            else:
                staying.append(part)
        if [*staying, *allowed_rows] != self._staying:
            self._of_row = self._by_row(staying, allowed_rows)
            self._staying = [*staying, *allowed_rows]
        for row, (passes, masks) in self._of_row.items():
            ordered += passes
            ordered += moving.pop(row, ())
            ordered += masks
        return [*ordered, *chain(*moving.values())]

    def _by_row(
        self, staying: list[RowAdditions], allowed_rows: list[AllowedRow]
    ) -> dict[int, tuple[list[RowAdditions], list[AllowedRow]]]:
        """Group parts by row, so that one pass adds all that stays on a row."""
        of_row: dict[int, tuple[list[RowAdditions], list[AllowedRow]]] = {}
        for part in staying:
            of_row.setdefault(part.row, ([], []))[0].append(part)
        for part in allowed_rows:
            of_row.setdefault(part.row, ([], []))[1].append(part)
        together: dict[tuple[Standing, ...], Standing] = {}  # what no row has any more is dropped
        for row, (parts, _) in of_row.items():
            if len(parts) > 1:
                key = tuple(part.standing for part in parts)
                if key not in together:
                    together[key] = self._together.get(key) or Standing.together(key)
                parts[:] = [together[key].on(row)]
        self._together = together
        return of_row

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
        """Add to cells; in a type that cannot hold every sum, each cell occurs only once."""

    @abstractmethod
    def _allow(self, allowed: Allowed, logits: Any) -> None:
        """Mask all but the allowed cells of some rows."""

    @abstractmethod
    def _allow_in_row(self, part: AllowedRow, logits: Any) -> None:
        """Complete the mask of a row to whose other cells -inf has been added."""

    @abstractmethod
    def _force(self, forced: Cells, logits: Any) -> None:
        """Raise one cell of each row."""
