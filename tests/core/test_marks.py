"""Marked draws, held to vLLM's definition in numpy's float32: which token, where, and how often."""

import logging
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from logitport import spec as s
from logitport.adapters.core import Acting, Mark, Program, Realizer, compile_specs
from logitport.adapters.core.host import draw as draws
from logitport.adapters.core.host.draw import draw, drawing_of
from logitport.adapters.core.loops import why_slow

from tests.support.drawn import KEY, assert_drawn, is_repeated, values_of
from tests.support.host_driver import Marked
from tests.support.lives import lead
from tests.support.requests import LAYOUTS, forced_logit, laid_out
from tests.support.seeds import seeds
from tests.tools import faults

FORCED = 1e9
END = 3


def marked(mark: Mark, *specs: Any, guard: Program | None = None, **more: Any) -> Program:
    """The program of a request with specs, and with a mark after all."""
    own = replace(compile_specs(specs), guard=guard, **more)
    return own.then(Program((Acting(mark),)))


def drawn(row: Any, mark: Mark, output: Sequence[int] = (), prompt: Sequence[int] = ()) -> int:
    tokens = np.array([*prompt, *output, 0, 0], np.int32)
    length = len(prompt) + len(output)
    return draw(np.asarray(row, np.float32), tokens, length, len(prompt), drawing_of(mark))


SAMPLING: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.01},
    "hot": {"temperature": 3.7},
    "min_p": {"min_p": 0.03, "temperature": 0.7},
    "min_p 1": {"min_p": 1.0},
    "top_k": {"top_k": 5},
    "top_k of all": {"top_k": 10_000_000},
    "top_p": {"top_p": 0.9},
    "top_p of hardly anything": {"top_p": 1e-6},
    "top_p of nearly all": {"top_p": 0.9999999, "temperature": 1.5},
    "top_k and top_p": {"top_k": 40, "top_p": 0.8, "temperature": 0.6},
    "all": {"top_k": 300, "top_p": 0.97, "min_p": 0.001, "temperature": 1.3},
}


def rows_of(kind: str, rng: np.random.Generator) -> np.ndarray:
    size = int(rng.choice([1, 2, 3, 7, 64, 513, 3000]))
    if kind == "flat":
        return np.full(size, rng.normal(), np.float32)
    spread = {"narrow": 1e-3, "usual": 3, "wide": 60}.get(kind, 4)
    row = (rng.normal(size=size) * spread).astype(np.float32)
    at = rng.random(size)
    if kind == "ties":
        row = np.round(row)
    if kind == "masked":
        row[at < 0.5] = -np.inf
        row[(at > 0.5) & (at < 0.6)] = np.nan
        row[at > 0.9] = np.finfo(np.float32).min
    if kind == "banned":
        row[at < 0.7] += np.float32(-1e9)
    if kind == "forced":
        row[rng.integers(size)] = FORCED
    row[rng.integers(size)] = FORCED if kind == "forced" else 1.0  # one at least can be drawn
    return row


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
@pytest.mark.parametrize(
    "kind", ["usual", "narrow", "wide", "flat", "ties", "masked", "banned", "forced"]
)
def test_each_row(kind: str, sampling: Any):
    rng = np.random.default_rng(len(kind))
    for _ in range(60):
        row = rows_of(kind, rng)
        key, width = int(rng.integers(2**63)), int(rng.choice([1, 4, 5, 64]))
        mark = Mark("a", key, width=width, **sampling)
        output = rng.integers(0, 200_000, rng.integers(0, 9)).tolist()
        before = row.copy()
        token = drawn(row, mark, output)
        assert_drawn(token, row, mark, output)
        np.testing.assert_array_equal(row, before)


def test_of_equal_values_the_lowest_token_comes():
    """Beside such logits, noise is rounded to multiples of 1/32."""
    row, ties = np.full(40, 1 << 18, np.float32), 0
    row[-1] += 3  # the likeliest comes last
    for key in range(1500):
        values = values_of(row, Mark("a", key), ())
        assert drawn(row, Mark("a", key)) == values.argmax()
        ties += values.argmax() < 39 and values[39] == values.max()
    assert ties > 5


def test_a_row_that_has_nothing_is_the_engines():
    for row in ([-np.inf] * 3, [np.nan] * 3, [np.inf, 0, 0], [np.nan, -np.inf, np.inf]):
        assert drawn(row, Mark("a", KEY)) == -1


def test_noise_is_bounded_as_draws_assume():
    assert draws.noise(np.uint64(0)) > -2.83
    assert 16.6 < draws.noise(np.uint64(2**24 - 1)) < draws._MOST
    for gap, bits in enumerate(draws._NEEDED.tolist()[:17]):
        assert draws.noise(np.uint64(bits)) < gap + 1e-3
        assert draws.noise(np.uint64(max(0, int(bits) - 1))) < gap


