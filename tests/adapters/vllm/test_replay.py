"""What ``logitport replay`` finds, compared with what the realizer did."""

from pathlib import Path
from typing import Any

import pytest

from examples.portable.requests import MAX_TOKENS, Request
from tests.support import recording
from tests.support.replayed import check_replays

from .in_process import engine, params

pytestmark = [
    pytest.mark.engine,
    pytest.mark.only("v1", reason="V2's realizer is on the device; both are compared elsewhere"),
]


def test_replays(model: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from logitport.adapters.core import Realizer

    monkeypatch.setenv(recording.VARIABLE, str(tmp_path / "record"))
    monkeypatch.setattr(Realizer, "apply", Realizer.apply)  # restored when the test ends
    recording.install()
    with engine(model) as running:

        def ask(request: Request) -> list[int]:
            prompt = {"prompt_token_ids": request.prompt_ids}
            (output,) = running.generate([prompt], [params(request.specs, max_tokens=MAX_TOKENS)])
            return list(output.token_ids)

        check_replays(ask, tmp_path / "record", model, tokenizer, tmp_path)
