"""What ALLOW leaves of odd logits, and what a step does not read."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from logitport.adapters.core import Realizer, compile_specs
from logitport.adapters.core.host.requests import Outputs
from logitport.adapters.core.tensors import end_where_banned, find_forced
from logitport.adapters.reference import combine, edit
from logitport.spec import (
    AllowedTokensSpec,
    BannedSequencesSpec,
    BannedTokensSpec,
    ForcedTokenSequenceSpec,
    LogitBiasSpec,
    NoRepeatNgramSpec,
    PromptBiasSpec,
)
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.requests import forced_logit


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
        assert (after[1:, allowed] == -forced_logit(dtype)).all()


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
    banned = torch.tensor(-forced_logit(dtype), dtype=dtype).item()
    left = {token: banned if len(masked) == 3 else nothing for token in masked}
    expected = [left.get(i, {1: 3.0, 2: 1.0, 4: 1.0}.get(i, nothing)) for i in range(8)]
    assert logits[0].tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("masked", [(), (2, 4), (1, 2, 4), (1, 3)])
@pytest.mark.parametrize("forced", [1, 3])
def test_a_list_beside_a_forced_token_is_banned_where_all_of_it_was_masked(
    forced: int, masked: tuple[int, ...], dtype: torch.dtype
) -> None:
    realizer, logits = Realizer(8), torch.ones(1, 8, dtype=dtype)
    logits[0, list(masked)] = -torch.inf
    specs = ForcedTokenSequenceSpec((forced,)), AllowedTokensSpec((1, 2, 4))
    acting = [edit(spec, [], []) for spec in specs]
    expected = combine(logits[0].double().numpy(), acting, forced=forced_logit(dtype))
    realizer.add(0, compile_specs(specs), [], [])
    realizer.apply(logits)
    assert logits[0].equal(torch.from_numpy(expected).to(dtype))


@pytest.mark.parametrize("of", ["read-only", "reversed"])
def test_an_array_that_cannot_be_edited_is_left_alone(of: str) -> None:
    realizer, logits = Realizer(8), np.ones((3, 8), np.float32)
    given = logits[::-1] if of == "reversed" else np.frombuffer(logits.tobytes(), np.float32)
    given = given.reshape(3, 8)
    for row in range(2):
        realizer.add(row, compile_specs([AllowedTokensSpec((1, 2))]), [], [], 0)
    realizer.apply(given)
    assert (given == 1).all()
    assert realizer.failed_requests == 2


def test_automata_that_stay_read_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does an output that grows by one token make any other be read again."""
    realizer, output = Realizer(8), [1]
    realizer.add(0, compile_specs([AllowedTokensSpec((1, 2))]), [], output)
    realizer.add(1, compile_specs([BannedTokensSpec((3,))]), [], output)
    realizer.apply(torch.zeros(3, 8))
    with monkeypatch.context() as patched:
        patched.setattr(Outputs, "read", None)
        output += [1, 2, 1]
        realizer.apply(torch.zeros(3, 8))
    moves = [1, 4]
    realizer.add(2, compile_specs([BannedSequencesSpec(((4, 5),))]), [], moves)
    monkeypatch.setattr(Outputs, "_fold_again", None)
    for token in (6, 4):
        moves.append(token)
        output.append(1)
        logits = torch.zeros(3, 8)
        realizer.apply(logits)
        assert (logits[2, 5] < -1e8) == (token == 4)
        assert (logits[0] == -torch.inf).sum() == 6
        assert logits[1].argmin() == 3
    assert realizer.failed_requests == 0


# what the engine leaves of a row | the token that is chosen
@pytest.mark.parametrize(
    ("left", "chosen"), [((5,), 7), ((5, 6), 7), ((), 7), ((4, 5), 4), ((2, 5, 6), 2)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_reply_ends_where_only_banned_tokens_are_left(
    left: tuple[int, ...], chosen: int, dtype: torch.dtype
) -> None:
    """If its program has a token for that; a row without one keeps what is left of it."""
    realizer = Realizer(8)
    bans = compile_specs([BannedTokensSpec((5, 6)), BannedSequencesSpec(((1, 5),))])
    realizer.add(2, replace(bans, end_token=7), [], [1])
    realizer.add(1, bans, [], [1])
    realizer.move(2, 0)
    logits = torch.full((2, 8), -torch.inf, dtype=dtype)
    logits[:, list(left)] = 1.0
    after = logits.clone()
    realizer.apply(after)
    assert int(after[0].argmax()) == chosen
    if left:
        assert int(after[1].argmax()) in left
    for end_token in (-1, 8, 2**40):  # none of the vocabulary's
        realizer.add(0, replace(bans, end_token=end_token), [], [1])
        realizer.apply(again := logits.clone())
        assert again[0].equal(again[1])
    assert realizer.failed_requests == 0
    realizer.remove(0)  # the next request in the row has no such token
    realizer.add(0, bans, [], [1])
    realizer.apply(again := logits.clone())
    assert (again[0] == again[1]).all()


# the logits that a broken model leaves, and others that it does not have | the token that is chosen
@pytest.mark.parametrize(
    ("broken", "chosen"), [((5,), 7), ((4, 5), 7), ((0, 1, 2, 3, 4, 5, 6, 7), 7), ((), 4)]
)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.nan])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, np.float32, np.float16])
def test_a_reply_ends_where_a_model_has_no_best_token(
    broken: tuple[int, ...], chosen: int, value: float, kind: Any
) -> None:
    """Samplers disagree about NaN: some prefer it, and so a banned token, to all others."""
    realizer = Realizer(8)
    bans = compile_specs([BannedTokensSpec((5, 6))])
    realizer.add(1, replace(bans, end_token=7), [], [])
    realizer.add(2, bans, [], [])
    is_torch = isinstance(kind, torch.dtype)
    logits = torch.full((3, 8), -torch.inf, dtype=kind if is_torch else torch.float32)
    logits[:, [4, 5]] = 1.0
    logits[:, list(broken)] = value
    before = logits[0].clone()
    array = logits.numpy().astype(kind) if not is_torch else logits
    realizer.apply(array)
    after = torch.as_tensor(array).float()
    assert int(after[1].argmax()) == chosen
    assert (after[1] < torch.inf).all()
    assert after[0].equal(before.float()) or broken
    assert realizer.failed_requests == 0


def test_no_copy_of_the_logits_to_end_a_reply() -> None:
    """Engines have given the device's memory away."""
    logits, sizes = torch.full((5, 1000), -1e9), list[int]()
    logits[4] = torch.nan

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            made = func(*args, **(kwargs or {}))
            is_own = isinstance(made, torch.Tensor) and (
                made.untyped_storage().data_ptr() != logits.untyped_storage().data_ptr()
            )
            sizes.append(made.numel() if is_own else 0)
            return made

    with Sizes():
        end_where_banned(logits, find_forced(logits), torch.tensor([3, -1, 999, 0, 5]))
    assert max(sizes) == 5
    assert logits.argmax(1).tolist() == [3, 0, 999, 0, 5]
    assert (logits[1] == -1e9).all()
