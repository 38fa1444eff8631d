"""SGLang's engine in the process of a test; its scheduler and detokenizer are children."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

OPTIONS: dict[str, Any] = {
    "enable_custom_logit_processor": True,
    "dtype": "float32",
    "context_length": 1024,
    "max_total_tokens": 4096,
    "max_running_requests": 8,
    "random_seed": 0,
    "log_level": "error",
}
ON_CPU: dict[str, Any] = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_cuda_graph": True,
}


def options() -> dict[str, Any]:
    """Of an engine on this machine."""
    import torch

    return OPTIONS if torch.cuda.is_available() else {**OPTIONS, **ON_CPU}


@contextmanager
def engine(
    model: Path, environment: Mapping[str, str] | None = None, **others: Any
) -> Iterator[Any]:
    """An engine, with these variables in its environment."""
    from sglang.srt.entrypoints.engine import Engine

    with patch.dict(os.environ, environment or {}):
        running = Engine(model_path=str(model), **{**options(), **others})
        try:
            yield running
        finally:
            running.shutdown()
