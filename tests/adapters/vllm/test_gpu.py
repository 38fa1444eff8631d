"""The engine as it starts by itself on a GPU: in a process of its own, with CUDA graphs and
asynchronous scheduling; under V2 with drafts, too.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from logitport import spec as lp
from logitport.adapters.reference import obeys

from .in_process import FLAG, lookup, params

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


ONLY_V2 = pytest.mark.only("v2", reason="V1 takes no processors beside drafts")
DRAFTS = {"speculative_config": lookup(3)}


@pytest.mark.parametrize(
    "arguments", [pytest.param({}, id="plain"), pytest.param(DRAFTS, id="drafts", marks=ONLY_V2)]
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_mixed_batch(
    model: Path, tokenizer: Any, runner: str, monkeypatch: Any, arguments: Any, temperature: float
):
    from vllm import LLM

    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    text = "one two three one two three one two three one two <think>"
    prompt = tokenizer.encode(text)
    specs: list[lp.LogitsProcessorSpec] = [
        lp.ForcedTokenSequenceSpec.from_text("Exactly this, this, this and this.", tokenizer),
        lp.AllowedTokensSpec(prompt),
        lp.BannedTokensSpec(prompt),
        lp.ForcedEndSpec.from_text(20, " The end.", tokenizer),
        lp.ChoiceSpec.from_text([" yes", " yes, please", " no"], tokenizer),
        lp.ThinkingBudgetSpec.from_text(16, tokenizer),
        lp.NoRepeatNgramSpec(2),
        lp.PromptBiasSpec(1000.0),
    ]
    arguments = {"max_model_len": 1024, "gpu_memory_utilization": 0.3, **arguments}
    llm = LLM(str(model), logits_processors=FLAG, **arguments)
    requests = [(spec, i) for i in range(25) for spec in (*specs, None)]
    fields = {"temperature": temperature, "max_tokens": 64, "ignore_eos": True}
    asked = [params(spec, seed=i, **fields) for spec, i in requests]
    outputs = llm.generate([{"prompt_token_ids": prompt}] * len(requests), asked)
    llm.llm_engine.engine_core.shutdown()

    for (spec, i), output in zip(requests, outputs, strict=True):
        said = list(output.outputs[0].token_ids)
        assert len(said) == 64
        assert spec is None or obeys(spec, prompt, said), (spec, i, output.outputs[0].text)
