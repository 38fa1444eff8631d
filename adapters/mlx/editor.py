"""Applies a step's edits with MLX operations."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np

from ..core import Editor, editor_for


class MlxEditor(Editor):
    """Applies a step's edits to an ``mlx.core.array``. It waits for nothing."""

    where: ClassVar[Callable[..., Any]] = staticmethod(mx.where)
    finfo: ClassVar[Callable[..., Any]] = staticmethod(mx.finfo)
    logsumexp: ClassVar[Callable[..., Any]] = staticmethod(mx.logsumexp)

    @contextmanager
    def as_tensor(self, logits: Any) -> Iterator[Any]:
        """See ``Editor``. It is a copy."""
        from torch import from_numpy

        on_host = np.array(logits.astype(mx.float32))
        yield from_numpy(on_host)
        logits[...] = mx.array(on_host).astype(logits.dtype)

    def on_host(self, logits: Any, row: int) -> Any:
        """See ``Editor``."""
        return np.array(logits[row].astype(mx.float32))

    def array(self, values: Any, logits: Any) -> Any:
        """See ``Editor``."""
        return mx.array(values.astype(np.uint32) if values.dtype == np.int64 else values)

    def floats(self, values: Any) -> Any:
        """See ``Editor``."""
        return values.astype(mx.float32)

    def like(self, values: Any, other: Any) -> Any:
        """See ``Editor``."""
        return values.astype(other.dtype)


@editor_for.register(mx.array)
def _(_: Any) -> MlxEditor:
    return MlxEditor()
