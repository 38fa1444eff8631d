"""mlx-lm with a real model: single prompts, batches, drafts, caches, narrow logits."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
import torch
from logitport import spec as lp
from logitport.adapters.conformance import Output, Request
from logitport.adapters.conformance.suite import DTYPES
from logitport.adapters.core import Realizer
from logitport.adapters.core.program import compile_specs
from logitport.adapters.mlx import BACKEND, LogitportProcessor
from mlx_lm.generate import BatchGenerator, generate_step, speculative_generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.llama import Model, ModelArgs
from mlx_lm.sample_utils import make_sampler

from tests.adapters.suite import TinySuite
from tests.support.drafted import DRAFTED
from tests.support.endings import PROMPT as PROMPT_IDS
from tests.support.endings import REPLIES, assert_ended, ending
from tests.support.grammars import LONGEST, answer_of, thinking
from tests.support.texts import BANNED, is_free_of_banned
from tests.support.tiny_model import EOS, tiny_model


def of_chance(seed: int, dtype: str = "float32") -> Model:
    """A model of chance, as MLX runs it."""
    source = tiny_model(seed)
    config = source.config.to_dict()
    made = Model(
        ModelArgs.from_dict({**config, "rope_theta": 10000.0, "tie_word_embeddings": False})
    )
    weights = [(name, mx.array(value.numpy())) for name, value in source.state_dict().items()]
    made.load_weights(weights)
    made.set_dtype(getattr(mx, dtype))
    return made


@pytest.fixture(scope="module")
def tiny() -> dict[str, Model]:
    return {dtype: of_chance(0, dtype) for dtype in DTYPES}


class TestConformance(TinySuite):
    """Requests share a batch, which they join and leave; each has a processor of its own."""

    backend = BACKEND
    uses = ("tiny", "tokenizer")
    long_prompt = 300
    dtypes = DTYPES

    def run(self, tiny: Any, tokenizer: Any, requests: Sequence[Request]) -> list[Output]:
        (dtype,) = {request.dtype for request in requests}
        model = tiny[dtype]
        processors = [
            [LogitportProcessor(model, tokenizer, each.specs, continued=each.continued)]
            if each.specs
            else []
            for each in requests
        ]
        sizes = {"prefill_batch_size": 2, "prefill_step_size": 64}
        sizes["completion_batch_size"] = self.slots
        batch = BatchGenerator(model, stop_tokens=[[EOS]], **sizes)
        numbers = batch.insert(
            [[*request.prompt_ids] for request in requests],
            max_tokens=[request.max_tokens for request in requests],
            logits_processors=processors,
        )
        outputs: dict[int, list[Any]] = {number: [] for number in numbers}
        while responses := batch.next_generated():
            for response in responses:
                outputs[response.uid].append(response)
        batch.close()
        return [
            Output(
                [response.token for response in responses],
                np.array(responses[0].logprobs.astype(mx.float32)),
            )
            for responses in outputs.values()
        ]


@pytest.fixture(scope="module")
def loaded(model: Path) -> tuple[Any, Any]:
    return mlx_lm.load(str(model))[:2]


def say(loaded: Any, prompt: Any, specs: Any, **others: Any) -> str:
    processors = [LogitportProcessor(*loaded, specs)]
    return mlx_lm.generate(*loaded, prompt, logits_processors=processors, **others)


def test_texts(loaded: Any):
    """By the texts of a real model's tokens, and by its tokenizer."""
    prompt, cities = "The capital of France is", ["London", "Paris"]
    text = say(loaded, prompt, BANNED, max_tokens=24)
    assert is_free_of_banned(text), text
    assert say(loaded, prompt, {"kind": "choice", "texts": cities}, max_tokens=4) in cities


PROMPT = [5, 11, 3, 8, 11, 40, 21]


def steps(model: Any, prompt: Sequence[int], processors: Any = None, **others: Any) -> list[int]:
    """What a model says, without EOS."""
    prompt_ids, arguments = mx.array([*prompt]), {"max_tokens": 14, **others}
    generated = generate_step(prompt_ids, model, logits_processors=processors, **arguments)
    return list(takewhile(lambda token: token != EOS, (token for token, _ in generated)))