@pytest.mark.parametrize("mark", [{}, {"top_k": 3}, {"top_p": 0.8, "temperature": 0.7}])
def test_draws_are_distributed_as_without_a_mark(mark: Any):
    rng, row = np.random.default_rng(1), np.array([0.3, -1, 2, 1.5, -0.2, 0.1, -3, 1], np.float32)
    tokens, draws_made, counts = np.array([3, 1, 4, 1, 5], np.int32), 0, np.zeros(8)
    for key in rng.integers(2**63, size=4000).tolist():
        drawing = drawing_of(Mark("a", key, width=4, **mark))
        for length in range(1, 6):
            counts[draw(row, tokens, length, 0, drawing)] += 1
            draws_made += 1
    kept = np.isfinite(values_of(row, Mark("a", KEY, **mark), ()))
    shares = np.where(kept, np.exp(row / mark.get("temperature", 1)), 0)
    expected = shares / shares.sum() * draws_made
    assert counts[~kept].sum() == 0
    degrees = kept.sum() - 1
    chi_squared = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    assert chi_squared < degrees + 4 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("reads_prompt", [False, True])
@pytest.mark.parametrize("width", [1, 2, 4, 7])
@pytest.mark.parametrize("searched", [0, 1, 3, 8192])
def test_only_the_first_of_equal_contexts_is_drawn_with(
    reads_prompt: bool, width: int, searched: int
):
    rng, repeated = np.random.default_rng(width), 0
    if reads_prompt and not searched:
        pytest.skip("no profile has both")
    mark = Mark("a", KEY, width=width, searched=searched, reads_prompt=reads_prompt)
    for _ in range(200):
        prompt = rng.integers(0, 2, rng.integers(0, 9)).tolist()
        output = rng.integers(0, 2, rng.integers(0, 90)).tolist()
        expected = is_repeated(prompt, output, mark)
        assert (drawn(np.zeros(8), mark, output, prompt) == -1) is expected
        repeated += expected
    assert (repeated == 0) is (searched == 0)


class Life:
    """A marked request of a realizer, in row 1 of 3, that takes what is likeliest."""

    def __init__(self, program: Program, prompt: Sequence[int] = (1, 2), stop: Any = END) -> None:
        self.realizer = Realizer(64, report=self._report)
        self.prompt, self.output, self.row = [*prompt], list[int](), 1
        self.reports: list[str] = []
        self.realizer.add(1, program, self.prompt, self.output, stop)

    def _report(self, row: int, error: Exception, ends: bool) -> None:
        self.reports.append(f"{row} {ends} {error}")

    def step(self, *, takes: bool = True, masked: Sequence[int] = ()) -> torch.Tensor:
        """Logits are those of the number of tokens so far, so that replies can be compared."""
        at = len(self.prompt) + len(self.output)
        row = torch.randn(1, 64, generator=torch.Generator().manual_seed(at)) * 3
        logits = row.repeat(3, 1)
        logits[:, [*masked]] = -torch.inf
        before = logits.clone()
        self.realizer.apply(logits)
        others = [row for row in range(3) if row != self.row]
        assert torch.equal(before[others], logits[others])
        if takes:
            self.output.append(int(logits[self.row].argmax()))
        return logits[self.row]

    def say(self, tokens: int, **how: Any) -> list[int]:
        for _ in range(tokens):
            self.step(**how)
        assert not self.reports
        return self.output


# specs | their guard | what comes is a reply that a mark made, but for
SPECS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...], dict[int, int], set[int]]] = {
    "a bias": ((s.LogitBiasSpec({5: 4.0}),), (), {}, set()),
    "forced tokens": ((s.ForcedTokenSequenceSpec((9, 8, 7)),), (), {0: 9, 1: 8, 2: 7}, set()),
    "a forced end": ((s.ForcedEndSpec(6, (9, 8)),), (), {6: 9, 7: 8}, set()),
    "bans": ((s.BannedTokensSpec(tuple(range(40))),), (), {}, set(range(40))),
    "a guard": ((), (s.BannedTokensSpec(tuple(range(40))),), {}, set(range(40))),
    "both": (
        (s.ForcedTokenSequenceSpec((50, 9)),),
        (s.BannedTokensSpec(tuple(range(40))),),
        {0: 50},
        set(range(40)),
    ),
    "a list": ((s.AllowedTokensSpec((1, 2, 3, 4)),), (), {}, set(range(5, 64)) | {0}),
    "no n-gram twice": ((s.NoRepeatNgramSpec(1),), (), {}, set()),
}


