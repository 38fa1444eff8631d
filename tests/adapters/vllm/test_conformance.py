"""vLLM passes the suite that logitport ships for backends."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from logitport.adapters.conformance import Generate, Output, Request
from logitport.adapters.vllm import BACKEND

from tests.adapters.suite import TinySuite
from tests.support.tiny_model import tiny_model
from tests.tools.compatibility import NO_PROCESSORS

from .in_process import FLAG, Engine, engine, params, v2_takes_processors

pytestmark = pytest.mark.engine

VOCABULARY = 512


@pytest.fixture(scope="module")
def running(runner: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A model of chance: the suite runs hundreds of requests, and any model will do."""
    if runner == "v2" and not v2_takes_processors():
        pytest.skip(NO_PROCESSORS)
    model = tmp_path_factory.mktemp("model")
    tiny_model(0, heads=2).save_pretrained(model)  # vLLM has no heads of 16 on CPUs
    with engine(
        model,
        skip_tokenizer_init=True,
        logits_processors=FLAG,
        max_model_len=256,
        max_num_seqs=TestConformance.slots,
        max_num_batched_tokens=32,  # so that a long prompt is prefilled in chunks
        enable_chunked_prefill=True,
        enable_prefix_caching=False,
        logprobs_mode="processed_logits",
        max_logprobs=-1,
    ) as running:
        yield running


class TestConformance(TinySuite):
    backend = BACKEND
    uses = ("running",)

    def run(self, running: Engine, requests: Sequence[Request]) -> list[Output]:
        asked = [
            params(
                each.specs,
                continued=each.continued,
                max_tokens=each.max_tokens,
                logprobs=-1 if each.shows_scores else None,
            )
            for each in requests
        ]
        prompts = [{"prompt_token_ids": [*request.prompt_ids]} for request in requests]
        return [
            Output([*result.token_ids], _first_scores(result.logprobs))
            for result in running.generate(prompts, asked)
        ]

    @pytest.mark.only("v1", reason="under V2, a request stays until another takes its slot")
    def test_what_has_left_is_forgotten(self, generate: Generate):
        super().test_what_has_left_is_forgotten(generate)


def _first_scores(logprobs: list | None) -> np.ndarray | None:
    if not logprobs:
        return None
    scores = np.empty(VOCABULARY, np.float32)
    for token, entry in logprobs[0].items():
        scores[token] = entry.logprob
    return scores
