"""SGLang's engine in the process of a test; its scheduler and detokenizer are children."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from examples.sglang_server import OPTIONS


@contextmanager
def engine(
    model: Path, environment: Mapping[str, str] | None = None, **others: Any
) -> Iterator[Any]:
    """An engine, with these variables in its environment."""
    from sglang.srt.entrypoints.engine import Engine

    with patch.dict(os.environ, environment or {}):
        running = Engine(model_path=str(model), random_seed=0, **OPTIONS | others)
        try:
            yield running
        finally:
            running.shutdown()
