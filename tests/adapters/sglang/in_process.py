"""SGLang's engine in the process of a test; its scheduler and detokenizer are children."""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from logitport.adapters.sglang import attach

from examples._support.sglang_server import OPTIONS


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


PROMPTS = [[5 + i, 17, 100 + i] for i in range(8)]


def generate(running: Any, specs: Sequence[Any], max_tokens: int = 16) -> list[Any]:
    """Results for ``PROMPTS``, or what was raised, of specs or requests for the first of them."""
    requests = [
        each if isinstance(each, dict) else attach(request(max_tokens), each)
        for each in [*specs, *((),) * (len(PROMPTS) - len(specs))]
    ]

    async def all_at_once() -> list[Any]:
        each = (
            running.async_generate(input_ids=prompt, **request)
            for prompt, request in zip(PROMPTS, requests, strict=True)
        )
        return await asyncio.gather(*each, return_exceptions=True)

    return running.loop.run_until_complete(all_at_once())


def outputs(results: Sequence[Any]) -> list[list[int]]:
    """Their token ids."""
    return [result["output_ids"] for result in results]


def request(max_tokens: int = 16, processor: str | None = None, **custom: Any) -> dict[str, Any]:
    """All of a request but its prompt."""
    sampling_params = {"temperature": 0, "max_new_tokens": max_tokens}
    if custom:
        sampling_params["custom_params"] = custom
    return {"sampling_params": sampling_params, "custom_logit_processor": processor}
