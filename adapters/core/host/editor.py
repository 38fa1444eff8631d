"""Editors, which apply a step's edits to logits in one kind of array."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import is_
from typing import TYPE_CHECKING, Any

from ..logits import FORCED_LOGIT, Additions, Cells, RowAdditions, Standing, attempt, merged
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
        self._together: dict[tuple[Standing, ...], Standing] = {}  # see _by_row
        self._narrow = False  # see _in_order
        self._parts: Sequence[Additions | AllowedRow] = ()
        self._ordered: list[Additions | AllowedRow] = []
        self._kept: dict[str, tuple[object, Any]] = {}  # see _keep

    def update(self) -> None:
        """Follow the automata."""
        self._plan.update()

    def apply(self, logits: Any, more: Sequence[Additions] = ()) -> dict[int, Exception]:
        """Edit the logits in place. See ``Editor``."""
        plan, failed = self._plan, dict[int, Exception]()
        narrow = self.highest_logit(logits.dtype) < FORCED_LOGIT
        for part in self._in_order([*plan.added, *more], plan.allowed_rows, narrow):
            write = self._allow_in_row if isinstance(part, AllowedRow) else self._add
            attempt(failed, write, part, logits)
        if len(plan.allowed.rows):
            attempt(failed, self._allow, plan.allowed, logits)
            plan.allowed.kept = None
        if len(plan.forced.rows):
            attempt(failed, self._force, plan.forced, logits)
        return failed

    def _in_order(
        self, added: list[Additions], allowed_rows: list[AllowedRow], narrow: bool
    ) -> list[Additions | AllowedRow]:
        """Order the parts of a step: cells of several rows first, then row by row.

        Most steps have the parts of the last step, the same objects, and so the same order.

        Args:
            added: the additions.
            allowed_rows: the rows with ALLOWs of many tokens.
            narrow: whether the logits' type cannot hold every sum.
        """
        parts = added + allowed_rows
        known = self._parts
        if narrow == self._narrow and len(parts) == len(known) and all(map(is_, parts, known)):
            return self._ordered
        if narrow:
            added += [part.edit for part in allowed_rows if len(part.edit.standing)]
            added = [merged(added)] if added else []
            added += [part.mask for part in allowed_rows]
        else:
            added += [part.edit for part in allowed_rows]
        allowed_in = {part.row: part for part in allowed_rows}
        ordered: list[Additions | AllowedRow] = []
        for row, of_row in self._by_row(added).items():
            ordered += of_row
            if row in allowed_in:
                ordered.append(allowed_in[row])
        self._narrow, self._parts, self._ordered = narrow, parts, ordered
        return ordered

    def _by_row(self, added: Sequence[Additions]) -> dict[int, list[Additions]]:
        """Group additions by row, so that one pass adds all that stays on a row.

        The key of additions to several rows is -1, and comes first.
        """
        by_row: dict[int, list[Additions]] = {-1: []}
        staying: dict[int, list[RowAdditions]] = {}
        for each in added:
            if not isinstance(each, RowAdditions):
                by_row[-1].append(each)
            elif each.standing.moves:
                by_row.setdefault(each.row, []).append(each)
            else:
                staying.setdefault(each.row, []).append(each)
        together: dict[tuple[Standing, ...], Standing] = {}  # what no row has any more is dropped
        for row, parts in staying.items():
            all_of_row = parts[0]
            if len(parts) > 1:
                key = tuple(part.standing for part in parts)
                if key not in together:
                    together[key] = self._together.get(key) or Standing.together(key)
                all_of_row = together[key].on(row)
            by_row.setdefault(row, []).append(all_of_row)
        self._together = together
        return by_row

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
    def _add(self, additions: Additions, logits: Any) -> None:
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
