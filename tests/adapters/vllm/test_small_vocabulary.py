"""A checkpoint with a small vocabulary is that of the model, and knows every text."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer

from examples._support.smollm2 import prepare

from .small_vocabulary import EMBEDDING, WEIGHTS, with_small_vocabulary

SIZE = 1000


@pytest.fixture(scope="module")
def small() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield with_small_vocabulary(prepare(), Path(folder) / "small", SIZE)


@pytest.mark.parametrize(
    "text",
    [
        "Once upon a time, there was",
        "<|im_start|>user\nHello<|im_end|>",
        "unreasonableness, 31415, !?\n\n\t  end",
        'Exactly this: "Grüße, 世界" 🙂',
    ],
)
def test_any_text_is_tokens_of_it(small: Path, text: str):
    tokenizer, full = (AutoTokenizer.from_pretrained(folder) for folder in (small, prepare()))
    token_ids = tokenizer.encode(text)
    assert tokenizer.decode(token_ids) == text
    assert max(token_ids) < SIZE == len(tokenizer) < max(full.encode(text))
    assert tokenizer.all_special_ids == full.all_special_ids
    # The same tokens, shorter ones.
    assert [full.decode([i]) for i in token_ids] == [tokenizer.decode([i]) for i in token_ids]
    assert len(token_ids) > len(full.encode(text))


def test_weights_are_the_models(small: Path):
    cut, full = load_file(small / WEIGHTS), load_file(prepare() / WEIGHTS)
    assert AutoConfig.from_pretrained(small).vocab_size == SIZE
    assert cut.keys() == full.keys()
    for name, weight in full.items():
        assert torch.equal(cut[name], weight[:SIZE] if name == EMBEDDING else weight), name
