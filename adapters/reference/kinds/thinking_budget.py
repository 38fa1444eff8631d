"""``thinking_budget``."""

from ....spec import ThinkingBudgetSpec
from ....spec.tags import end_tags, start_tags
from .base import Edit, Force, FreeRun, Kind, Tokens, ban, first_end, forcing


def _followed(spec: ThinkingBudgetSpec, prompt: Tokens, output: Tokens) -> tuple[Edit, bool]:
    """Return the edit, and whether a block has been closed and none is open since."""
    history, position, message = prompt + output, 0, spec.message_token_ids
    starts, ends = start_tags(spec), end_tags(spec)
    forced = (spec.end_token_ids + spec.then_token_ids, *spec.other_end_token_ids)
    while (opened := first_end(starts, history, position)) is not None:
        closed = first_end(ends, history, opened)
        # Nothing can be banned or forced within the prompt.
        floor = opened
        if spec.min_tokens:
            floor = max(opened + spec.min_tokens, len(prompt))
        spent = max(floor + spec.budget - spec.min_tokens, len(prompt))
        out_of_budget = spent
        spent += spec.grace
        for i in range(out_of_budget, min(spent, len(history))):
            if history[i] in spec.newline_token_ids:
                spent = i + 1
                break
        if closed is not None and closed <= spent:
            position = closed
            continue
        if len(history) < floor:
            completing = {tag[-1] for tag in ends if _ends_with(history[opened:], tag[:-1])}
            return ban(completing | {*spec.stop_token_ids}), False
        if len(history) < spent:
            return ban(spec.stop_token_ids), False
        thoughts, position = history[opened:spent], spent
        begun, which = max(
            (i, -which)
            for which, tag in enumerate(ends)
            for i in range(len(tag))
            if _ends_with(thoughts, tag[:i])
        )
        text = forced[-which]
        if not begun:  # an end tag may begin in place of what is due first
            due = (message or text)[0]
            firsts = {due, *(tag[0] for tag in ends)}
            at = next((i for i in range(spent, len(history)) if history[i] in firsts), None)
            if at is not None and history[at] != due:
                begun, position = 1, at + 1
                # A tag of one token is complete.
                tags = [tag for tag in ends if tag[0] == history[at]]
                text = forced[ends.index(next((tag for tag in tags if len(tag) == 1), tags[0]))]
        if begun:
            position += len(text) - begun
            if len(history) < position:
                return Force(text[len(history) - position]), False
            continue
        for text in filter(None, (message, forced[0])):
            due = forcing(text, history, position)
            if isinstance(due, Force):
                return due, False
            position = due
    return None, position > 0


def _ends_with(tokens: Tokens, end: Tokens) -> bool:
    return tokens[len(tokens) - len(end) :] == end


def _examples(free: FreeRun) -> list[ThinkingBudgetSpec]:
    a, b, c = free.unused
    first, second = free.output_ids[:2]
    return [
        ThinkingBudgetSpec(1, (first,), (a,), (b,)),
        ThinkingBudgetSpec(
            1,
            (c,),
            (a, b),
            other_start_token_ids=((first,),),
            other_end_token_ids=((c, a),),
            then_token_ids=(c,),
            min_tokens=1,
            grace=1,
            newline_token_ids=(second,),
        ),
    ]


KIND = Kind(
    ThinkingBudgetSpec(1, (1,), (2,)),
    edit=lambda spec, prompt, output: _followed(spec, prompt, output)[0],
    examples=_examples,
    complete=lambda spec, prompt, output: _followed(spec, prompt, output)[1],
)
