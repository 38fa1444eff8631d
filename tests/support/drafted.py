"""Specs for requests whose tokens are drafted, by another model or from their own prompt."""

from collections.abc import Callable, Sequence

from logitport.spec import (
    BannedSequencesSpec,
    ChoiceSpec,
    ForcedTokenSequenceSpec,
    LogitBiasSpec,
    LogitsProcessorSpec,
    NoRepeatNgramSpec,
    ThinkingBudgetSpec,
    TriggerSpec,
)

PROMPT = [5, 11, 3, 8, 11, 40, 21, 9, 30, 5, 11, 3, 8]
"""What is forced is in the prompt, up to a token: a draft that is looked up there is right first,
and then wrong."""

Make = Callable[[Sequence[int]], tuple[LogitsProcessorSpec, ...]]
EOS = 2
FORCED = (11, 40, 21, 9, 31, 5, 11, 3, 8, 11, 41)

DRAFTED: dict[str, Make] = {
    "forced": lambda free: (ForcedTokenSequenceSpec(FORCED, EOS),),
    "choice": lambda free: (ChoiceSpec(((11, 40, 21, 10), (11, 40, 22), (400,)), EOS),),
    "banned_sequence": lambda free: (BannedSequencesSpec((tuple(free[3:5]),)),),
    "ngrams": lambda free: (NoRepeatNgramSpec(1), LogitBiasSpec({300: 1000.0, 301: 900.0})),
    "thinking_budget": lambda free: (ThinkingBudgetSpec(3, (free[1],), (11, 40), (8,)),),
    "trigger": lambda free: (TriggerSpec((free[4],), FORCED[:5], None),),
}
"""From what a model says by itself to specs that change it."""
