"""The same text by a processor that counts its calls, and by ours, on a prompt in chunks.

It keeps true what docs/how-it-works.md says about the number of calls.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from dynamo.logits_processing.examples import ForcedSequenceLogitsProcessor
from logitport.spec import ForcedTokenSequenceSpec

from .in_process import FLAG, engine, params

pytestmark = [
    pytest.mark.engine,
    pytest.mark.only("v1", reason="vLLM's adapter is for the V1 runner alone"),
]

TEXT = "Forced, however many chunks the prompt comes in."


def adapted(eos_token_id: int) -> type:
    """Dynamo's processor for vLLM, as vLLM's documentation says to wrap one of a request."""
    from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

    class Adapted(AdapterLogitsProcessor):
        def is_argmax_invariant(self) -> bool:
            return False

        def new_req_logits_processor(self, params: Any) -> Any:
            token_ids = (params.extra_args or {}).get("dynamo")
            if token_ids is None:
                return None
            processor = ForcedSequenceLogitsProcessor(token_ids, eos_token_id)

            def call(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
                processor(output_ids, logits)
                return logits

            return call

    return Adapted


def test_prompt_in_chunks(model: Path, tokenizer: Any):
    spec = ForcedTokenSequenceSpec.from_text(TEXT, tokenizer)
    ids, eos = list(spec.token_ids), tokenizer.eos_token_id
    text = tokenizer.encode("All work and no play. " * 100)
    arguments = {
        "max_num_batched_tokens": 64,
        "enable_prefix_caching": False,
        "logits_processors": [*FLAG, adapted(eos)],
    }

    with engine(model, **arguments) as running:
        for chunks in (1, 3, 6):
            prompt = {"prompt_token_ids": text[: 64 * chunks - 10]}
            (ours,) = running.generate([prompt], [params(spec, max_tokens=100)])
            before = len(running.steps)
            (theirs,) = running.generate(
                [prompt], [params(extra_args={"dynamo": ids}, max_tokens=100)]
            )
            scheduled = [tokens for step in running.steps[before:] for tokens in step.values()]

            assert scheduled[: chunks + 1] == [*[64] * (chunks - 1), 54, 1]
            assert list(ours.token_ids) == [*ids, eos]
            assert ours.text == TEXT
            # Each chunk before the last one is a call that makes no token.
            assert list(theirs.token_ids) == [*ids[chunks - 1 :], eos]
            assert theirs.text == tokenizer.decode(ids[chunks - 1 :])
