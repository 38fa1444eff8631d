"""Requests of a small vocabulary, and what the reference makes of their logits."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from logitport import spec as s
from logitport.adapters.core import (
    Automaton,
    AutomatonBuilder,
    HistoryRule,
    Program,
    Realizer,
    compile_specs,
)
from logitport.adapters.reference import (
    FORCED,
    Add,
    Allow,
    Edit,
    Force,
    combine,
    edits,
)
from logitport.adapters.reference.kinds.base import flat
from logitport.spec import LogitsProcessorSpec

VOCABULARY = 8
STOP = 7
END: list[Edit] = [Force(STOP)]
"""What happens to a request that has failed."""
LAYOUTS = ("plain", "strided", "transposed")


@dataclass(eq=False)
class Request:
    """A request of the batch; without specs, the realizer is not told of it."""

    specs: Sequence[LogitsProcessorSpec] = ()
    prompt: list[int] | None = field(default_factory=list[int])
    output: list[int] = field(default_factory=list[int])
    stop: int | None = STOP
    program: Program = field(init=False)

    def __post_init__(self) -> None:
        self.program = compile_specs(self.specs)

    def add_to(self, realizer: Realizer, row: int) -> None:
        """What an adapter does when the engine puts the request into a row."""
        if self.specs:
            realizer.add(row, self.program, self.prompt, self.output, self.stop)
        else:
            realizer.remove(row)

    def edits(self, drafts: Sequence[int] = ()) -> list[Edit]:
        return edits(self.specs, self.prompt or (), [*self.output, *drafts])


Row = tuple[Request, torch.Tensor, torch.Tensor, Sequence[int]]
"""A request's row: logits before and after a step, and the drafts that the row comes after."""


def laid_out(values: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values, in memory as another engine may have them."""
    rows, columns = values.shape
    if layout == "strided":
        return torch.full((rows, columns + 5), 3.0).to(values.dtype)[:, 2:-3].copy_(values)
    if layout == "transposed":
        return torch.empty(columns, rows, dtype=values.dtype).T.copy_(values)
    return values.clone()


def random_logits(rows: int, columns: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Some cells of some rows are masked, as by an engine's own rules; never a whole row."""
    numbers = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, columns, generator=numbers) * 4
    masked = torch.rand(rows, columns, generator=numbers) < 0.5
    masked &= torch.rand(rows, 1, generator=numbers) < 0.3
    masked[range(rows), torch.randint(columns, (rows,), generator=numbers)] = False
    return logits.masked_fill(masked, -torch.inf).to(dtype)


def forced_logit(dtype: torch.dtype) -> float:
    return min(FORCED, torch.finfo(dtype).max / 4)


def assert_row(before: torch.Tensor, after: torch.Tensor, acting: Sequence[Edit]) -> None:
    """``after`` is what the reference makes of ``before``, cell by cell."""
    acting, dtype = flat(acting), before.dtype
    forced = forced_logit(dtype)
    original = before.double().numpy()
    expected = combine(original, acting, forced=forced)
    actual = after.double().numpy()
    added = {token for edit in acting if isinstance(edit, Add) for token in edit.values}
    untouched = expected == original
    untouched[[*added]] = False  # several parts of a spec may add up to nothing, but for rounding
    np.testing.assert_array_equal(actual[untouched], original[untouched])
    banned = (expected < -forced / 2) & ~untouched
    assert (actual[banned] < -forced / 2).all()
    masked = np.isneginf(expected)
    np.testing.assert_array_equal(actual[masked], expected[masked])
    others = ~(untouched | banned | masked)
    rounded = torch.from_numpy(expected).to(dtype).double().numpy()
    rounding = 4 * torch.finfo(dtype).eps
    np.testing.assert_allclose(actual[others], rounded[others], rtol=rounding, atol=400 * rounding)
    if np.isfinite(original).any() or any(isinstance(edit, Allow | Force) for edit in acting):
        assert np.isfinite(actual).any()
    assert not np.isnan(actual).any()
    if any(isinstance(edit, Force) for edit in acting):
        assert actual.argmax() == expected.argmax()


ONE_OF_EACH: tuple[LogitsProcessorSpec, ...] = (
    s.ForcedTokenSequenceSpec((1, 2, 3), 0),
    s.AllowedTokensSpec((1, 4, 5)),
    s.BannedTokensSpec((2, 3)),
    s.BannedSequencesSpec(((1, 2), (3, 3, 4), (5,))),
    s.LogitBiasSpec({1: 2.5, 3: -1.25}),
    s.MinTokensSpec(5, (0, 7)),
    s.ForcedEndSpec(4, (1, 2), 0),
    s.AtEndSpec((6, 2), (0, 7), 0.5),
    s.ThinkingBudgetSpec(3, (1,), (2, 2, 3), (6,)),
    s.ChoiceSpec(((1, 2), (1, 3, 4), (5,)), 0),
    s.TriggerSpec((1, 2), (3, 4), None),
    s.NoRepeatNgramSpec(2, 6),
    s.DrySpec(2.0, 1.5, 1, 7, (3,)),
    s.NoLoopSpec(2, 3),
    s.NoLoopSpec(2, 2, 1, 0, (4, 2), (1,), (2,)),
    s.PromptBiasSpec(3.0, (1,)),
)


class BrokenError(Exception):
    """What the processors here raise."""


class Rule(HistoryRule):
    """Adds what a function of prompt and output returns."""

    def __init__(self, added: Callable[[Sequence[int], Sequence[int]], Any]) -> None:
        self.added = added

    def additions(
        self, prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> Mapping[int, float]:
        return self.added(prompt_ids, output_ids)


def raises(*_: Any, **__: Any) -> Any:
    raise BrokenError("on purpose")


def writes_and_raises(output_ids: list[int], logits: torch.Tensor) -> None:
    logits.fill_(5)
    raises()


def nothing_left(output_ids: list[int], logits: torch.Tensor) -> None:
    logits.fill_(-torch.inf)


def forcing(token: int) -> Automaton:
    builder = AutomatonBuilder()
    builder.force(token)
    return builder.build()


def banning(*tokens: int) -> Automaton:
    builder = AutomatonBuilder()
    builder.add(builder.token_set(tokens))
    return builder.build()


def python(processor: Any) -> s.PythonProcessorSpec:
    return s.PythonProcessorSpec(lambda: processor)


def break_updates(
    patch: pytest.MonkeyPatch, updates: tuple[Any, str], failing: Collection[int]
) -> None:
    """Make these calls of a method fail, counted from 0."""
    update, calls = getattr(*updates), count()

    def broken(*args: Any, **keywords: Any) -> Any:
        if next(calls) in failing:
            raise BrokenError("a defect")
        return update(*args, **keywords)

    patch.setattr(*updates, broken)


def make_small(tables: Any) -> None:
    """Leave tables so little room that new programs make them be built anew."""
    tables._clear({"states": 4, "edges": 4, "tokens": 4, "sets": 2})
