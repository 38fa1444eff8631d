"""Whether an output is one that a spec lets through.

These checkers know the specs' fields and nothing of how they are realized.
"""

from collections.abc import Iterator, Sequence

from ...spec import (
    AllowedTokensSpec,
    BannedSequencesSpec,
    BannedTokensSpec,
    ChoiceSpec,
    ForcedEndSpec,
    ForcedTokenSequenceSpec,
    LogitBiasSpec,
    LogitsProcessorSpec,
    MinTokensSpec,
    NoRepeatNgramSpec,
    PromptBiasSpec,
    ThinkingBudgetSpec,
    TriggerSpec,
)

Tokens = list[int]


def obeys(spec: LogitsProcessorSpec, prompt: Tokens, output: Tokens) -> bool:
    """Whether an output is one that the spec lets through."""
    match spec:
        case ForcedTokenSequenceSpec():
            return _is_forced(spec.token_ids, spec.eos_token_id, output)
        case ForcedEndSpec():
            return _is_forced(spec.token_ids, spec.eos_token_id, output[spec.after :])
        case AllowedTokensSpec():
            return set(output) <= set(spec.token_ids)
        case BannedTokensSpec():
            return set(output).isdisjoint(spec.token_ids)
        case BannedSequencesSpec():
            return not any(_holds(output, sequence) for sequence in spec.sequences)
        case LogitBiasSpec():  # far beyond what a model's logits differ by
            wanted = {token for token, bias in spec.bias.items() if bias >= 1000}
            unwanted = {token for token, bias in spec.bias.items() if bias <= -1000}
            return set(output).isdisjoint(unwanted) and (not wanted or set(output) <= wanted)
        case PromptBiasSpec():
            present = set(prompt) - set(spec.excluded_token_ids)
            return set(output) <= present if spec.bias > 0 else set(output).isdisjoint(present)
        case MinTokensSpec():
            return set(output[: spec.n]).isdisjoint(spec.stop_token_ids)
        case ChoiceSpec():
            return any(_is_forced(choice, spec.eos_token_id, output) for choice in spec.choices)
        case TriggerSpec():
            return _is_triggered(spec, output)
        case NoRepeatNgramSpec():
            return _repeats_nothing(spec, prompt, output)
        case ThinkingBudgetSpec():
            return all(_is_within_budget(spec, *block) for block in _blocks(spec, prompt, output))
        case _:
            raise AssertionError(f"no checker for {spec.kind}")


def _is_forced(token_ids: Sequence[int], eos: int | None, output: Tokens) -> bool:
    n = len(token_ids)
    return output[:n] == [*token_ids] and (eos is None or set(output[n:]) <= {eos})


def _holds(tokens: Tokens, sequence: Sequence[int]) -> bool:
    n = len(sequence)
    return any(tokens[i : i + n] == [*sequence] for i in range(len(tokens) - n + 1))


def _is_triggered(spec: TriggerSpec, output: Tokens) -> bool:
    """One that never says the trigger is let through."""
    fired = start = i = 0  # the trigger is looked for from `start` on
    trigger, phrase = [*spec.trigger_token_ids], [*spec.token_ids]
    while i < len(output) and fired != spec.times:
        i += 1
        if output[start:i][-len(trigger) :] == trigger:
            said = output[i : i + len(phrase)]
            if said != phrase[: len(said)]:
                return False
            fired += 1
            start = i = i + len(phrase)
    return True


def _repeats_nothing(spec: NoRepeatNgramSpec, prompt: Tokens, output: Tokens) -> bool:
    tokens, n = prompt + output, spec.n
    for i in range(max(len(prompt), n - 1), len(tokens)):
        window = tokens[:i][-(spec.window or len(tokens)) :]
        repeats = _holds(window, tokens[i - n + 1 : i + 1])
        if repeats and tokens[i] not in spec.allowed_token_ids:
            return False
    return True


def _blocks(
    spec: ThinkingBudgetSpec, prompt: Tokens, output: Tokens
) -> Iterator[tuple[Tokens, int, bool]]:
    """Each thinking block: what is in it, how much of that the prompt has, whether it is closed.

    Where the output opens it, the prompt has less than nothing of it.
    """
    start, end, tokens = [*spec.start_token_ids], [*spec.end_token_ids], prompt + output
    opened, looked_from = None, 0
    for i in range(1, len(tokens) + 1):
        tail = tokens[looked_from:i]
        if opened is None and tail[-len(start) :] == start:
            opened = looked_from = i
        elif opened is not None and tail[-len(end) :] == end:
            yield tokens[opened : i - len(end)], len(prompt) - opened, True
            opened, looked_from = None, i
    if opened is not None:
        yield tokens[opened:], len(prompt) - opened, False


def _is_within_budget(
    spec: ThinkingBudgetSpec, content: Tokens, in_prompt: int, is_closed: bool
) -> bool:
    budget = max(spec.budget, in_prompt)  # what the prompt has said is said
    thoughts, after = content[:budget], content[budget:]
    message, end = [*spec.message_token_ids], [*spec.end_token_ids]
    if is_closed:
        # Nothing can come before an end tag that was handed over.
        is_handed_over = len(content) == in_prompt
        return len(content) < budget or is_handed_over or after == message
    # A tag that is half out goes on.
    half = max(i for i in range(len(end)) if thoughts[len(thoughts) - i :] == end[:i])
    due = end[half:] if half else [*message, *end]
    return after == due[: len(after)]