def test_a_processor_serves_one_generation_after_the_other(tiny: dict[str, Model], tokenizer: Any):
    """The second turn of a chat has all of the first one in its prompt."""
    model, text = tiny["float32"], [30, 31, 32]
    processor = LogitportProcessor(model, tokenizer, lp.ForcedTokenSequenceSpec(tuple(text), EOS))
    for prompt in (PROMPT, [*PROMPT, *text, EOS, 9, 8], PROMPT, [9, 8, 7]):
        assert steps(model, prompt, [processor]) == text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_texts_at_the_end(tiny: dict[str, Model], tokenizer: Any, dtype: str):
    """Of replies that are sampled, and end by themselves."""
    mx.random.seed(0)
    processors = [LogitportProcessor(tiny[dtype], tokenizer, ending(9.0))]
    batch = BatchGenerator(tiny[dtype], stop_tokens=[[EOS]], sampler=make_sampler(1.0))
    of_prompts = {"max_tokens": [400] * REPLIES, "logits_processors": [processors] * REPLIES}
    numbers = batch.insert([[*PROMPT_IDS]] * REPLIES, **of_prompts)
    outputs: dict[int, list[int]] = {number: [] for number in numbers}
    while responses := batch.next_generated():
        for response in responses:
            outputs[response.uid].append(response.token)
    batch.close()
    assert_ended([*outputs.values()])


def test_replies_think_and_then_answer(tiny: dict[str, Model], tokenizer: Any):
    """In a batch, of which each request has a processor; in float16, too."""
    start, end, last, replies = (504,), (505,), (506, 507), 12
    spec = thinking(start, end, last, EOS)
    for dtype in ("float32", "float16"):
        mx.random.seed(0)
        model = tiny[dtype]
        processors = [[LogitportProcessor(model, tokenizer, spec)] for _ in range(replies)]
        batch = BatchGenerator(model, stop_tokens=[[EOS]], sampler=make_sampler(1.0))
        of_prompts = {"max_tokens": [LONGEST] * replies, "logits_processors": processors}
        numbers = batch.insert([[5, 11, 3, *start]] * replies, **of_prompts)
        outputs: dict[int, list[int]] = {number: [] for number in numbers}
        while responses := batch.next_generated():
            for response in responses:
                outputs[response.uid].append(response.token)
        batch.close()
        how = tokenizer.decode, end, last, EOS
        names = {answer_of(output, *how)["name"] for output in outputs.values()}
        assert len(names) > 3


def test_caches(tiny: dict[str, Model], tokenizer: Any, caplog: Any):
    """A prompt of which a cache has the first part, and that is given."""
    model = tiny["float32"]
    prompt = [*range(100, 130), 9, *range(130, 180)]
    opened = lp.ThinkingBudgetSpec(60, (9,), (40, 41))
    expected = steps(model, prompt, [LogitportProcessor(model, tokenizer, opened)])

    def with_cache(prompt_ids: Any) -> list[int]:
        cache = make_prompt_cache(model)
        model(mx.array(prompt[:50])[None], cache=cache)
        processor = LogitportProcessor(model, tokenizer, opened, prompt_ids)
        return steps(model, prompt[50:], [processor], prompt_cache=cache)

    assert with_cache(prompt) == expected
    assert with_cache(None) == steps(model, prompt) != expected  # the block's begin is not shown
    assert with_cache([*prompt[:-1], 5]) == []  # ended: it is not the prompt
    assert "Expected the prompt that this processor has been made for" in caplog.text


def _seventh() -> Any:
    def process(prompt_ids: Sequence[int], output_ids: Sequence[int], logits: Any) -> None:
        assert list(prompt_ids) == PROMPT
        if len(output_ids) == 6:
            logits[77] += 1000

    return process


@pytest.mark.parametrize("seed", [0, 1])
def test_drafts(tiny: dict[str, Model], tokenizer: Any, seed: int):
    """Of the same model all are accepted, but where specs act; of another one hardly any."""
    model, assistant = tiny["float32"], of_chance(seed)
    free = steps(model, PROMPT)
    accepted = 0
    for make in (*DRAFTED.values(), lambda free: (lp.PythonProcessorSpec(_seventh),)):
        specs = make(free)
        expected = steps(model, PROMPT, [LogitportProcessor(model, tokenizer, specs)])
        assert expected != free
        drafted = [LogitportProcessor(model, tokenizer, specs, PROMPT)]
        for drafts in (2, 5):
            others = {"num_draft_tokens": drafts, "max_tokens": 14, "logits_processors": drafted}
            generated = speculative_generate_step(mx.array(PROMPT), model, assistant, **others)
            said, _, are_drafts = zip(*generated, strict=True)
            accepted += sum(are_drafts)
            assert list(takewhile(lambda token: token != EOS, said)) == expected, specs
    assert accepted > (150 if seed == 0 else 20)


