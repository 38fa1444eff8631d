"""Under the V1 runner, too, Triton compiles while the engine starts, and for no request."""

import pytest
import torch
from logitport import spec as lp
from logitport.adapters.core import compile_specs
from logitport.adapters.core.device import edit_kernel
from logitport.adapters.core.host import realizer
from logitport.adapters.core.host.triton_editor import TritonEditor
from logitport.adapters.vllm.v1_batch import V1Batch

from tests.support.kernels import Launches

from .stand_ins import configuration


def on_gpu(logits: torch.Tensor) -> TritonEditor:
    return TritonEditor(logits.device)


@pytest.mark.parametrize("vocabulary", [151_936, 50_257])
def test_no_request_waits_for_a_kernel(monkeypatch: pytest.MonkeyPatch, vocabulary: int) -> None:
    kernel = Launches(edit_kernel._edit_kernel)
    monkeypatch.setattr(edit_kernel, "_edit_kernel", kernel)
    monkeypatch.setattr(realizer, "editor_for", on_gpu)
    batch = V1Batch(configuration(), vocabulary, lambda params: None, torch.device("cpu"))
    warm = set(kernel.variants)
    assert len(warm) == 1
    several = (
        lp.AllowedTokensSpec((1, 2)),
        lp.BannedTokensSpec((1,)),
        lp.ForcedTokenSequenceSpec((1, 2), 0),
        lp.TriggerSpec((1,), (2,)),
        lp.LogitBiasSpec({1: 1.0}),
    )
    for row in range(17):
        program = compile_specs(several[row % 5 : 1 + row % 5 + row % 3])
        batch.realizer.add(row, program, [1, 2], [])
        batch.apply(torch.zeros(row + 1, vocabulary))
    assert batch.realizer.failed_requests == 0
    assert kernel.variants == warm
