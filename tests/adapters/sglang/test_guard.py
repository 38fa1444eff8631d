"""Nothing that a client sends is unpickled, but the name of our own processor."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from logitport.adapters import ADMIT_OTHERS_VARIABLE
from logitport.adapters.sglang import PROCESSOR, plugin
from logitport.adapters.sglang.processor import LogitportProcessor, refuse
from sglang.srt.plugins import load_plugins
from sglang.srt.sampling.custom_logit_processor import (
    CustomLogitProcessor,
    DisallowedTokensLogitsProcessor,
    supports_sampling_mask,
)


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_ENABLE_DELAY_SAMPLE", "")  # put back as it was
    load_plugins()


class Creates:
    """Pickled, it is code that creates a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("owner", [CustomLogitProcessor, DisallowedTokensLogitsProcessor])
def test_nothing_else_is_admitted(owner: type, tmp_path: Path):
    code = json.dumps({"callable": pickle.dumps(Creates(tmp_path / "made")).hex()})
    for string in (
        code,
        "",
        "null",
        PROCESSOR + " ",
        PROCESSOR.replace(b"processor".hex(), b"params".hex()),
        DisallowedTokensLogitsProcessor.to_str(),
    ):
        assert owner.from_str(string) is refuse
    assert not supports_sampling_mask(code)
    assert not (tmp_path / "made").exists()


def test_the_operator_may_admit_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(ADMIT_OTHERS_VARIABLE, "1")
    made = CustomLogitProcessor.from_str(DisallowedTokensLogitsProcessor.to_str())
    assert isinstance(made, DisallowedTokensLogitsProcessor)


def test_ours_is_one_object():
    """SGLang asks for it with each batch; its state outlives them."""
    ours = CustomLogitProcessor.from_str(PROCESSOR)
    assert isinstance(ours, LogitportProcessor)
    assert CustomLogitProcessor.from_str(PROCESSOR) is ours


def test_no_place_for_the_guard(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(CustomLogitProcessor, "from_str")
    with pytest.raises(SystemExit, match="cannot guard this version of SGLang"):
        plugin.load()
