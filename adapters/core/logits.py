"""Additions to logits: cells, rows, and the values of bans and forced tokens.

Host and device, editors and callables all follow the rules of this module.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch

from .automaton import BAN_BIAS, Ints
from .automaton.arrays import token_array

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]

FORCED_LOGIT = 1e9
"""A logit that wins any softmax or argmax, and is finite at any usual temperature.

Raising one logit touches one cell. Filling the rest of the row with -inf has the same effect, but
costs a pass over the vocabulary. vLLM's thinking budget uses the same value.
"""

HIGHEST_SHARE = 0.75
"""In a narrow type (float16), the share of a forced logit that other edited logits may reach. No
sum of biases is higher, and no sum of bans is lower than minus a forced logit."""


class Part(Protocol):
    """A part of a step's edits that is written as a whole."""

    @property
    def rows(self) -> Ints:
        """The rows that the part edits, each at least once."""
        ...

    def of_row(self, row: int, /) -> Self:
        """Return the edits of one of the rows."""
        ...


def attempt(
    failed: dict[int, Exception], write: Callable[..., None], part: Part, *target: Any
) -> None:
    """Write a part of the edits: if it fails, write it again, and then row by row.

    Earlier parts are not written again, because biases would be added twice. ``write`` takes the
    part and the target; ``failed`` gets the rows whose edits still fail, with the reason.
    """
    for _ in range(2):
        try:
            write(part, *target)
            return
        except Exception:
            continue
    for row in set(part.rows.tolist()):
        try:
            write(part.of_row(row), *target)
        except Exception as error:
            failed[row] = error


@dataclass(slots=True)
class Cells:
    """Cells of the logits: ``rows`` and ``token_ids``, ``[cells]`` each."""

    rows: Ints
    token_ids: Ints | npt.NDArray[np.int32]

    def of_row(self, row: int) -> "Cells":
        """Select the cells in one row."""
        mine = self.rows == row
        return Cells(self.rows[mine], self.token_ids[mine])


