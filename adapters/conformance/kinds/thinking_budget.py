"""``thinking_budget``."""

from typing import Any

from ....spec import ThinkingBudgetSpec
from .base import Draws, Edit, Force, FreeRun, Kind, Tokens, find, forcing


def _followed(spec: ThinkingBudgetSpec, prompt: Tokens, output: Tokens) -> tuple[Edit, bool]:
    """Return the edit, and whether a block has been closed and none is open since."""
    history, end_tag, position = prompt + output, spec.end_token_ids, 0
    while (opened := find(spec.start_token_ids, history, position)) is not None:
        closed = find(end_tag, history, opened)
        # Nothing can be forced within the prompt.
        spent = max(opened + spec.budget, len(prompt))
        if closed is not None and closed <= spent:
            position = closed
            continue
        if len(history) < spent:
            return None, False
        thoughts = history[opened:spent]
        begun = max(i for i in range(len(end_tag)) if thoughts[len(thoughts) - i :] == end_tag[:i])
        position = spent
        message = spec.message_token_ids
        if not begun and message:  # the end tag may begin in place of the message
            firsts = (
                i for i in range(spent, len(history)) if history[i] in (message[0], end_tag[0])
            )
            first = next(firsts, None)
            if first is not None and history[first] != message[0]:
                position, begun = first + 1, 1
        if begun:
            position += len(end_tag) - begun
            if len(history) < position:
                return Force(end_tag[len(history) - position]), False
            continue
        for text in filter(None, (message, end_tag)):
            due = forcing(text, history, position)
            if isinstance(due, Force):
                return due, False
            position = due
    return None, position > 0


def _examples(free: FreeRun) -> list[ThinkingBudgetSpec]:
    a, b, _ = free.unused
    return [ThinkingBudgetSpec(1, free.output_ids[:1], (a,), (b,))]


def _strategy(draw: Draws) -> Any:
    counts, tags = draw.st.integers(0, draw.count), draw.st.tuples(draw.sequence, draw.sequence)
    return draw.builds(
        lambda budget, tags, message: ThinkingBudgetSpec(budget, tags[0], tags[1], message),
        counts,
        tags.filter(lambda tags: tags[0] != tags[1]),
        draw.maybe_sequence,
    )


KIND = Kind(
    ThinkingBudgetSpec(1, (1,), (2,)),
    edit=lambda spec, prompt, output: _followed(spec, prompt, output)[0],
    examples=_examples,
    strategy=_strategy,
    complete=lambda spec, prompt, output: _followed(spec, prompt, output)[1],
)
