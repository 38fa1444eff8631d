"""What vLLM's scheduler does to a request: its prompt in chunks, preemption, resumption."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from logitport.spec import ForcedTokenSequenceSpec, ThinkingBudgetSpec

from .in_process import FLAG, engine, params

pytestmark = pytest.mark.engine

LOADING = pytest.mark.parametrize(
    "loading",
    [
        pytest.param({"logits_processors": FLAG}, id="flag"),
        pytest.param(
            {},
            id="entry point",
            marks=pytest.mark.only("v1", reason="V2 does not tell one from the other"),
        ),
    ],
)


@LOADING
def test_prompt_in_chunks(model: Path, tokenizer: Any, loading: dict[str, Any]):
    text = "Forced, however many chunks the prompt comes in."
    spec = ForcedTokenSequenceSpec.from_text(text, tokenizer)
    prompt = {"prompt_token_ids": tokenizer.encode("All work and no play. " * 60)[:330]}

    with engine(model, max_num_batched_tokens=64, **loading) as running:
        processor = running.processors[-1]
        with patch.object(processor, "apply", wraps=processor.apply) as applied:
            (output,) = running.generate([prompt], [params(spec, max_tokens=100)])
        scheduled = [tokens for step in running.steps for tokens in step.values()]

    # The processor is called for each chunk: those before the last one make no output token.
    assert scheduled[:6] == [64, 64, 64, 64, 64, 10]
    assert applied.call_count == len(scheduled) == 5 + len(output.token_ids)
    assert list(output.token_ids) == [*spec.token_ids, tokenizer.eos_token_id]
    assert output.text == text


@LOADING
def test_preempted_and_resumed(model: Path, tokenizer: Any, loading: dict[str, Any]):
    texts = [f"Request {i}: " + f"{i} and {i + 1}, then " * (8 + i) + "end." for i in range(8)]
    specs = [ForcedTokenSequenceSpec.from_text(text, tokenizer) for text in texts]
    sampling = {"temperature": 1.5, "max_tokens": 200}

    # 16 blocks of 32 tokens, one of them vLLM's own: the 8 requests end at 2.5 times as much.
    cache = {"block_size": 32, "num_gpu_blocks_override": 16, "max_model_len": 256}
    with engine(model, max_num_seqs=8, **cache, **loading) as running:
        outputs = running.generate(
            [f"Count from {i}:" for i in range(8)], [params(spec, **sampling) for spec in specs]
        )
        assert sum(so_far > 0 for so_far in running.preempted) >= 3  # in the midst of their texts
        assert running.held_requests() == 0

    for text, spec, output in zip(texts, specs, outputs, strict=True):
        assert output.text == text
        assert list(output.token_ids) == [*spec.token_ids, tokenizer.eos_token_id]
        assert output.finish_reason == "stop"


@pytest.mark.only("v2", reason="V1 passes the prompt to its processors")
def test_the_host_reads_what_a_request_has(model: Path, tokenizer: Any):
    """The device would take long. A request that comes again has an output."""
    from logitport.adapters.core.device import requests

    prompts = [tokenizer.encode(f"Count from {i}:") for i in range(8)]
    sampling = params(ThinkingBudgetSpec(3, (1,), (2,)), max_tokens=60, ignore_eos=True)
    fold, read = requests.fold_together, list[tuple[list[int], int]]()

    def folding(automata: Any, history: Any) -> Any:
        # The prompt may be the engine's own list, which grows.
        read.append(([*history.prompt_ids], len(history.output_ids)))
        return fold(automata, history)

    cache = {"block_size": 32, "num_gpu_blocks_override": 16, "max_model_len": 128}
    with engine(model, max_num_seqs=8, **cache) as running:
        with patch.object(requests, "fold_together", folding):
            running.generate([{"prompt_token_ids": ids} for ids in prompts], [sampling] * 8)
        preempted = running.preempted

    assert read[:8] == [(prompt, 0) for prompt in prompts]
    assert preempted
    assert sorted(length for _, length in read[8:]) == sorted(preempted)
    assert all(prompt in prompts for prompt, _ in read)


def test_without_eos_the_model_goes_on(model: Path, tokenizer: Any):
    prompt, text = "Where is Paris?", " Paris is the capital of France, which is"
    spec = ForcedTokenSequenceSpec.from_text(text, tokenizer, eos_token_id=None)

    with engine(model) as running:
        (forced,) = running.generate([prompt], [params(spec, max_tokens=len(spec.token_ids) + 12)])
        said_already = {"prompt_token_ids": [*tokenizer.encode(prompt), *spec.token_ids]}
        (free,) = running.generate([said_already], [params(max_tokens=12)])

    assert list(forced.token_ids) == [*spec.token_ids, *free.token_ids]
    assert forced.text == text + free.text
