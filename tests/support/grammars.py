"""Replies that think, then answer in JSON, then say a text, on any engine."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import jsonschema
from logitport import spec as s
from logitport.spec import GrammarSpec, Phase, PhaseEnd, PhasesSpec

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
ANSWER = GrammarSpec(json_schema=SCHEMA)
BUDGET = 12
LONGEST = 120
"""The most tokens of a reply: each part is bounded."""


def thinking(start: Sequence[int], end: Sequence[int], last: Sequence[int], eos: int) -> PhasesSpec:
    """Think for twelve tokens at most, then answer, then say a text."""
    complete = (PhaseEnd(complete=True),)
    budget = s.ThinkingBudgetSpec(BUDGET, tuple(start), tuple(end))
    return PhasesSpec(
        (
            Phase((budget,), complete),
            Phase((ANSWER,), complete),
            Phase((s.ForcedTokenSequenceSpec(tuple(last), eos),)),
        ),
        stop_token_ids=(eos,),
    )


def answer_of(
    output: Sequence[int],
    decode: Callable[[list[int]], str],
    end: Sequence[int],
    last: Sequence[int],
    eos: int,
) -> Any:
    """Return the answer of a reply that thought, and that has said its last text."""
    ids = [*output, *([] if output[-1] == eos else [eos])]
    at = next(i for i in range(len(ids)) if ids[i : i + len(end)] == [*end]) + len(end)
    assert ids[-len(last) - 1 :] == [*last, eos]
    answer = json.loads(decode(ids[at : -len(last) - 1]))
    jsonschema.validate(answer, SCHEMA)
    return answer
