"""Chains, held to each sampler's definition in float64: which tokens they leave, and how likely."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from logitport import spec as s
from logitport.adapters.core import Acting, Chain, Mark, Program, Realizer, compile_specs
from logitport.adapters.core.host import editors
from logitport.adapters.core.host.shape import shape
from logitport.adapters.core.loops import why_slow
from logitport.spec import ChainStep, Smoothing, Xtc

from tests.support.drawn import KEY, assert_drawn
from tests.support.host_driver import Chained
from tests.support.lives import lead
from tests.support.requests import LAYOUTS, forced_logit, laid_out
from tests.support.samplers import EPS, shaped, softmax
from tests.support.seeds import seeds
from tests.support.strategies import chains
from tests.tools import faults

END = 3
BANNED = -5e8

STEPS: dict[str, Sequence[Any]] = {
    "temperature": (0.01, 0.7, 1.3, 100.0),
    "top_k": (1, 2, 5, 40, s.limits.MAX_INT),
    "top_p": (5e-324, 1e-9, 0.1, 0.5, 0.9, 0.999, 1.0),
    "min_p": (5e-324, 0.05, 0.5, 1.0),
    "top_n_sigma": (5e-324, 0.01, 1.0, 2.0, 1000.0),
    "top_a": (5e-324, 0.01, 0.2, 1.0),
    "typical": (5e-324, 0.01, 0.2, 0.9, 1.0),
    "epsilon": (5e-324, 3e-4, 0.01, 1.0),
    "eta": (5e-324, 3e-4, 0.01, 1.0),
    "top_h": (5e-324, 0.01, 0.4, 0.9, 1.0),
    "p_less": (True,),
    "min_k": (5e-324, 0.1, 3.0, 50.0, 1000.0),
    "smoothing": (Smoothing(5e-324), Smoothing(0.2, 1.5), Smoothing(3, 3), Smoothing(1000, 3)),
    "xtc": (Xtc(5e-324, 5e-324), Xtc(0.01, 0.5), Xtc(0.1, 1.0), Xtc(0.1, 1 - 1e-9), Xtc(0.5, 0.3)),
}
KINDS = (
    *("usual", "narrow", "wide", "tall", "flat", "ties", "masked", "banned", "two", "one"),
    *("tiny", "lonely", "huge"),
)


def rows_of(kind: str, rng: np.random.Generator) -> np.ndarray:
    size = 1 if kind == "one" else int(rng.choice([2, 3, 7, 64, 200, 513, 1500]))
    spread = {"narrow": 1e-3, "wide": 60, "flat": 0, "tiny": 1e-40, "huge": 1e8}.get(kind, 4)
    row = (rng.normal(size=size) * spread).astype(np.float32)
    at, some = rng.random(size), rng.integers(size)
    if kind == "tall":
        row += np.float32(3000)
    elif kind == "ties":  # as bfloat16 logits
        row = torch.tensor(row * 4).bfloat16().float().numpy()
    elif kind == "masked":
        row[at < 0.5] = -np.inf
        row[(at > 0.5) & (at < 0.6)] = np.nan
        row[at > 0.9] = np.finfo(np.float32).min
    elif kind == "banned":
        row[at < 0.7] += np.float32(-1e9)
    elif kind == "two":
        row[:] = -5
        row[rng.integers(size, size=2)] = 3
    elif kind == "lonely":  # all others have no mass in float32
        row[:] -= 300
    if kind not in ("flat", "huge"):
        row[some] = 1.0  # one at least is left
    return row


def full(row: np.ndarray, steps: Sequence[ChainStep]) -> np.ndarray:
    """The row with what the steps leave."""
    before = row.copy()
    left = shape(row, steps, BANNED)
    np.testing.assert_array_equal(row, before)
    assert left is not None
    assert left.logits.dtype == np.float32
    assert not np.isnan(left.logits).any()
    values = np.full(len(row), -np.inf)
    values[left.tokens] = left.logits
    return values


def assert_shaped(row: np.ndarray, steps: Sequence[ChainStep]) -> bool:
    """Hold a row to the reference; return whether no value was too near a border for that."""
    actual = full(row, steps)
    expected = shaped(np.where(row > BANNED, row, -np.inf), steps)
    assert expected is not None
    assert (actual > -np.inf).any()
    assert (row[actual > -np.inf] > BANNED).all()
    if expected.doubts:
        return False
    np.testing.assert_array_equal(actual > -np.inf, expected.left)
    same = expected.left & ~expected.excluded
    size = max(np.abs(each[expected.left]).max() for each in (row, expected.logits))
    np.testing.assert_allclose(actual[same], expected.logits[same], rtol=4e-6, atol=2e-6 * size)
    near = 16 * EPS * (abs(expected.logits.max()) + 40)
    np.testing.assert_allclose(softmax(actual), expected.chances(), atol=near)
    return True


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_step_of_each_row(kind: str, name: str):
    rng, sure = np.random.default_rng(len(kind)), list[bool]()
    for _ in range(12):
        row = rows_of(kind, rng)
        sure += [assert_shaped(row, [ChainStep(**{name: value})]) for value in STEPS[name]]
    assert sum(sure) > len(sure) / 2


@pytest.mark.filterwarnings("error")
@given(chains(), st.sampled_from(KINDS), st.integers(0, 2**32))
def test_any_chain(chain: s.ChainSpec, kind: str, seed: int):
    row = rows_of(kind, np.random.default_rng(seed))
    assert_shaped(row, chain.steps)


# a row | a step | what it leaves, where a value is on the border
@pytest.mark.parametrize(
    ("row", "step", "left"),
    [
        ([2, 1, 1, 0], {"top_k": 2}, [0, 1, 2]),  # as likely as the last
        ([0, 0, 0, 0], {"top_k": 1}, [0, 1, 2, 3]),
        ([0, 0, -9, -9], {"top_p": 0.5}, [0, 1]),
        ([1, 0, 0, -9], {"top_p": 0.6}, [0, 1, 2]),
        ([0, -200, -300], {"top_p": 1}, [0, 1, 2]),  # more than float32 or float64 can add up
        ([0, -200, -300], {"typical": 1}, [0, 1, 2]),
        ([0, -200, -300], {"top_h": 1}, [0, 1, 2]),
        ([3, 3, 2.9], {"min_p": 1}, [0, 1]),
        ([0, -100, -200], {"min_p": 1e-60}, [0, 1]),
        ([0, 0, 0, 0], {"epsilon": 0.25}, [0, 1, 2, 3]),
        ([0, 0, 0, 0], {"epsilon": 1}, [0, 1, 2, 3]),  # the likeliest always stay
        ([0, 0, 0, 0], {"eta": 1}, [0, 1, 2, 3]),
        ([0, 0, 0, 0], {"p_less": True}, [0, 1, 2, 3]),
        ([0, 0, 0, 0], {"top_n_sigma": 1}, [0, 1, 2, 3]),
        ([0, 0, 0, 0], {"top_h": 0.1}, [0, 1, 2, 3]),
        ([0, 0, 0, 0], {"min_k": 0.1}, [0, 1, 2, 3]),
        ([4, 3, 1, 1], {"min_k": 0.1}, [0]),  # falls of 1, 2 / 2, 0: the first
        ([4, 3, 0.5, 0.5], {"min_k": 0.1}, [0, 1]),
        ([4, 3, 0.5, 0.5], {"min_k": 10.5}, [0, 1, 2, 3]),  # 3, and what is as likely
        ([2, 2, -9], {"typical": 0.1}, [0, 1]),
        ([-9, 1, 0, 0, 0, 0, 0], {"typical": 0.01}, [1, 2, 3, 4, 5, 6]),  # -ln p is nearer for 0
        ([0, 0], {"xtc": Xtc(0.5, 1)}, [1]),  # of equal ones the last stays
        ([0, 0, 0], {"xtc": Xtc(0.5, 1)}, [0, 1, 2]),
        ([1, 1, 2, -9], {"xtc": Xtc(0.1, 1)}, [1, 3]),
        ([0, -200, -300], {"xtc": Xtc(1e-100, 1)}, [1, 2]),
        ([5], {"xtc": Xtc(0.1, 1)}, [0]),
    ],
)
def test_borders(row: Any, step: Any, left: list[int]):
    row = np.asarray(row, np.float32)
    assert np.flatnonzero(full(row, [ChainStep(**step)]) > -np.inf).tolist() == left
    masked = np.concatenate([[-np.inf, np.nan, -1e9], row]).astype(np.float32)
    left = [3 + token for token in left]
    assert np.flatnonzero(full(masked, [ChainStep(**step)]) > -np.inf).tolist() == left


def test_min_k_looks_at_the_likeliest():
    """A last token far below all others is no reason to keep these."""
    row = np.append(np.linspace(0, -10, 2000) ** 2 / 10, -1e6)
    row[0] += 3
    assert np.count_nonzero(full(row.astype(np.float32), [ChainStep(min_k=0.1)]) > -np.inf) == 1


@pytest.mark.parametrize("q", [1e-300, 0.01, 0.5, 1 - 1e-7, 1])
@pytest.mark.parametrize("temperature", [0.05, 1, 3])
def test_xtc_without_randomness_is_the_mixture(q: float, temperature: float):
    """Of a row with exclusions, and the same row without: drawn from the one or the other."""
    rng, exclusions, steps = np.random.default_rng(3), 0, [ChainStep(xtc=Xtc(0.08, q))]
    for _ in range(300):
        row = (rng.normal(size=rng.integers(2, 40)) * rng.choice([0.5, 2, 9])).astype(np.float32)
        expected = shaped(row, steps)
        assert expected is not None
        if not expected.doubts:
            exclusions += bool(expected.excluded.any())
            tempered = full(row, [*steps, ChainStep(temperature=temperature)])
            chances = expected.chances(temperature)
            np.testing.assert_allclose(softmax(tempered), chances, rtol=1e-4, atol=1e-7)
    assert exclusions > 100


def chained(chain: Chain, *specs: Any, guard: Program | None = None) -> Program:
    """The program of a request with specs, and with a chain after all."""
    own = replace(compile_specs(specs), guard=guard)
    return own.then(Program((Acting(chain),)))


def steps_of(**steps: Any) -> tuple[ChainStep, ...]:
    return tuple(ChainStep(**{name: value}) for name, value in steps.items())


CHAIN = Chain(steps_of(top_n_sigma=1.5, temperature=0.7, top_p=0.9), 2.0)


def assert_row(row: Any, after: Any, chain: Chain, rounding: float = EPS) -> None:
    """``after`` has what the chain leaves of ``row``."""
    row, after = np.asarray(row, np.float64), np.asarray(after, np.float64)
    expected = shaped(np.where(row > BANNED, row, -np.inf), chain.steps)
    assert expected is not None
    assert not expected.doubts
    np.testing.assert_array_equal(after > -np.inf, expected.left)
    values = expected.logits[expected.left] * chain.temperature
    np.testing.assert_allclose(after[expected.left], values, rtol=4 * rounding)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_kind_of_tensor(dtype: torch.dtype, layout: str):
    rows = torch.randn(3, 70, generator=torch.Generator().manual_seed(1)).mul(4).to(dtype)
    rows[:, 5] = -torch.inf
    realizer, logits = Realizer(64), laid_out(rows, layout)
    rows[:, 64:] = logits[:, 64:] = 50.0  # columns that the vocabulary does not have
    banned = tuple(rows[1].topk(9).indices.tolist()[6:])
    realizer.add(1, chained(CHAIN, s.BannedTokensSpec(banned)), [1], [])
    realizer.add(2, chained(CHAIN), [1], [])
    realizer.apply(logits)
    assert torch.equal(rows[0], logits[0])
    assert torch.isneginf(logits[1:, 64:]).all()
    rows[1, list(banned)] = -torch.inf
    for row, after in zip(rows[1:, :64], logits[1:, :64], strict=True):
        assert_row(row.float(), after.double(), CHAIN, torch.finfo(dtype).eps)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_each_kind_of_array(dtype: Any, order: Any):
    rows = np.array(np.random.default_rng(0).normal(size=(3, 64)) * 4, dtype, order=order)
    if dtype is np.float64:
        rows[1, 2] = -1.7e308  # as llama.cpp and others mask
    realizer, logits = Realizer(64), rows.copy(order)
    bent = Chain(steps_of(smoothing=Smoothing(1000, 3)), 100.0)  # what no float16 can have
    realizer.add(1, chained(CHAIN), [1], [])
    realizer.add(2, chained(bent), [1], [])
    realizer.apply(logits)
    np.testing.assert_array_equal(rows[0], logits[0])
    with np.errstate(over="ignore"):
        assert_row(rows[1].astype(np.float32), logits[1], CHAIN, float(np.finfo(dtype).eps))
    assert logits[2].argmax() == rows[2].argmax()
    assert not np.isnan(logits).any()
    assert realizer.failed_requests == 0  # a warning is an error here, which would be one


def test_arrays_of_mlx():
    mx = pytest.importorskip("mlx.core")
    pytest.importorskip("logitport.adapters.mlx.editor")
    rows = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    realizer, logits = Realizer(64), mx.array(rows)
    for row in (1, 2):
        realizer.add(row, chained(CHAIN), [1], [])
    realizer.apply(logits)
    np.testing.assert_array_equal(rows[0], np.array(logits)[0])
    for row in (1, 2):
        assert_row(rows[row], np.array(logits)[row], CHAIN)


def rows_that_stay(dtype: torch.dtype) -> list[tuple[str, torch.Tensor]]:
    limit = forced_logit(dtype)
    forced, usual = torch.linspace(-3, 3, 64).to(dtype), torch.zeros(64, dtype=dtype)
    forced[9] = limit
    return [
        ("forced", forced),
        ("banned", usual - limit),
        ("masked", usual - torch.inf),
        ("nan", usual * torch.nan),
        ("infinite", torch.where(torch.arange(64) == 3, torch.inf, usual)),
        ("both", torch.where(torch.arange(64) == 3, torch.inf, -torch.inf).to(dtype)),
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("which", range(6))
def test_a_row_without_a_choice_stays_as_it_is(dtype: torch.dtype, which: int):
    _, row = rows_that_stay(dtype)[which]
    realizer, logits = Realizer(60), row.clone()[None]
    realizer.add(0, chained(CHAIN), [1], [])
    realizer.apply(logits)
    assert torch.equal(logits[0].nan_to_num(nan=7.0), row.nan_to_num(nan=7.0))
    assert realizer.failed_requests == 0


# specs | their guard | tokens that no step sees, in a row where all are equal but these
SPECS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "bans": ((s.BannedTokensSpec(tuple(range(40))),), ()),
    "a guard's bans": ((), (s.BannedTokensSpec(tuple(range(40))),)),
    "both": ((s.BannedTokensSpec(tuple(range(20))),), (s.BannedTokensSpec(tuple(range(20, 40))),)),
    "a list": ((s.AllowedTokensSpec(tuple(range(40, 64))),), ()),
    "a guard's list": ((), (s.AllowedTokensSpec(tuple(range(40, 64))),)),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("steps", ["top_n_sigma", "p_less", "typical", "eta", "top_p"])
@pytest.mark.parametrize("how", SPECS.values(), ids=SPECS)
def test_what_may_not_come_is_outside_of_sums(how: Any, steps: str, dtype: torch.dtype):
    """Banned tokens are the likeliest: with them, no other would be kept."""
    specs, guards = how
    row = torch.randn(64, generator=torch.Generator().manual_seed(5)).to(dtype)
    row[:40] += 20
    value: Any = {"p_less": True, "eta": 0.03, "top_n_sigma": 1.0}.get(steps, 0.8)
    chain = Chain(steps_of(**{steps: value}), 1.0)
    realizer, logits = Realizer(64), row.clone()[None]
    guard = compile_specs(guards) if guards else None
    realizer.add(0, chained(chain, *specs, guard=guard), [1], [])
    realizer.apply(logits)
    row[:40] = -torch.inf
    assert_row(row.float(), logits[0].double(), chain, torch.finfo(dtype).eps)


def test_biased_tokens_are_in_sums():
    """The lowest bias is no ban."""
    row = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    realizer, chain = Realizer(4), Chain(steps_of(top_n_sigma=1.0), 1.0)
    realizer.add(0, chained(chain, s.LogitBiasSpec({3: -100.0})), [1], [])
    realizer.apply(row)
    assert (row[0] > -torch.inf).tolist() == [True, True, True, False]


# whether they are a guard's
@pytest.mark.parametrize("is_guard", [False, True])
def test_what_specs_force_stays(is_guard: bool):
    specs = (s.ForcedTokenSequenceSpec((9, 8), 7),)
    guard = compile_specs(specs) if is_guard else None
    realizer, output = Realizer(64), list[int]()
    realizer.add(0, chained(CHAIN, *(() if is_guard else specs), guard=guard), [1], output)
    for token in (9, 8, 7):
        logits = torch.randn(1, 64, generator=torch.Generator().manual_seed(token))
        before = logits.clone()
        realizer.apply(logits)
        assert logits[0].max() == logits[0, token] == forced_logit(torch.float32)
        assert torch.equal(
            *(torch.cat([each[0, :token], each[0, token + 1 :]]) for each in (before, logits))
        )
        output.append(token)


# the temperature of the steps | the request's, which the engine divides by and the mark has
@pytest.mark.parametrize(("own", "given"), [(None, 0.7), (0.7, 1.0), (0.7, 0.7)])
def test_a_mark_draws_what_a_chain_leaves(own: float | None, given: float):
    steps = steps_of(top_k=8, **({} if own is None else {"temperature": own}))
    chain = Chain(steps, 1.0 if own is None else given)
    mark = Mark("a", KEY, temperature=given)
    program = Program((Acting(chain), Acting(mark)))
    realizer, outputs = Realizer(64), [list[int](), list[int]()]
    realizer.add(0, compile_specs((s.BannedTokensSpec((5,)),)).then(program), [1], outputs[0])
    realizer.add(1, chained(chain), [1], outputs[1])
    for seed in range(40):
        logits = torch.randn(1, 64, generator=torch.Generator().manual_seed(seed)).mul(3)
        logits = logits.repeat(2, 1)
        logits[1, 5] = -torch.inf
        realizer.apply(logits)
        token = int(logits[0].argmax())
        assert logits[0, token] == forced_logit(torch.float32)
        assert logits[1, token] > -torch.inf
        assert_drawn(token, logits[1].numpy(), mark, outputs[0])
        for output in outputs:
            output.append(token)
    assert len({*outputs[0]}) > 20


@pytest.mark.parametrize("fails", [(0,), (1,), (0, 1), (1, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_chain_that_fails(
    fails: Sequence[int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    """Once, its step is made again, from the row as it was; twice, the step's chains end."""
    calls = list[int]()

    def broken(*arguments: Any) -> Any:
        calls.append(0)
        if len(calls) - 1 in fails:
            raise MemoryError("a fault")
        return shape(*arguments)

    reports: list[int] = []
    realizer = Realizer(64, report=lambda row, *_: reports.append(row))
    chain = Chain(steps_of(temperature=0.5, top_k=7), 1.0)
    for row in (0, 1):
        realizer.add(row, chained(chain), [row], [], END)
    realizer.add(2, compile_specs((s.LogitBiasSpec({1: 2.0}),)), [1], [], END)
    logits = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = logits.clone()
    monkeypatch.setattr(editors, "shape", broken)
    realizer.apply(logits)
    monkeypatch.undo()
    assert float(logits[2, 1]) == pytest.approx(float(before[2, 1] + 2), abs=0.1)
    if len(fails) == 1:
        assert reports == []
        for row in (0, 1):
            assert_row(before[row].float(), logits[row].double(), chain, torch.finfo(dtype).eps)
    else:
        assert reports == [0, 1]
        assert logits.argmax(1).tolist()[:2] == [END, END]
    again = before.clone()
    realizer.apply(again)
    assert [int(each) == END for each in again.argmax(1)[:2]] == [len(fails) == 2] * 2


