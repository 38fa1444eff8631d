"""Banned texts on the real engine, sampled hot, with prompts that ask for each of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logitport import spec as lp

from .in_process import FLAG, Engine, engine, params

pytestmark = [
    pytest.mark.engine,
    pytest.mark.only("v1", reason="the batch of all kinds has a banned text under V2, too"),
]

WORDS = (
    *("banana", "elephant", "guitar", "Paris", "ocean", "winter", "doctor", "chocolate"),
    *("computer", "garden", "mountain", "tiger", "music", "Python", "rocket", "castle"),
    *("butterfly", "sandwich", "umbrella", "volcano"),
)
PROMPTS = [f"{(f'{word}, {word}s, {word.upper()}, ') * 4}{word}," for word in WORDS]
SAMPLES = 10


@pytest.fixture(scope="module")
def running(model: Path) -> Iterator[Engine]:
    arguments: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 64}
    with engine(model, logits_processors=FLAG, **arguments) as running:
        yield running


def count_with_words(running: Engine, spec: lp.LogitsProcessorSpec | None) -> int:
    """Sample ``SAMPLES`` outputs for each prompt, and count those that hold a word."""
    sampling = params(spec, temperature=1.5, max_tokens=24, n=SAMPLES, seed=0)
    outputs = running.llm.generate(PROMPTS, sampling, use_tqdm=False)
    texts = [each.text.lower() for output in outputs for each in output.outputs]
    assert len(texts) == len(PROMPTS) * SAMPLES
    return sum(any(word.lower() in text for word in WORDS) for text in texts)


def test_words_in_all_tokenizations(running: Engine, tokenizer: Any):
    assert count_with_words(running, None) > 30
    assert count_with_words(running, lp.BannedSequencesSpec.from_words(WORDS, tokenizer)) > 10
    assert count_with_words(running, lp.BannedTextSpec(WORDS, ignore_case=True)) == 0
