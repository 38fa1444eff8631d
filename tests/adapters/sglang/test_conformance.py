"""SGLang passes the suite that logitport ships for backends."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logitport.adapters.conformance import ConformanceSuite, Generate, Output, Request
from logitport.adapters.sglang import BACKEND, attach

from tests.support.tiny_model import EOS

from .in_process import engine

pytestmark = pytest.mark.engine

VOCABULARY = 512


@pytest.fixture(scope="module")
def running(tiny_checkpoint: Path) -> Iterator[Any]:
    with engine(
        tiny_checkpoint,
        skip_tokenizer_init=True,
        chunked_prefill_size=32,
        max_running_requests=TestConformance.slots,
    ) as running:
        yield running


class TestConformance(ConformanceSuite):
    backend = BACKEND
    vocab_size = VOCABULARY
    eos_token_id = EOS
    slots = 4
    long_prompt = 100
    resumes = False
    has_stages = False
    shows_scores = True
    dtypes = ("float32",)

    @pytest.fixture
    def generate(self, running: Any) -> Generate:
        def generate(requests: Sequence[Request]) -> list[Output]:
            asked = [
                attach(
                    {"sampling_params": {"temperature": 0, "max_new_tokens": request.max_tokens}},
                    request.specs,
                )
                for request in requests
            ]
            results = running.generate(
                input_ids=[[*request.prompt_ids] for request in requests],
                sampling_params=[each["sampling_params"] for each in asked],
                custom_logit_processor=[each["custom_logit_processor"] for each in asked],
                return_logprob=[request.shows_scores for request in requests],
                top_logprobs_num=[VOCABULARY * request.shows_scores for request in requests],
            )
            return [Output(result["output_ids"], _first_scores(result)) for result in results]

        return generate


def _first_scores(result: dict[str, Any]) -> np.ndarray | None:
    found = result["meta_info"].get("output_top_logprobs")
    if not found:
        return None
    scores = np.full(VOCABULARY, -np.inf, np.float32)
    for logprob, token, _ in found[0]:
        scores[token] = logprob
    return scores
