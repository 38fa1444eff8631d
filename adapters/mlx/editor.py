"""Applies a step's edits with MLX operations."""

from collections.abc import Callable
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np

from ..core.array_editor import ArrayEditor, ArrayRealizer
from ..core.edits import Additions
from ..core.slots import Failures
from ..core.torch_editor import FORCED_LOGIT


class MlxEditor(ArrayEditor):
    """Applies the edits of automata to an ``mlx.core.array``. It waits for nothing."""

    _where: ClassVar[Callable[..., Any]] = staticmethod(mx.where)

    def highest_logit(self, dtype: Any) -> float:
        return min(FORCED_LOGIT, mx.finfo(dtype).max / 4)

    def _array(self, values: Any) -> Any:
        return mx.array(values.astype(np.uint32) if values.dtype == np.int64 else values)

    def _add_at(self, logits: Any, rows: Any, tokens: Any, values: Any) -> None:
        logits[...] = logits.at[rows, tokens].add(values)

    def _best(self, rows: int, row_of: Any, kept: Any) -> Any:
        return mx.full((rows,), -mx.inf, kept.dtype).at[row_of].maximum(kept)

    def _count(self, events: Any) -> None:
        super()._count(events)
        mx.async_eval(self._overruled)  # it would keep the graph of every step alive


class MlxRealizer(ArrayRealizer):
    """A ``Realizer`` of MLX arrays."""

    editor = MlxEditor

    def _run_code(self, logits: Any, additions: list[Additions]) -> Failures:
        """Callables get a torch tensor, as with every engine: a copy of the logits."""
        on_host = np.array(logits.astype(mx.float32))
        failed = super()._run_code(on_host, additions)
        logits[...] = mx.array(on_host).astype(logits.dtype)
        return failed
