"""Hypothesis strategies for specs over a small vocabulary."""

from collections.abc import Collection, Sequence
from typing import Any

from hypothesis import strategies as st
from logitport.adapters.reference.kinds import KINDS, REALIZED
from logitport.adapters.reference.kinds.base import Draws
from logitport.spec import (
    DrySpec,
    LogitsProcessorSpec,
    NoLoopSpec,
    NoRepeatNgramSpec,
    Payload,
    PhasesSpec,
    PromptBiasSpec,
    SamplingSpec,
    SpecError,
    ThinkingBudgetSpec,
)
from logitport.spec.limits import MAX_HISTORY_RULES, MAX_LOOP_RULES, MAX_PROMPT_RULES

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
    rules = len({spec for spec in specs if isinstance(spec, NoRepeatNgramSpec)})
    dry = sum(isinstance(spec, DrySpec) for spec in specs)
    readers = sum(isinstance(spec, PromptBiasSpec | ThinkingBudgetSpec) for spec in specs)
    loops = {spec for spec in specs if isinstance(spec, NoLoopSpec)}
    readers += sum(bool(spec.start_token_ids) for spec in loops)
    phases = [spec.phases[0].specs for spec in specs if isinstance(spec, PhasesSpec)]
    readers += sum(len(first) for first in phases)
    rules_fit = dry <= 1 and rules + dry <= MAX_HISTORY_RULES and len(loops) <= MAX_LOOP_RULES
    return rules_fit and readers <= MAX_PROMPT_RULES


samplings = specs(2, kinds=[SamplingSpec])