NO_CELLS = Cells(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(slots=True)
class Additions:
    """Cells to which ``values``, ``[cells]`` float32, are added.

    ``kept`` holds an editor's arrays of the additions, if it gets them several times.
    """

    cells: Cells
    values: Floats
    kept: dict[Any, Any] | None = None

    @property
    def rows(self) -> Ints:
        return self.cells.rows

    def of_row(self, row: int) -> "Additions":
        return Additions(self.cells.of_row(row), self.values[self.rows == row])


class Standing:
    """Additions that stand on one row for several steps: one value for all tokens, or for each.

    Args:
        token_ids: best in ascending order, because neighbours are then adjacent in memory.
        values: the values to add; one for all, or one for each.
        allowed: the only tokens that may remain, if an ALLOW acts as well.
        moves: whether other additions may take their place at any step.

    Attributes:
        sample: one of the allowed tokens. The first ids are special tokens, which engines mask.
    """

    def __init__(
        self,
        token_ids: npt.NDArray[Any],
        values: npt.NDArray[np.float32],
        allowed: Ints | None = None,
        *,
        moves: bool = False,
    ) -> None:
        self.allowed, self.moves = allowed, moves
        self.sample = 0 if allowed is None else int(allowed[len(allowed) // 2])
        self.kept: dict[Any, Any] = {}  # the editors' arrays of the additions
        self.token_ids, self.values = token_ids, np.broadcast_to(values, len(token_ids))

    @classmethod
    def together(cls, parts: Sequence["Standing"]) -> "Standing":
        """Combine what stands on one row; at most one part has ``allowed``."""
        return cls(
            np.concatenate([part.token_ids for part in parts]),
            np.concatenate([part.values for part in parts]),
            next((part.allowed for part in parts if part.allowed is not None), None),
        )

    def __len__(self) -> int:
        return len(self.token_ids)

    def on(self, row: int) -> "RowAdditions":
        """Return the additions for a row."""
        return RowAdditions(row, self)

    def laid_out(
        self, columns: int, *, on_host: bool = True
    ) -> tuple[Floats | None, npt.NDArray[Any] | None, Floats]:
        """Lay the additions out for a row of so many columns.

        Returns:
            The limits of an ALLOW, ``[columns]``, or ``None``; see ``beside_allow``. The tokens to
            add to, or ``None`` for all columns. The value for each of these.
        """
        if self.allowed is not None:
            return self.beside_allow(columns)
        if on_host and is_dense(len(self), columns):
            return None, None, np.bincount(self.token_ids, self.values, columns).astype(np.float32)
        return None, self.token_ids, self.values

    def beside_allow(self, columns: int) -> tuple[Floats, Ints, Floats]:
        """Split what stands beside an ALLOW into limits, which take one pass, and biases.

        A limit may take the place of a ban, because a logit is small beside a ban, and so is a
        bias. It also covers NaN and infinity, and can be applied twice.

        Returns:
            The most that may remain of each column of a row: -inf where no token may remain, and
            inf where nothing is banned. The tokens that have biases and no ban. Their biases.
        """
        assert self.allowed is not None
        limits = np.full(columns, -np.inf, np.float32)
        limits[self.allowed] = np.inf
        if not len(self):
            return limits, self.allowed[:0], self.values
        is_ban = self.values <= BAN_BIAS
        bans = np.bincount(self.token_ids[is_ban], minlength=columns)[self.allowed]
        limits[self.allowed[bans > 0]] = bans[bans > 0] * np.float32(BAN_BIAS)
        biases = np.bincount(self.token_ids[~is_ban], self.values[~is_ban], columns)[self.allowed]
        is_biased = (biases != 0) & (bans == 0)
        return limits, self.allowed[is_biased], biases[is_biased].astype(np.float32)


class RowAdditions(NamedTuple):
    """What stands on a row. If two are equal, they add the same values to the same cells.

    Attributes:
        row: the row of the logits.
        standing: the additions, whatever row the request is in.
    """

    row: int
    standing: Standing

    @property
    def cells(self) -> Cells:
        """The cells to which ``values`` are added."""
        return Cells(np.full(len(self.standing), self.row), self.standing.token_ids)

    @property
    def values(self) -> Floats:
        """See ``Additions``."""
        return self.standing.values

    @property
    def rows(self) -> Ints:
        """See ``Part``."""
        return np.array([self.row])

    def of_row(self, row: int, /) -> "RowAdditions":
        """See ``Part``."""
        return self


AnyAdditions = Additions | RowAdditions


def mask(token_ids: Sequence[int] | npt.NDArray[np.integer[Any]], vocab_size: int) -> Mask:
    """Make a mask of some tokens of the vocabulary, ``[vocab_size]``."""
    tokens = token_array(token_ids)
    is_there = np.zeros(vocab_size, np.bool_)
    is_there[tokens[(tokens >= 0) & (tokens < vocab_size)]] = True
    return is_there


def is_dense(cells: int, columns: int) -> bool:
    """Return whether a host adds to so many cells of a row faster by adding to every column."""
    return cells > columns // 16


def joined(additions: Sequence[AnyAdditions]) -> Additions:
    """Join additions, at least one, to apply them with one call. A cell may occur several times."""
    rows = np.concatenate([each.cells.rows for each in additions])
    token_ids = np.concatenate([each.cells.token_ids for each in additions], dtype=np.int64)
    return Additions(Cells(rows, token_ids), np.concatenate([each.values for each in additions]))


def merged(additions: Sequence[AnyAdditions]) -> Additions:
    """Merge additions, at least one, into one that has each cell once."""
    every = joined(additions)
    cells, place = np.unique(every.rows << 32 | every.cells.token_ids, return_inverse=True)
    sums = np.bincount(place.ravel(), every.values, len(cells)).astype(np.float32)
    return Additions(Cells(cells >> 32, cells & 0xFFFFFFFF), sums)


def add(additions: AnyAdditions, logits: torch.Tensor) -> None:
    """Add to cells of logits whose columns are contiguous."""
    is_narrow = highest_logit(logits.dtype) < FORCED_LOGIT
    add_once(merged([additions]) if is_narrow else additions, logits)


def add_once(additions: AnyAdditions, logits: torch.Tensor) -> None:
    """Add to cells; in a type that cannot hold every sum, each cell may occur only once."""
    if isinstance(additions, RowAdditions):
        add_to_row(logits, additions, shared_array(logits))
        return
    flat = flattened(logits)
    if highest_logit(logits.dtype) < FORCED_LOGIT:
        index = flat_index(additions.cells, logits)
        values = to_device(torch.tensor(additions.values), logits.device)
        flat[index] = bounded_sum(flat[index], values)
        return
    array = shared_array(flat)
    layout = (logits.stride(0), logits.dtype, logits.device)
    placed = None if additions.kept is None else additions.kept.get(layout)
    if placed is None:
        index, values = flat_index(additions.cells, logits), _values(additions.values, logits)
        placed = (index, values) if array is None else (index.numpy(), values.numpy())
        if additions.kept is not None:
            additions.kept[layout] = placed
    _add_at(flat if array is None else array, *placed)


def shared_array(logits: torch.Tensor) -> npt.NDArray[Any] | None:
    """Return logits on the host as an array with the same memory, if numpy has their type."""
    on_host = logits.is_cpu and logits.dtype in (torch.float32, torch.float64)
    return logits.numpy() if on_host else None


def add_to_row(
    logits: torch.Tensor, additions: RowAdditions, array: npt.NDArray[Any] | None
) -> bool:
    """Add to a row, reusing the arrays of an earlier call for any row.

    Args:
        logits: ``[rows, columns]``.
        additions: the row, and what to add.
        array: ``shared_array`` of the logits.

    Returns:
        False if an ALLOW may have left no finite logit in the row.
    """
    (row, standing), columns = additions, logits.shape[1]
    kept, layout = standing.kept, (columns, logits.dtype, logits.device)
    if layout not in kept:
        parts = standing.laid_out(columns, on_host=logits.is_cpu)
        kept[layout] = _of_tensor(*parts, logits) if array is None else _of_array(*parts, array)
    limits, index, values = kept[layout]
    is_finite = True
    if limits is not None and array is not None:  # numpy's operation is five times faster
        is_finite = lower(array[row], limits, standing.sample)
    elif limits is not None:
        torch.fmin(logits[row], limits, out=logits[row])
        is_finite = False
    target = logits[row] if array is None else array[row]
    if index is None:
        target += values
    elif len(index):
        _add_at(target, index, values)
    return is_finite


def _of_tensor(
    limits: Floats | None, token_ids: npt.NDArray[Any] | None, values: Floats, logits: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor]:
    """Convert what is laid out for a row of a tensor."""
    return (
        None if limits is None else _converted(limits, logits),
        None if token_ids is None else to_device(torch.from_numpy(token_ids), logits.device),
        _converted(values, logits) if token_ids is None else _values(values, logits),
    )


def _of_array(
    limits: Floats | None,
    token_ids: npt.NDArray[Any] | None,
    values: Floats,
    array: npt.NDArray[np.floating[Any]],
) -> tuple[Any, Any, Any]:
    """Convert what is laid out for a row of an array, which has no narrow type."""
    every = values[:1] if values.strides == (0,) else values  # one value for all is not copied
    if token_ids is not None and (abs(every) > FORCED_LOGIT).any():
        values = values.clip(-FORCED_LOGIT, FORCED_LOGIT)
    if limits is not None:
        limits = limits.astype(array.dtype, copy=False)
    return limits, token_ids, values.astype(array.dtype, copy=False)


def _add_at(target: Any, index: Any, values: Any) -> None:
    """Add to cells of a tensor, or of an array, which takes half as long on a host."""
    if isinstance(target, torch.Tensor):
        target.index_add_(0, index, values)
    else:
        np.add.at(target, index, values)


def lower(row: npt.NDArray[Any], limits: npt.NDArray[Any], sample: int) -> bool:
    """Lower the logits of a row, ``[columns]``, that exceed their limits. NaN exceeds any limit.

    Returns:
        Whether the logit of the sample, a column, is known to be finite.
    """
    np.fmin(row, limits, out=row)
    return bool(row[sample] > -np.inf)


def bounded_sum(cells: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Add, between the limits of bans and forced logits; a masked logit stays masked."""
    limit = highest_logit(cells.dtype)
    if limit == FORCED_LOGIT:
        return cells + values.to(cells.dtype)
    sums = (cells.float() + values).clamp(-limit, HIGHEST_SHARE * limit).to(cells.dtype)
    return torch.where(cells == -torch.inf, cells, sums)


def flattened(logits: torch.Tensor) -> torch.Tensor:
    """View the rows end to end, with the gaps between them."""
    if logits.is_contiguous():
        return logits.view(-1)
    rows, columns = logits.shape
    return logits.as_strided(((rows - 1) * logits.stride(0) + columns,), (1,))


def _converted(values: Floats, logits: torch.Tensor) -> torch.Tensor:
    return to_device(torch.from_numpy(values).to(logits.dtype), logits.device)


def _values(values: Floats, logits: torch.Tensor) -> torch.Tensor:
    limit = highest_logit(logits.dtype)
    bounded = torch.from_numpy(values.clip(-limit, limit)).to(logits.dtype)
    return to_device(bounded, logits.device)


def flat_index(cells: Cells, logits: torch.Tensor) -> torch.Tensor:
    """Compute the indices of cells in ``flattened`` logits."""
    return to_device(cells.rows * logits.stride(0) + cells.token_ids, logits.device)


@lru_cache
def highest_logit(dtype: torch.dtype) -> float:
    """Return ``FORCED_LOGIT``, or a substitute that leaves a narrow type room for scaling."""
    return min(FORCED_LOGIT, torch.finfo(dtype).max / 4)


def to_device(array: Ints | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy without waiting: torch's allocator keeps pinned memory until the copy is done."""
    host = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
    if device.type == "cpu":
        return host
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)
