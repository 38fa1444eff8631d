"""Overlap scheduling, where an operator does not let requests wait for their tokens."""

from pathlib import Path

import pytest
from logitport.adapters.reference import obeys
from logitport.adapters.sglang.admission import Admission
from logitport.spec import BannedTokensSpec, ForcedTokenSequenceSpec

from .in_process import engine, generate, outputs

pytestmark = pytest.mark.slow


def test_only_what_needs_no_tokens_is_let_in(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
):
    late = {"SGLANG_ENABLE_DELAY_SAMPLE": "0"}
    options = {"skip_tokenizer_init": True, "disable_overlap_schedule": False}
    with engine(tiny_checkpoint, late, **options) as running:
        free = outputs(generate(running, [()]))
        banned = BannedTokensSpec((free[0][0],))
        for checked in (True, False):
            if not checked:
                monkeypatch.setattr(Admission, "admit", lambda self, request: None)
            static, needs_tokens, *others = generate(
                running, [banned, ForcedTokenSequenceSpec((10, 11))]
            )
            assert obeys(banned, [], static["output_ids"])
            assert isinstance(needs_tokens, ValueError)
            assert "`forced_sequence` needs the output tokens" in str(needs_tokens)
            assert "$.specs[0]" in str(needs_tokens)
            assert outputs(others) == free[2:]
