"""What ``logitport replay`` finds, compared with what the realizer did."""

from pathlib import Path
from typing import Any

import pytest

from examples.portable.requests import MAX_TOKENS, Request
from tests.support import recording
from tests.support.replayed import check_replays

pytestmark = pytest.mark.engine


def test_replays(model: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import torch
    from logitport.adapters.core import Realizer
    from logitport.adapters.transformers import LogitportProcessor
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv(recording.VARIABLE, str(tmp_path / "record"))
    monkeypatch.setattr(Realizer, "apply", Realizer.apply)  # restored when the test ends
    recording.install()
    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    def ask(request: Request) -> list[int]:
        inputs = tokenizer.pad([{"input_ids": request.prompt_ids}], return_tensors="pt")
        processor = LogitportProcessor(loaded, [request.specs], tokenizer=tokenizer, **inputs)
        output = loaded.generate(
            **inputs, logits_processor=[processor], do_sample=False, max_new_tokens=MAX_TOKENS
        )
        return output[0, len(request.prompt_ids) :].tolist()

    check_replays(ask, tmp_path / "record", model, tokenizer, tmp_path)
