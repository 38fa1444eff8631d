"""The editors of torch tensors, wherever these are."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy.typing as npt
import torch

from ..logits import Floats
from ..tensors import end_where_banned, find_forced, to_device
from .editors import Editor, Edits, HostEditor, Indices


class TensorEditor(Editor):
    """An editor of tensors on any device, with torch operations."""

    where: ClassVar[Callable[..., Any]] = staticmethod(torch.where)
    finfo: ClassVar[Callable[..., Any]] = staticmethod(torch.finfo)
    logsumexp: ClassVar[Callable[..., Any]] = staticmethod(torch.logsumexp)

    def __init__(self) -> None:
        self._ends: tuple[Any, torch.Tensor] = None, torch.empty(0)

    def find_forced(self, logits: torch.Tensor) -> torch.Tensor:
        return find_forced(logits)

    def end_where_banned(
        self, logits: torch.Tensor, forced: torch.Tensor, rows: Indices, tokens: Indices
    ) -> None:
        """See ``Editor``. Only tokens that have changed are sent to the device."""
        if self._ends[0] is not tokens or len(self._ends[1]) != len(logits):
            of_rows = torch.full((len(logits),), -1)
            of_rows[torch.from_numpy(rows)] = torch.from_numpy(tokens)
            self._ends = tokens, to_device(of_rows, logits.device)
        end_where_banned(logits, forced, self._ends[1])

    def array(self, values: npt.NDArray[Any], logits: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(values).to(logits.device, non_blocking=True)

    def on_host(self, logits: torch.Tensor, row: int) -> Floats:
        return logits[row].float().cpu().numpy()

    def floats(self, values: torch.Tensor) -> torch.Tensor:
        return values.float()

    def like(self, values: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return values.to(other.dtype)


class HostTensorEditor(TensorEditor):
    """An editor of tensors in the host's memory. ``HostEditor`` writes those of float32."""

    def __init__(self) -> None:
        super().__init__()
        self._of_arrays = HostEditor()

    def apply(self, logits: torch.Tensor, edits: Edits) -> None:
        if logits.dtype is torch.float32 and logits.stride(1) == 1:
            self._of_arrays.apply(logits.numpy(), edits)
        else:
            super().apply(logits, edits)
