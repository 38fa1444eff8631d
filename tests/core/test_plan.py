"""Rows on which much stands: what is added together, and what ALLOW leaves of odd logits."""

from typing import Any

import pytest
import torch
from logitport.adapters.core import Realizer, compile_specs
from logitport.adapters.core.host import plan
from logitport.adapters.core.host.torch_editor import TorchEditor
from logitport.adapters.core.logits import RowAdditions
from logitport.spec import (
    AllowedTokensSpec,
    BannedSequencesSpec,
    BannedTokensSpec,
    LogitBiasSpec,
    NoRepeatNgramSpec,
    PromptBiasSpec,
)

VOCABULARY = 4096
MUCH = tuple(range(0, 2000, 2))


@pytest.fixture(autouse=True)
def _by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "LARGE", 0)


@pytest.mark.parametrize("of_arrays", [False, True], ids=["torch", "numpy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    "specs",
    [
        [AllowedTokensSpec((1, 2))],
        [AllowedTokensSpec((1, 2)), LogitBiasSpec({1: 2.0, 5: 1.0}), PromptBiasSpec(1.0)],
        [AllowedTokensSpec((1, 2)), AllowedTokensSpec((2, 4)), NoRepeatNgramSpec(1)],
    ],
    ids=["alone", "biases", "bans"],
)
def test_only_allowed_tokens_remain_of_any_logits(
    specs: list[Any], value: float, dtype: torch.dtype, of_arrays: bool
) -> None:
    realizer = Realizer(8)
    logits = torch.zeros(3, 10, dtype=dtype)
    logits[1:] = -torch.inf
    logits[:2, [5, 9]] = value
    for row in range(3):
        realizer.add(row, compile_specs(specs), [2, 5], [])
    for _ in range(2):
        after = logits.clone()
        realizer.apply(after.numpy() if of_arrays else after)
        allowed = [1, 2]
        others = [token for token in range(10) if token not in allowed]
        assert torch.isneginf(after[:, others]).all()
        assert torch.isfinite(after[:, allowed]).all()
        assert (after[1:, allowed] == 0).all()


@pytest.mark.parametrize("of_arrays", [False, True], ids=["torch", "numpy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("masked", [(1,), (2,), (4,), (1, 2), (2, 4), (1, 4), (1, 2, 4)])
def test_what_the_engine_has_masked_stays_masked_unless_it_is_all(
    masked: tuple[int, ...], dtype: torch.dtype, of_arrays: bool
) -> None:
    if of_arrays and dtype == torch.bfloat16:
        pytest.skip("numpy does not have it")
    realizer, logits = Realizer(8), torch.ones(1, 8, dtype=dtype)
    logits[0, list(masked)] = -torch.inf
    bias = {1: 2.0, 3: 5.0}
    realizer.add(0, compile_specs([AllowedTokensSpec((1, 2, 4)), LogitBiasSpec(bias)]), [], [])
    realizer.apply(logits.numpy() if of_arrays else logits)
    nothing = -torch.inf
    left = {token: 0.0 if len(masked) == 3 else nothing for token in masked}
    expected = [left.get(i, {1: 3.0, 2: 1.0, 4: 1.0}.get(i, nothing)) for i in range(8)]
    assert logits[0].tolist() == expected


def test_automata_that_stay_read_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    realizer, output = Realizer(8), [1]
    realizer.add(0, compile_specs([AllowedTokensSpec((1, 2))]), [], output)
    realizer.add(1, compile_specs([BannedTokensSpec((3,))]), [], output)
    realizer.apply(torch.zeros(3, 8))
    with monkeypatch.context() as patched:
        patched.setattr(type(realizer._automata), "outputs", None)
        output += [1, 2, 1]
        realizer.apply(torch.zeros(3, 8))
    moves = [1, 4]
    realizer.add(2, compile_specs([BannedSequencesSpec(((4, 5),))]), [], moves)
    monkeypatch.setattr(type(realizer._automata), "_fold_again", None)
    for token in (6, 4):
        moves.append(token)
        output.append(1)
        logits = torch.zeros(3, 8)
        realizer.apply(logits)
        assert (logits[2, 5] < -1e8) == (token == 4)
        assert (logits[0] == -torch.inf).sum() == 6
        assert logits[1].argmin() == 3


def test_what_stays_on_a_row_is_added_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anew only after a change; what comes and goes is added apart."""
    passes: list[tuple[int, Any]] = []
    add = TorchEditor._add

    def noted(self: TorchEditor, additions: Any, logits: torch.Tensor) -> None:
        if isinstance(additions, RowAdditions):
            passes.append((additions.row, additions.standing))
        add(self, additions, logits)

    monkeypatch.setattr(TorchEditor, "_add", noted)
    stays = [AllowedTokensSpec(MUCH), BannedTokensSpec(MUCH[:900]), PromptBiasSpec(1.0)]
    realizer, outputs = Realizer(VOCABULARY), [[1], [1], [1]]
    ends = tuple((1, token) for token in range(500))
    programs = [stays, stays, [*stays, BannedSequencesSpec(ends)]]
    for row, (specs, output) in enumerate(zip(programs, outputs, strict=True)):
        realizer.add(row, compile_specs(specs), [3, 5], output)
    realizer.apply(torch.zeros(3, VOCABULARY))
    first = sorted(passes, key=lambda each: each[0])
    assert [row for row, _ in first] == [0, 1, 2, 2]
    passes.clear()
    realizer.apply(torch.zeros(3, VOCABULARY))
    assert sorted(passes, key=lambda each: each[0]) == first
    passes.clear()
    outputs[2].append(3)
    realizer.remove(1)
    realizer.apply(torch.zeros(3, VOCABULARY))
    (alone,) = [each for each in first if each[0] == 2 and not each[1].moves]
    assert sorted(passes, key=lambda each: each[0]) == [first[0], alone]
