"""What each kind of spec means, looked up in the whole history before every token.

Slow and obvious, and nothing of the adapters is used: realizers are checked against this.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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

BAN = -1e9
"""What is added to a banned token's logit."""

FORCED = 1e9
"""A forced token's logit."""


@dataclass(frozen=True)
class Force:
    """This token is chosen."""

    token: int


@dataclass(frozen=True)
class Allow:
    """One of these is chosen."""

    tokens: frozenset[int]


@dataclass(frozen=True)
class Add:
    """These values are added to these tokens' logits."""

    values: Mapping[int, float]


Edit = Force | Allow | Add | None
Tokens = tuple[int, ...]


def edit(spec: LogitsProcessorSpec, prompt: Sequence[int], output: Sequence[int]) -> Edit:
    """What ``spec`` does to the logits of the token that comes after ``output``."""
    return MEANING[type(spec)](spec, tuple(prompt), tuple(output))


def edits(
    specs: Iterable[LogitsProcessorSpec], prompt: Sequence[int], output: Sequence[int]
) -> list[Edit]:
    """What all specs of a request do."""
    return [edit(spec, prompt, output) for spec in specs]


def combine(
    logits: npt.NDArray[np.floating[Any]], acting: Iterable[Edit], *, forced: float = FORCED
) -> npt.NDArray[np.float64]:
    """The row that ``logits``, ``[columns]``, becomes.

    What is added comes first, then what is allowed, then what is forced. The first ALLOW is
    strict, the others ban what they do not contain; of several FORCEs, the first counts.

    Args:
        logits: left as it is.
        acting: the edits, in the order of the specs.
        forced: a forced token's logit.
    """
    row = logits.astype(np.float64)
    acting = list(acting)
    for addition in acting:
        if isinstance(addition, Add):
            for token, value in addition.values.items():
                row[token] += np.float32(value)
    if allows := [allow.tokens for allow in acting if isinstance(allow, Allow)]:
        strict = sorted(allows[0])
        for other in allows[1:]:
            row[[token for token in strict if token not in other]] += BAN
        kept = row[strict]
        row[:] = -np.inf
        row[strict] = 0 if (kept == -np.inf).all() else kept
    if forces := [force.token for force in acting if isinstance(force, Force)]:
        row[forces[0]] = forced
    return row


def _ban(tokens: Iterable[int]) -> Edit:
    return Add(dict.fromkeys(tokens, BAN)) if tokens else None


def _find(pattern: Tokens, history: Tokens, start: int = 0) -> int | None:
    """Where the first occurrence that begins at ``start`` or later ends."""
    for end in range(start + len(pattern), len(history) + 1):
        if history[end - len(pattern) : end] == pattern:
            return end
    return None


def _forcing(text: Tokens, history: Tokens, start: int) -> Force | int:
    """The token that is due of ``text``, which is forced from ``start`` on, or where it ended.

    Until the first token of the text arrives, whatever else does is not of the text. From then
    on, the number of tokens decides.
    """
    begun = _find(text[:1], history, start)
    if begun is None:
        return Force(text[0])
    done = len(history) - begun + 1
    return Force(text[done]) if done < len(text) else begun - 1 + len(text)


def _forced_sequence(spec: ForcedTokenSequenceSpec, prompt: Tokens, output: Tokens) -> Edit:
    due = _forcing(spec.token_ids, output, 0)
    if isinstance(due, Force):
        return due
    return None if spec.eos_token_id is None else Force(spec.eos_token_id)


def _forced_end(spec: ForcedEndSpec, prompt: Tokens, output: Tokens) -> Edit:
    if len(output) < spec.after:
        return None
    closing = ForcedTokenSequenceSpec(spec.token_ids, spec.eos_token_id)
    return _forced_sequence(closing, prompt, output[spec.after :])


def _allowed_tokens(spec: AllowedTokensSpec, prompt: Tokens, output: Tokens) -> Edit:
    return Allow(frozenset(spec.token_ids))


