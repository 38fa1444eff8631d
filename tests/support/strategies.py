"""Hypothesis strategies for specs over a small vocabulary."""

from collections.abc import Collection, Sequence
from typing import Any

from hypothesis import strategies as st
from logitport.adapters.conformance.kinds import KINDS, REALIZED
from logitport.adapters.conformance.kinds.base import Draws
from logitport.spec import (
    DrySpec,
    LogitsProcessorSpec,
    NoRepeatNgramSpec,
    Payload,
    PromptBiasSpec,
    SamplingSpec,
    SpecError,
)
from logitport.spec.limits import MAX_DRY_RULES, MAX_NGRAM_RULES, MAX_PROMPT_BIASES

Spec = LogitsProcessorSpec
Specs = st.SearchStrategy[Spec]


def specs(vocab_size: int, *, kinds: Collection[type[Spec]] = REALIZED, **sizes: int) -> Specs:
    """One valid spec of any of ``kinds``; ``sizes`` as for ``Draws``."""
    draw = Draws(vocab_size, **sizes)
    return st.one_of(*(KINDS[kind].strategy(draw) for kind in kinds))


@st.composite
def payload_specs(
    draw: st.DrawFn, vocab_size: int, max_size: int = 4, **sizes: Any
) -> tuple[Spec, ...]:
    """1 to ``max_size`` specs that a payload takes together; ``sizes`` as for ``specs``."""
    kept: tuple[Spec, ...] = ()
    for spec in draw(st.lists(specs(vocab_size, **sizes), min_size=1, max_size=max_size)):
        try:
            Payload(1, (*kept, spec))  # pyright: ignore[reportArgumentType]
        except SpecError:
            continue  # contradicts one that is there already; the first never does
        if within_limits((*kept, spec)):
            kept = (*kept, spec)
    return kept


def within_limits(specs: Sequence[Spec]) -> bool:
    """Whether there are no more specs of a kind than one request may have."""
    rules = {spec for spec in specs if isinstance(spec, NoRepeatNgramSpec)}
    biases = sum(isinstance(spec, PromptBiasSpec) for spec in specs)
    dry = sum(isinstance(spec, DrySpec) for spec in specs)
    few = dry + len(rules) <= MAX_NGRAM_RULES and biases <= MAX_PROMPT_BIASES
    return few and dry <= MAX_DRY_RULES


samplings = specs(2, kinds=[SamplingSpec])