def test_drafts_hide_the_prompt(tiny: dict[str, Model], tokenizer: Any, caplog: Any):
    """Where a spec has to look at it and it is not given, the generation is ended.

    An assistant with another vocabulary is left alone.
    """
    model, logits = tiny["float32"], mx.zeros((1, 256))
    processor = LogitportProcessor(model, tokenizer, lp.BannedTokensSpec((5,)))
    assert processor(mx.array([1, 2, 3]), logits) is logits

    def first(specs: Any) -> int:
        processors = [LogitportProcessor(model, tokenizer, specs)]
        generated = speculative_generate_step(
            mx.array(PROMPT), model, model, max_tokens=4, logits_processors=processors
        )
        return next(generated)[0]

    assert first(lp.ForcedTokenSequenceSpec((7,))) == 7
    for spec in (lp.NoRepeatNgramSpec(1), lp.PythonProcessorSpec(_seventh)):
        caplog.clear()
        assert first(spec) == EOS
        assert "Expected prompt_ids" in caplog.text


@pytest.mark.parametrize(
    ("times", "eos", "expected"),
    [(1, 5, [0, -1e9, 0, 0, 0, 0]), (2, 5, [-np.inf] * 5 + [0]), (2, None, [0] * 6)],
)
def test_a_generation_that_cannot_begin(
    times: int, eos: Any, expected: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch
):
    """It is ended, and nothing is raised, if it cannot begin at the second try either."""
    model = SimpleNamespace(args=SimpleNamespace(vocab_size=6))
    tokenizer = SimpleNamespace(eos_token_id=eos)
    processor = LogitportProcessor(model, tokenizer, lp.BannedTokensSpec((1,)))
    enter, left = Realizer.enter, iter(range(times))

    def fail_first(*arguments: Any) -> None:
        return enter(*arguments) if next(left, None) is None else 1 / 0  # pyright: ignore

    monkeypatch.setattr(Realizer, "enter", fail_first)
    edited = processor(mx.array([3, 4]), mx.zeros((1, 6)))
    assert edited[0].tolist() == expected
    assert ("cannot be realized" in caplog.text) == (times == 2)


@pytest.mark.parametrize("text", [{"vocab_size": 5}, SimpleNamespace(vocab_size=5)])
def test_a_model_of_text_and_more(tokenizer: Any, text: Any):
    """It says its vocabulary in its ``text_config``, a dict or a dataclass."""
    model = SimpleNamespace(args=SimpleNamespace(text_config=text))
    with pytest.raises(lp.SpecError, match="beyond the vocabulary of 5 tokens"):
        LogitportProcessor(model, tokenizer, lp.BannedTokensSpec((5,)))
    with pytest.raises(lp.SpecError, match="vocab_size"):
        LogitportProcessor(object(), tokenizer, lp.BannedTokensSpec((5,)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_editor_agrees_with_that_of_torch(dtype: str):
    """On several rows, with specs that contradict one another, and in narrow logits to the bit."""
    rows: list[list[Any]] = [
        [lp.BannedTokensSpec((1, 2)), lp.LogitBiasSpec({2: 1.5, 3: -2.0, 4: 1e4})],
        [*map(lp.AllowedTokensSpec, ((1, 2, 5), (2, 5, 6))), lp.BannedTokensSpec((5,))],
        [lp.ForcedTokenSequenceSpec((3, 4)), lp.BannedTokensSpec((3,))],
        [lp.AllowedTokensSpec((6, 7))],
        [lp.ForcedTokenSequenceSpec((3,)), lp.BannedSequencesSpec(((3,), (5, 6)))],
    ]
    values = torch.randn(len(rows), 12, generator=torch.Generator().manual_seed(0))
    values[3] = -torch.inf
    values[1, 2] = -torch.inf
    expected = values.to(getattr(torch, dtype))
    edited = mx.array(values.numpy()).astype(getattr(mx, dtype))
    for logits in (expected, edited):
        realizer = Realizer(12)
        for row, specs in enumerate(rows):
            realizer.add(row, compile_specs(specs), (), [])
        for _ in range(2):
            realizer.apply(logits)
        assert realizer.failed_requests == 0
    np.testing.assert_array_equal(np.array(edited.astype(mx.float32)), expected.float().numpy())