def _banned_tokens(spec: BannedTokensSpec, prompt: Tokens, output: Tokens) -> Edit:
    return _ban(spec.token_ids)


def _banned_sequences(spec: BannedSequencesSpec, prompt: Tokens, output: Tokens) -> Edit:
    return _ban(
        {
            sequence[-1]
            for sequence in spec.sequences
            if len(output) >= len(sequence) - 1
            and output[len(output) - len(sequence) + 1 :] == sequence[:-1]
        }
    )


def _logit_bias(spec: LogitBiasSpec, prompt: Tokens, output: Tokens) -> Edit:
    return Add(dict(spec.bias))


def _prompt_bias(spec: PromptBiasSpec, prompt: Tokens, output: Tokens) -> Edit:
    return Add(dict.fromkeys({*prompt} - {*spec.excluded_token_ids}, spec.bias))


def _min_tokens(spec: MinTokensSpec, prompt: Tokens, output: Tokens) -> Edit:
    return _ban(spec.stop_token_ids) if len(output) < spec.n else None


def _no_repeat_ngram(spec: NoRepeatNgramSpec, prompt: Tokens, output: Tokens) -> Edit:
    history = prompt + output
    if len(history) < spec.n - 1:
        return None
    newest = history[len(history) - spec.n + 1 :]
    window = history if spec.window is None else history[-spec.window :]
    ngrams = {window[i : i + spec.n] for i in range(len(window) - spec.n + 1)}
    repeated = {ngram[-1] for ngram in ngrams if ngram[:-1] == newest}
    return _ban(repeated - {*spec.allowed_token_ids})


def _choice(spec: ChoiceSpec, prompt: Tokens, output: Tokens) -> Edit:
    firsts = {choice[0] for choice in spec.choices}
    while output and output[0] not in firsts:  # no choice has begun yet
        output = output[1:]
    n = len(output)
    options = {choice[n] for choice in spec.choices if len(choice) > n and choice[:n] == output}
    if output in spec.choices or not options:
        options.add(spec.eos_token_id)
    return Force(*options) if len(options) == 1 else Allow(frozenset(options))


def _trigger(spec: TriggerSpec, prompt: Tokens, output: Tokens) -> Edit:
    position, fired = 0, 0
    while fired != spec.times:
        said = _find(spec.trigger_token_ids, output, position)
        if said is None:
            break
        due = _forcing(spec.token_ids, output, said)
        if isinstance(due, Force):
            return due
        position, fired = due, fired + 1
    return None


def _thinking_budget(spec: ThinkingBudgetSpec, prompt: Tokens, output: Tokens) -> Edit:
    history, end_tag, position = prompt + output, spec.end_token_ids, 0
    while (opened := _find(spec.start_token_ids, history, position)) is not None:
        closed = _find(end_tag, history, opened)
        # Nothing can be forced within the prompt.
        spent = max(opened + spec.budget, len(prompt))
        if closed is not None and closed <= spent:
            position = closed
            continue
        if len(history) < spent:
            break
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
                return Force(end_tag[len(history) - position])
            continue
        for text in filter(None, (message, end_tag)):
            due = _forcing(text, history, position)
            if isinstance(due, Force):
                return due
            position = due
    return None


MEANING: dict[type[LogitsProcessorSpec], Callable[[Any, Tokens, Tokens], Edit]] = {
    AllowedTokensSpec: _allowed_tokens,
    BannedSequencesSpec: _banned_sequences,
    BannedTokensSpec: _banned_tokens,
    ChoiceSpec: _choice,
    ForcedEndSpec: _forced_end,
    ForcedTokenSequenceSpec: _forced_sequence,
    LogitBiasSpec: _logit_bias,
    MinTokensSpec: _min_tokens,
    NoRepeatNgramSpec: _no_repeat_ngram,
    PromptBiasSpec: _prompt_bias,
    ThinkingBudgetSpec: _thinking_budget,
    TriggerSpec: _trigger,
}
