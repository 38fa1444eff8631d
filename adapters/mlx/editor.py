"""Applies a step's edits with MLX operations."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np
import torch

from ..core import NumpyEditor, editor_for


class MlxEditor(NumpyEditor):
    """Applies the edits of automata to an ``mlx.core.array``. It waits for nothing."""

    _where: ClassVar[Callable[..., Any]] = staticmethod(mx.where)
    _finfo: ClassVar[Callable[..., Any]] = staticmethod(mx.finfo)

    @contextmanager
    def as_tensor(self, logits: Any) -> Iterator[torch.Tensor]:
        """See ``Editor``. It is a copy."""
        on_host = np.array(logits.astype(mx.float32))
        yield torch.from_numpy(on_host)
        logits[...] = mx.array(on_host).astype(logits.dtype)

    def _array(self, values: Any) -> Any:
        return mx.array(values.astype(np.uint32) if values.dtype == np.int64 else values)

    def _add_at(self, logits: Any, rows: Any, tokens: Any, values: Any) -> None:
        logits[...] = logits.at[rows, tokens].add(values)

    def _lower(self, logits: Any, row: int, limits: Any, sample: int) -> bool:
        before = logits[row]
        logits[row] = mx.where(before < limits, before, limits)
        return False  # unknown: to look at a logit would wait

    def _best(self, rows: int, row_of: Any, kept: Any) -> Any:
        return mx.full((rows,), -mx.inf, kept.dtype).at[row_of].maximum(kept)


@editor_for.register(mx.array)
def _(_: Any, automata: Any, vocab_size: int) -> MlxEditor:
    return MlxEditor(automata, vocab_size)
