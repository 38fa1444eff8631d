"""From text to token ids, with real tokenizers small enough to be made here."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
from logitport import spec as lp
from logitport.adapters.cli.reply import Reply
from logitport.adapters.cli.steps import trace
from logitport.adapters.core import Realizer, Vocabulary, compile_specs
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

BOS, EOS, UNKNOWN, HELLO, WORLD, MARK = range(6)


@pytest.fixture
def bare() -> Tokenizer:
    """Puts BOS and EOS around everything, unless it is told not to."""
    words = ["<s>", "</s>", "<unk>", "Hello", "world", "!"]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>", "<unk>"])
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", BOS), ("</s>", EOS)]
    )
    return tokenizer


@pytest.fixture
def small(bare: Tokenizer) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=bare, bos_token="<s>", eos_token="</s>")


def test_no_special_tokens(small: Any, bare: Tokenizer):
    assert small.encode("Hello world!") == [BOS, HELLO, WORLD, MARK, EOS]
    made = partial(lp.ForcedTokenSequenceSpec.from_text, "Hello world!")
    words = (HELLO, WORLD, MARK)
    assert made(small) == made(bare, eos_token_id=EOS) == lp.ForcedTokenSequenceSpec(words, EOS)
    for eos in (None, WORLD):
        assert made(small, eos_token_id=eos) == lp.ForcedTokenSequenceSpec(words, eos)
    with pytest.raises(lp.SpecError, match=r"^Tokenizer has no EOS token: pass eos_token_id, or"):
        made(bare)


@pytest.mark.parametrize("other", ["gpt2", 64])
def test_refused(bare: Tokenizer, other: Any):
    for make, message in (
        (lambda: lp.ForcedTokenSequenceSpec.from_text("Hello", other), "Expected a tokenizer, got"),
        (lambda: lp.MinTokensSpec.from_tokenizer(3, other), "Expected a tokenizer, got "),
        (
            lambda: lp.BannedSequencesSpec.from_words(["Hello"], bare, leading_space=other),
            "leading_space to be one of 'both', 'with', 'without'",
        ),
    ):
        with pytest.raises(lp.SpecError, match=message):
            make()


def test_real_tokenizer(tokenizer: Any):
    def texts(sequences: Iterable[tuple[int, ...]]) -> list[str]:
        return [str(tokenizer.decode(list(sequence))) for sequence in sequences]

    banned = lp.BannedSequencesSpec.from_words(["Paris", "Ouagadougou"], tokenizer)
    assert texts(banned.sequences) == [" Paris", "Paris", " Ouagadougou", "Ouagadougou"]
    thinking = lp.ThinkingBudgetSpec.from_text(8, tokenizer, message="\nEnough.\n")
    assert texts([thinking.start_token_ids, thinking.end_token_ids]) == ["<think>", "</think>"]
    assert texts([thinking.message_token_ids]) == ["\nEnough.\n"]


@pytest.mark.parametrize(
    "spec",
    [
        lp.BannedTextSpec(("paris", "capital"), ignore_case=True),
        lp.MaxRunSpec(1),
        lp.BannedScriptsSpec(("Latin",)),
        lp.AllowedScriptsSpec(("Greek",)),
    ],
    ids=lambda spec: spec.kind,
)
def test_replay(tokenizer: Any, spec: lp.LogitsProcessorSpec):
    """It finds in a real vocabulary what the realizer bans there."""
    vocabulary = Vocabulary.of_tokenizer(tokenizer)
    output = tokenizer.encode("##")
    realizer, logits = Realizer(vocabulary.size), np.zeros((1, vocabulary.size), np.float32)
    realizer.add(0, compile_specs((spec,), lambda: vocabulary), [], output)
    realizer.apply(logits)
    banned = logits[0] < 0
    for token in (banned.argmax(), banned.argmin()):
        reply = Reply(None, [*output, int(token)], ())
        *_, last = trace({"$": spec}, reply, vocabulary=lambda: vocabulary).steps
        assert last.obeyed == (not banned[token])
        assert last.acting == {"$": f"banned {banned.sum()} token(s)"}