@pytest.mark.parametrize("how", SPECS.values(), ids=SPECS)
def test_beside_specs(how: Any):
    """What they force stays, what they ban does not come, and all else is marked."""
    specs, guards, forced, banned = how
    guard, mark = compile_specs(guards) if guards else None, Mark("a", KEY, searched=0)
    others = Life(replace(compile_specs(specs), guard=guard))
    life = Life(marked(mark, *specs, guard=guard))
    for at in range(25):
        others.output[:] = life.output
        row = others.step(takes=False, masked=(60, 61))
        life.step(masked=(60, 61))
        token = life.output[-1]
        assert_drawn(token, row, mark, life.output[:-1])
        assert token == forced.get(at, token)
        assert token not in banned | {60, 61}
    assert not life.reports


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 19])
@pytest.mark.parametrize("reads_prompt", [False, True])
def test_a_reply_that_goes_on_elsewhere_is_the_same(cut: int, reads_prompt: bool):
    mark = Mark("a", KEY, top_p=0.95, reads_prompt=reads_prompt)
    whole = [*Life(marked(mark)).say(30)]
    first = Life(marked(mark, continued=cut), [1, 2, *whole[:cut]])
    assert first.say(30 - cut) == whole[cut:]


def test_tokens_are_taken_back():
    mark = Mark("a", KEY)
    life = Life(marked(mark))
    whole = [*life.say(30)]
    for back in (1, 4, 11, 30):
        del life.output[-back:]
        life.step(takes=False)  # as engines do before the place is taken
        assert life.say(back) == whole


def test_rows_move():
    mark = Mark("a", KEY)
    whole = [*Life(marked(mark)).say(24)]
    life = Life(marked(mark))
    life.say(4)
    for source, destination in ((1, 0), (0, 2), (2, 1), (1, 2)):
        life.realizer.move(source, destination)
        life.row = destination
        life.say(2)
    life.realizer.swap(2, 0)
    life.row = 0
    life.say(2)
    output = life.output
    life.realizer.remove(0)
    row = life.step(takes=False)
    assert float(row.max()) < 100  # nothing acts
    life.realizer.add(2, marked(mark), life.prompt, output, END)  # a preempted request comes back
    life.row = 2
    life.say(10)
    assert output == whole


def test_two_requests_have_a_mark_each():
    realizer = Realizer(64)
    mark, other = Mark("a", KEY), Mark("b", 7, temperature=0.5)
    outputs: list[list[int]] = [[], [], []]
    realizer.add(0, marked(mark), [1], outputs[0])
    realizer.add(2, marked(other), [1], outputs[2])
    logits = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    for _ in range(20):
        edited = logits.clone()
        realizer.apply(edited)
        assert torch.equal(edited[1], logits[1])
        for row, each in ((0, mark), (2, other)):
            changed = (edited[row] != logits[row]).nonzero().flatten().tolist()
            if changed:
                assert_drawn(changed[0], logits[row], each, outputs[row])
            outputs[row].append(int(edited[row].argmax()))
    assert realizer.failed_requests == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_kind_of_tensor(dtype: torch.dtype, layout: str):
    mark = Mark("a", KEY, top_k=20, top_p=0.9)
    rows = torch.randn(2, 70, generator=torch.Generator().manual_seed(1))
    rows = rows.mul(4).to(dtype)
    rows[:, 5] = -torch.inf
    realizer, logits = Realizer(64), laid_out(rows, layout)
    rows[:, 64:] = logits[:, 64:] = 50.0  # columns that the vocabulary does not have
    realizer.add(1, marked(mark, s.LogitBiasSpec({1: 2.0})), [1], [])
    realizer.apply(logits)
    rows[1, 1] = (rows[1, 1].float() + 2.0).to(dtype)
    (token,) = (rows[1] != logits[1]).nonzero().flatten().tolist()
    assert logits[1, token] == forced_logit(dtype)
    assert torch.equal(rows[0], logits[0])
    assert_drawn(token, rows[1, :64].float().numpy(), mark)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_each_kind_of_array(dtype: Any, order: Any):
    mark = Mark("a", KEY, temperature=0.8)
    rows = np.array(np.random.default_rng(0).normal(size=(2, 64)) * 4, dtype, order=order)
    if dtype is np.float64:
        rows[1, 2] = -1.7e308  # as llama.cpp and others mask
    realizer, logits = Realizer(64), rows.copy(order)
    realizer.add(1, marked(mark), [1], [])
    realizer.apply(logits)
    (token,) = np.flatnonzero(rows[1] != logits[1]).tolist()
    with np.errstate(over="ignore"):
        assert_drawn(token, rows[1].astype(np.float32), mark)


