"""Texts that a model writes all the time, and specs about text in a small vocabulary."""

from collections.abc import Sequence

import torch
from logitport.adapters.core import Realizer, Vocabulary, compile_specs
from logitport.spec import BannedTextSpec, LogitsProcessorSpec

BANNED = BannedTextSpec(("e", " th", "ing"), ignore_case=True)


def is_free_of_banned(text: str) -> bool:
    """Whether an output holds none of the texts of ``BANNED``, and is not empty."""
    return bool(text) and not any(each in text.lower() for each in BANNED.texts)


def banned_after(
    specs: Sequence[LogitsProcessorSpec], tokens: Sequence[bytes | None], output: Sequence[int]
) -> set[int]:
    """The tokens that may not come after an output."""
    realizer = Realizer(len(tokens))
    realizer.add(0, compile_specs(specs, lambda: Vocabulary.of_tokens(tokens)), [], [*output])
    logits = torch.zeros(1, len(tokens))
    realizer.apply(logits)
    return {i for i, logit in enumerate(logits[0].tolist()) if logit < 0}
