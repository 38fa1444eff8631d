"""Thinking on a budget and then an answer from a list, for tests at temperature 1."""

import re
from collections.abc import Callable, Sequence

from logitport.spec import (
    ChoiceSpec,
    ForcedTokenSequenceSpec,
    Phase,
    PhasesSpec,
    ThinkingBudgetSpec,
)

QUESTION = "Is water wet?\n<think>"
ANSWERED = re.compile(r"(.*)</think>Answer: (yes|no|it depends)", re.DOTALL)
"""The whole text of an output."""

BUDGET = 8


def think_then_answer(ids: Callable[[str], Sequence[int]], eos_token_id: int) -> PhasesSpec:
    """Make the phases for a prompt that opens the block, such as ``QUESTION``.

    Args:
        ids: encodes a text.
        eos_token_id: the token after the answer.
    """
    choices = tuple(tuple(ids(text)) for text in ("yes", "no", "it depends"))
    return PhasesSpec.think_then(
        ThinkingBudgetSpec(BUDGET, tuple(ids("<think>")), tuple(ids("</think>"))),
        ForcedTokenSequenceSpec(tuple(ids("Answer: "))),
        Phase((ChoiceSpec(choices, eos_token_id),)),
    )