def test_arrays_of_mlx():
    mx = pytest.importorskip("mlx.core")
    pytest.importorskip("logitport.adapters.mlx.editor")
    mark = Mark("a", KEY)
    rows = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
    realizer, logits = Realizer(64), mx.array(rows)
    realizer.add(1, marked(mark), [1], [])
    realizer.apply(logits)
    (token,) = np.flatnonzero(rows[1] != np.array(logits)[1]).tolist()
    assert_drawn(token, rows[1], mark)


# what is wrong | the reason
@pytest.mark.parametrize("output", [[], [5, -1]])
def test_what_cannot_be_marked_ends(output: list[int]):
    """A mark without a key, and a token that the host does not know."""
    mark, reports = Mark("news", -1) if not output else Mark("news", KEY), list[str]()
    realizer = Realizer(64, report=lambda row, error, ends: reports.append(f"{row} {ends} {error}"))
    realizer.add(0, marked(Mark("a", KEY)), [1], other := [4])
    realizer.add(1, marked(mark, s.BannedTokensSpec((END,))), [1], output, END)
    for _ in range(3):
        logits = torch.zeros(2, 64)
        realizer.apply(logits)
        assert logits.argmax(1).tolist()[1] == END
        assert int(logits.argmax(1)[0]) != END
        other.append(int(logits.argmax(1)[0]))
    (reason,) = reports
    assert reason.startswith("1 True ")
    assert ("This engine has no profile 'news' of marks" in reason) is (not output)
    assert realizer.failed_requests == 1


@pytest.mark.parametrize("fails", [(0,), (0, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_draw_that_fails(
    fails: Sequence[int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    """Once, it is made again; twice, the marked requests of the step end, and nothing else."""
    calls, original = list[int](), np.divide

    def divide(*arguments: Any, **keywords: Any) -> Any:
        calls.append(0)
        if len(calls) - 1 in fails:
            raise MemoryError("a fault")
        return original(*arguments, **keywords)

    reports: list[int] = []
    realizer = Realizer(64, report=lambda row, *_: reports.append(row))
    mark = Mark("a", KEY)
    for row in (0, 1):
        realizer.add(row, marked(mark), [row], [], END)
    realizer.add(2, compile_specs((s.LogitBiasSpec({1: 2.0}),)), [1], [], END)
    logits = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected, row = logits.clone(), logits[0].float().numpy().copy()
    monkeypatch.setattr(np, "divide", divide)
    realizer.apply(logits)
    monkeypatch.undo()
    assert torch.equal(logits[2, 2:], expected[2, 2:])
    assert float(logits[2, 1]) == pytest.approx(float(expected[2, 1] + 2), abs=0.1)
    if len(fails) == 1:
        assert reports == []
        assert_drawn(int(logits[0].argmax()), row, mark)
    else:
        assert reports == [0, 1]
        assert logits.argmax(1).tolist()[:2] == [END, END]
    again = expected.clone()
    realizer.apply(again)
    assert [int(each) == END for each in again.argmax(1)[:2]] == [len(fails) == 2] * 2


def test_a_key_is_in_nothing_that_is_shown(caplog: pytest.LogCaptureFixture):
    key, caplog_at = 987_654_321_987_654_321, logging.DEBUG
    caplog.set_level(caplog_at)
    mark = Mark("news", key)
    program = marked(mark, s.BannedTokensSpec((1,)))
    payload = s.encode(s.WatermarkSpec("news"))
    realizer = Realizer(64)
    realizer.add(0, program, [1], [-1], END)  # fails, which is logged
    realizer.apply(torch.zeros(1, 64))
    assert realizer.failed_requests == 1
    shown = [repr(each) for each in (mark, program, program.guard, Acting(mark), realizer)]
    shown += [caplog.text, payload, repr(pickle.dumps(s.decode(payload)))]
    assert caplog.text
    digits = [str(key), f"{key:x}", str(key & 0xFFFFFFFF), str(key >> 32)]
    assert not [each for each in shown if any(number in each.lower() for number in digits)]


@pytest.mark.parametrize("seed", seeds(3, 8))
def test_lives_with_marks(seed: int):
    """Of requests that come, move, resume, take tokens back and fail, each has its own mark."""
    lead(Marked, seed)


@pytest.mark.slow
@pytest.mark.skipif(why_slow() is not None, reason="as Python, loops that write can fail halfway")
def test_no_fault_leaves_a_text_unmarked():
    figures = faults.try_out(singles=40, doubles=40, most=10, make=Marked)
    assert not figures.examples
    assert figures.counts["single survived"] == figures.counts["double survived"] == 40
    assert figures.counts["single ended several"] == 0
