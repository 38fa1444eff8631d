"""Transformers' continuous batching: specs for each request of a running manager."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from logitport.adapters.conformance import Output, Request
from logitport.adapters.transformers import BACKEND, ContinuousLogitportProcessor
from logitport.spec import (
    BannedTextSpec,
    BannedTokensSpec,
    ForcedTokenSequenceSpec,
    NoRepeatNgramSpec,
    SpecError,
    TriggerSpec,
)
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.requests import RequestState

from tests.adapters.suite import TinySuite
from tests.support.tiny_model import EOS, tiny_model

SMALL = {"num_blocks": 32, "page_size": 32, "max_batch_tokens": 64}
PLAIN = {"use_cuda_graph": False, "use_async_batching": False}


def init(model: Any, generation: GenerationConfig, **config: Any) -> Any:
    return model.init_continuous_batching(
        generation_config=generation,
        continuous_batching_config=ContinuousBatchingConfig(**SMALL | PLAIN | config),
    )


def run(manager: Any, asked: Sequence[tuple[list[int], int, dict[str, Any]]]) -> list[list[int]]:
    """Add requests at once, and wait for all of them."""
    names = [
        manager.add_request(prompt, max_new_tokens=tokens, **fields)
        for prompt, tokens, fields in asked
    ]
    results: dict[str, Any] = {}
    while len(results) < len(names):
        result = manager.get_result(timeout=300)
        assert result is not None, "a request hangs"
        assert result.error is None
        results[result.request_id] = result
    return [results[name].generated_tokens for name in names]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Any, ContinuousLogitportProcessor]]:
    generation = GenerationConfig(do_sample=False, eos_token_id=EOS, pad_token_id=EOS)
    manager = init(tiny_model(0).eval(), generation)
    processor = ContinuousLogitportProcessor(manager)
    manager.start()
    yield manager, processor
    manager.stop(block=True)


class TestConformance(TinySuite):
    backend = BACKEND
    uses = ("running",)
    shows_scores = False

    def run(self, running: Any, requests: Sequence[Request]) -> list[Output]:
        manager, processor = running
        fields = [processor.fields(each.specs, each.continued) for each in requests]
        asked = zip(requests, fields, strict=True)
        asked = [([*each.prompt_ids], each.max_tokens, more) for each, more in asked]
        return [Output(tokens) for tokens in run(manager, asked)]


def test_requests_that_are_preempted(monkeypatch: pytest.MonkeyPatch):
    """There is no room for all of them: some come back, with their output in the prompt."""
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=EOS)
    specs = [TriggerSpec((7,), (8, 9), None), NoRepeatNgramSpec(2, output_only=True)]
    model = tiny_model(0).eval()
    outputs: list[list[list[int]]] = []
    resets: list[str] = []
    plain = RequestState.create_equivalent_initial_request

    def note(state: RequestState) -> RequestState:
        resets.append(state.request_id)
        return plain(state)

    monkeypatch.setattr(RequestState, "create_equivalent_initial_request", note)
    for blocks in (64, 6):
        assert not resets
        manager = init(model, generation, num_blocks=blocks, allow_block_sharing=False)
        processor = ContinuousLogitportProcessor(manager)
        manager.start()
        try:
            fields = processor.fields(specs)
            outputs.append(run(manager, [([5 + i] * 20, 40, fields) for i in range(4)]))
        finally:
            manager.stop(block=True)
    assert resets
    assert outputs[0] == outputs[1]
    for output in outputs[0]:
        pairs = [*pairwise(output)]
        assert len({*pairs}) == len(pairs)


@pytest.mark.parametrize("name", ["use_async_batching", "use_cuda_graph"])
def test_what_it_does_not_run_beside(name: str):
    manager = init(tiny_model(0), GenerationConfig())
    setattr(manager.continuous_batching_config, name, True)  # as on a GPU
    with pytest.raises(SpecError, match=f"does not support specs with `{name}`"):
        ContinuousLogitportProcessor(manager)


def test_what_is_refused(running: tuple[Any, ContinuousLogitportProcessor]):
    _, processor = running
    with pytest.raises(SpecError, match="pass tokenizer="):
        processor.fields(BannedTextSpec(("a",)))
    with pytest.raises(SpecError, match="beyond the vocabulary") as error:
        processor.fields([BannedTokensSpec((1,)), ForcedTokenSequenceSpec((1, 512))])
    assert error.value.path == "$.specs[1].token_ids[1]"
    generation = GenerationConfig(suppress_tokens=[5])
    strict = ContinuousLogitportProcessor(init(tiny_model(0), generation))
    with pytest.raises(SpecError, match="suppress_tokens"):
        strict.fields(ForcedTokenSequenceSpec((5,)))
    assert strict.fields(()) == {}
