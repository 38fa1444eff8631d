"""vLLM passes the suite that logitport ships for backends."""

from collections.abc import Sequence

import numpy as np
import pytest
from logitport.adapters.conformance import Generate, Output, Request
from logitport.adapters.vllm import BACKEND, attach

from tests.adapters.suite import TinySuite

from .in_process import Engine, params

VOCABULARY = 512


class TestConformance(TinySuite):
    backend = BACKEND
    attaches = True
    uses = ("tiny",)

    def run(self, tiny: Engine, requests: Sequence[Request]) -> list[Output]:
        asked = [
            attach(
                params(max_tokens=each.max_tokens, logprobs=-1 if each.shows_scores else None),
                each.specs,
                stage=each.attached_for,
                generation_only=each.generation_only,
                continued=each.continued,
            )
            for each in requests
        ]
        prompts = [{"prompt_token_ids": [*request.prompt_ids]} for request in requests]
        return [
            Output([*result.token_ids], _first_scores(result.logprobs))
            for result in tiny.generate(prompts, asked)
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