def test_a_chain_without_a_temperature_acts_nowhere():
    """It has not been bound to a request: what the engine draws with is not known."""
    reports = list[str]()
    realizer = Realizer(64, report=lambda row, error, ends: reports.append(f"{row} {ends} {error}"))
    realizer.add(0, compile_specs((s.ChainSpec(CHAIN.steps),)), [1], [], END)
    logits = torch.zeros(1, 64)
    realizer.apply(logits)
    assert int(logits[0].argmax()) == END
    (reason,) = reports
    assert "0 True" in reason
    assert "A chain needs the request's temperature" in reason


def test_rows_move_and_requests_leave():
    realizer = Realizer(64)
    others = Chain(steps_of(min_p=0.4), 3.0)
    rows: dict[int, Chain] = {0: CHAIN, 2: others}
    for row, chain in rows.items():
        realizer.add(row, chained(chain), [1], [])

    def check() -> None:
        logits = torch.randn(4, 64, generator=torch.Generator().manual_seed(2))
        before = logits.clone()
        realizer.apply(logits)
        for row in range(4):
            if row in rows:
                assert_row(before[row], logits[row], rows[row])
            else:
                assert torch.equal(before[row], logits[row])

    check()
    realizer.move(0, 1)
    rows = {1: CHAIN, 2: others}
    check()
    realizer.swap(1, 2)
    rows = {2: CHAIN, 1: others}
    check()
    realizer.add(2, compile_specs((s.LogitBiasSpec({1: 0.0}),)), [1], [])  # another request
    del rows[2]
    check()
    realizer.remove(1)
    rows = {}
    check()


@pytest.mark.parametrize("seed", seeds(3, 8))
def test_lives_with_chains(seed: int):
    """Of requests that come, move, resume, take tokens back and fail, each has its own chain."""
    lead(Chained, seed)


@pytest.mark.slow
@pytest.mark.skipif(why_slow() is not None, reason="as Python, loops that write can fail halfway")
def test_no_fault_leaves_a_row_half_shaped():
    figures = faults.try_out(singles=40, doubles=40, most=10, make=Chained)
    assert not figures.examples
    assert figures.counts["single survived"] == figures.counts["double survived"] == 40
    assert figures.counts["single ended several"] == 0
