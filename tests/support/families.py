"""Tokenizers of the families of models that think."""

from functools import cache

from logitport.spec import THINKING_FAMILIES, ThinkingBudgetSpec, ThinkingFamily
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.support.paths import ROOT

FAMILIES = {family.name: family for family in THINKING_FAMILIES}

TEXTS = [
    "Hi. So <think>\n\n</think>\n\n I know. Here is my thought process: no.\nAnswer: yes\n"
] * 9

SMOLLM2 = ROOT / ".models" / "SmolLM2-135M-Instruct" / "tokenizer.json"


def filled(family: ThinkingFamily) -> ThinkingFamily:
    """Put a suffix into the tags that have one."""
    texts = (tuple(text.replace("{suffix}", ":x") for text in texts) for texts in family[2:4])
    start, end = texts
    tokens = tuple(token.replace("{suffix}", ":x") for token in family.tokens)
    return family._replace(start=start, end=end, tokens=tokens)


@cache
def tokenizer_of(name: str) -> Tokenizer:
    """Make a byte-level BPE tokenizer that has the special tokens of a family."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, max_token_length=4, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([*filled(FAMILIES[name]).tokens])
    return tokenizer


def spec_of(name: str, budget: int) -> ThinkingBudgetSpec:
    family = None if FAMILIES[name].tokens else name
    return ThinkingBudgetSpec.for_tokenizer(budget, tokenizer_of(name), family=family)
