"""What ``logitport replay`` finds, compared with what the realizer did."""

from pathlib import Path
from typing import Any

import pytest
from logitport.adapters.sglang import attach

from examples.portable.requests import MAX_TOKENS, Request
from tests.support import recording
from tests.support.replayed import check_replays

from .in_process import engine, request

pytestmark = pytest.mark.engine


def test_replays(model: Path, tokenizer: Any, tmp_path: Path):
    with engine(model, recording.environment_of_children(tmp_path)) as running:

        def ask(asked: Request) -> list[int]:
            arguments = attach(request(MAX_TOKENS), asked.specs)
            return running.generate(input_ids=asked.prompt_ids, **arguments)["output_ids"]

        check_replays(ask, tmp_path / "record", model, tokenizer, tmp_path)
