"""Each kind as a callable for one request, as a careful user of an engine would write it.

The callables reuse index tensors and positions, read only the newest tokens, and edit in place.
``force`` is the way to force a token: by masking the rest of the row, as is usual (``mask``), or
by raising one logit, as logitport does (``touch``).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from logitport.spec import (
    AllowedTokensSpec,
    BannedSequencesSpec,
    BannedTokensSpec,
    ChoiceSpec,
    ForcedEndSpec,
    ForcedTokenSequenceSpec,
    LogitBiasSpec,
    LogitsProcessorSpec,
    MinTokensSpec,
    PromptBiasSpec,
    ThinkingBudgetSpec,
    TriggerSpec,
)

Force = Callable[[torch.Tensor, int], None]


def mask(logits: torch.Tensor, token_id: int) -> None:
    """Mask every token but one."""
    logits.fill_(-torch.inf)
    logits[token_id] = 0.0


def touch(logits: torch.Tensor, token_id: int) -> None:
    """Raise the logit of one token."""
    logits[token_id] = 1e9


def callable_for(spec: LogitsProcessorSpec, force: Force) -> Callable[..., torch.Tensor]:
    """Make a request's own processor ``([prompt ids,] output ids, logits) -> logits``."""
    return _MAKERS[type(spec)](spec, force)


def _forced_sequence(spec: ForcedTokenSequenceSpec, force: Force) -> Callable[..., torch.Tensor]:
    token_ids, eos, n = spec.token_ids, spec.eos_token_id, len(spec.token_ids)

    def process(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        token = token_ids[len(output_ids)] if len(output_ids) < n else eos
        if token is not None:
            force(logits, token)
        return logits

    return process


def _forced_end(spec: ForcedEndSpec, force: Force) -> Callable[..., torch.Tensor]:
    token_ids, after, eos, n = spec.token_ids, spec.after, spec.eos_token_id, len(spec.token_ids)

    def process(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        at = len(output_ids) - after
        if at >= 0 and (token := token_ids[at] if at < n else eos) is not None:
            force(logits, token)
        return logits

    return process


def _allow(logits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    kept = logits[index]
    logits.fill_(-torch.inf)
    logits[index] = kept
    return logits


def _allowed_tokens(spec: AllowedTokensSpec, _: Force) -> Callable[..., torch.Tensor]:
    index = torch.tensor(spec.token_ids)
    return lambda output_ids, logits: _allow(logits, index)


def _banned_tokens(spec: BannedTokensSpec, _: Force) -> Callable[..., torch.Tensor]:
    index = torch.tensor(spec.token_ids)
    return lambda output_ids, logits: logits.index_fill_(0, index, -torch.inf)


def _logit_bias(spec: LogitBiasSpec, _: Force) -> Callable[..., torch.Tensor]:
    index, values = torch.tensor(list(spec.bias)), torch.tensor(list(spec.bias.values()))
    return lambda output_ids, logits: logits.index_add_(0, index, values)


def _min_tokens(spec: MinTokensSpec, _: Force) -> Callable[..., torch.Tensor]:
    index, n = torch.tensor(spec.stop_token_ids), spec.n

    def process(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        return logits.index_fill_(0, index, -torch.inf) if len(output_ids) < n else logits

    return process


def _prompt_bias(spec: PromptBiasSpec, _: Force) -> Callable[..., torch.Tensor]:
    index: torch.Tensor | None = None
    bias, excluded = torch.tensor(spec.bias), set(spec.excluded_token_ids)

    def process(prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        nonlocal index
        if index is None:
            index = torch.tensor([*set(prompt_ids) - excluded], device=logits.device)
        logits.index_add_(0, index, bias.expand(len(index)))
        return logits

    return process


def _banned_sequences(spec: BannedSequencesSpec, _: Force) -> Callable[..., torch.Tensor]:
    ends: dict[tuple[int, ...], list[int]] = {}
    for sequence in spec.sequences:
        ends.setdefault(sequence[:-1], []).append(sequence[-1])
    indices = {begun: torch.tensor(tokens) for begun, tokens in ends.items()}
    lengths = sorted({len(begun) for begun in ends})

    def process(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        for length in lengths:
            newest = tuple(output_ids[-length:]) if length else ()
            if (index := indices.get(newest)) is not None:
                logits.index_fill_(0, index, -torch.inf)
        return logits

    return process


class _ThinkingBudget:
    def __init__(self, spec: ThinkingBudgetSpec, force: Force) -> None:
        self._start, self._end = list(spec.start_token_ids), list(spec.end_token_ids)
        self._closing = [*spec.message_token_ids, *spec.end_token_ids]
        self._budget, self._force = spec.budget, force
        self._left: int | None = None
        self._at = 0

    def __call__(self, output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        if self._left is None:
            if output_ids[-len(self._start) :] == self._start:
                self._left = self._budget
        elif output_ids[-len(self._end) :] == self._end:
            self._left, self._at = None, 0
        else:
            self._left -= 1
        if self._left is not None and self._left <= 0:
            self._force(logits, self._closing[min(self._at, len(self._closing) - 1)])
            self._at += 1
        return logits


class _Trigger:
    def __init__(self, spec: TriggerSpec, force: Force) -> None:
        self._pattern, self._phrase = list(spec.trigger_token_ids), spec.token_ids
        self._force = force
        self._at: int | None = None

    def __call__(self, output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        if self._at is None and output_ids[-len(self._pattern) :] == self._pattern:
            self._at = 0
        if self._at is not None:
            self._force(logits, self._phrase[self._at])
            self._at = self._at + 1 if self._at + 1 < len(self._phrase) else None
        return logits


class _Choice:
    def __init__(self, spec: ChoiceSpec, force: Force) -> None:
        self._choices: Sequence[Sequence[int]] = spec.choices
        self._eos, self._force = spec.eos_token_id, force

    def __call__(self, output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        if output_ids:
            at, newest = len(output_ids) - 1, output_ids[-1]
            left = [c for c in self._choices if len(c) > at and c[at] == newest]
            self._choices = left
        n = len(output_ids)
        options = {c[n] if len(c) > n else self._eos for c in self._choices} or {self._eos}
        if len(options) == 1:
            self._force(logits, options.pop())
            return logits
        return _allow(logits, torch.tensor(list(options), device=logits.device))


_MAKERS: dict[type[LogitsProcessorSpec], Callable[[Any, Force], Callable[..., torch.Tensor]]] = {
    AllowedTokensSpec: _allowed_tokens,
    BannedSequencesSpec: _banned_sequences,
    BannedTokensSpec: _banned_tokens,
    ChoiceSpec: _Choice,
    ForcedEndSpec: _forced_end,
    ForcedTokenSequenceSpec: _forced_sequence,
    LogitBiasSpec: _logit_bias,
    MinTokensSpec: _min_tokens,
    PromptBiasSpec: _prompt_bias,
    ThinkingBudgetSpec: _ThinkingBudget,
    TriggerSpec: _Trigger,
}
