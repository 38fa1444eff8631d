"""The kernel of chains leaves what the host leaves: for drafts, narrow types, and each step."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, seed, settings
from logitport.adapters.core import Acting, Chain, Mark, Program, Realizer, compile_specs
from logitport.spec import BannedTokensSpec, ChainSpec, ChainStep, Smoothing, Xtc

from tests.support.strategies import chains

pytest.importorskip("triton")
from logitport.adapters.core.device.context import History, LogitsLayout
from logitport.adapters.core.device.realizer import DeviceRealizer

pytestmark = pytest.mark.device

VOCABULARY = 4500
STEPS: list[dict[str, Any]] = [
    *({"temperature": t} for t in (0.01, 0.7, 100)),
    *({"top_k": k} for k in (1, 50, VOCABULARY - 1, 1 << 30)),
    *({"top_p": p} for p in (1e-6, 0.9)),
    *({"min_p": p} for p in (1e-30, 0.05, 1)),
    *({"top_n_sigma": n} for n in (0.1, 1, 1000)),
    *({name: p} for name in ("top_a", "epsilon", "eta") for p in (1e-4, 0.1, 1)),
    *({"typical": p} for p in (0.01, 0.5)),
    *({"top_h": h} for h in (0.01, 0.4, 1)),
    *({"min_k": tau} for tau in (0.1, 1000)),
    {"p_less": True},
    *({"smoothing": Smoothing(*each)} for each in ((0.3,), (10, 2), (0.1, 3))),
    *({"xtc": Xtc(*each)} for each in ((0.01, 0.5), (0.01, 1), (0.5, 0.5))),
]


def drawing(steps: tuple[ChainStep, ...], temperature: float = 1.0) -> Program:
    return Program().then(Program((Acting(Chain(steps, temperature)),)))


def rows_of(dtype: torch.dtype, rng: Any) -> torch.Tensor:
    """Rows: masked and of few values, banned and with ties, narrow; flat; forced; banned."""
    rows = torch.from_numpy((rng.normal(size=(6, VOCABULARY)) * 3).astype(np.float32))
    rows[0] = rows[0].round()
    rows[0, rng.integers(0, VOCABULARY, 1000)] = -torch.inf
    rows[1, rng.integers(0, VOCABULARY, 300)] = -1e9 if dtype != torch.float16 else -16376
    rows[1, 100:103] = rows[1].max()
    rows[2] *= 0.02
    rows[3] = 1.5
    rows[4, 17] = 1e9 if dtype != torch.float16 else 16376
    rows[5] = -1e9 if dtype != torch.float16 else -16376
    return rows.to(dtype)


def on_device(
    programs: list[Program | None], logits: torch.Tensor, device: torch.device
) -> torch.Tensor:
    """Edit a row of each request."""
    count, edited = len(programs), logits.clone().to(device)
    realizer = DeviceRealizer(VOCABULARY, count, device)
    for slot, program in enumerate(programs):
        if program is not None:
            realizer.add(slot, program, [1], [])
    ones = torch.ones(count, dtype=torch.int32, device=device)
    history = History(torch.ones((count, 4), dtype=torch.int32, device=device), ones, ones)
    realizer.upload(history)
    slots = torch.arange(count, dtype=torch.int32, device=device)
    rows = LogitsLayout(slots, torch.zeros_like(ones), torch.zeros_like(ones))
    realizer.apply(edited, history, rows, np.arange(count), 1)
    assert realizer.failed_requests == 0
    return edited.cpu()


def on_host(programs: list[Program | None], logits: torch.Tensor) -> torch.Tensor:
    realizer, edited = Realizer(VOCABULARY), logits.clone()
    for row, program in enumerate(programs):
        if program is not None:
            realizer.add(row, program, [1], [])
    realizer.apply(edited)
    assert realizer.failed_requests == 0
    return edited


def assert_equal(edited: torch.Tensor, expected: torch.Tensor, logits: torch.Tensor) -> None:
    """But for tokens at a border, which sums of float32 may put on its other side."""
    for row, other, before in zip(edited.float(), expected.float(), logits.float(), strict=True):
        differs = torch.isfinite(row) != torch.isfinite(other)
        if differs.any():
            kept = before[torch.isfinite(other)]
            inner = kept[kept < kept.max()]
            borders = torch.stack([kept.min(), *([inner.max()] if len(inner) else [])])
            assert float((before[differs][:, None] - borders).abs().amin(1).max()) < 2e-3
        both = torch.isfinite(row) & torch.isfinite(other)
        close = max(1e-4, 2 * torch.finfo(logits.dtype).eps)
        torch.testing.assert_close(row[both], other[both], rtol=close, atol=10 * close)


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [
        *((fields, torch.float32) for fields in STEPS[::6]),
        *(
            pytest.param(fields, dtype, marks=pytest.mark.slow)
            for dtype, others in (
                (torch.float32, [each for i, each in enumerate(STEPS) if i % 6]),
                (torch.bfloat16, STEPS[1::3]),
                (torch.float16, STEPS[::3]),
            )
            for fields in others
        ),
    ],
    ids=str,
)
def test_each_step(device: torch.device, fields: dict[str, Any], dtype: torch.dtype) -> None:
    logits = rows_of(dtype, np.random.default_rng(1))
    programs: list[Program | None] = [drawing((ChainStep(**fields),))] * len(logits)
    edited, expected = on_device(programs, logits, device), on_host(programs, logits)
    assert_equal(edited, expected, logits)
    assert torch.equal(edited[4:], logits[4:])


def test_top_h_counts_100_of_equal_tokens(device: torch.device) -> None:
    """With all of them, the entropy would be twice as high, and leave all."""
    logits = torch.full((1, VOCABULARY), -3.0)
    logits[0, 7], logits[0, 9] = 0.0, -0.5
    programs: list[Program | None] = [drawing((ChainStep(top_h=0.12),))]
    edited = on_device(programs, logits, device)
    assert torch.equal(edited, on_host(programs, logits))
    assert edited.isfinite().nonzero().tolist() == [[0, 7]]


@pytest.mark.slow
@seed(1)
@settings(max_examples=8)
@given(chains())
def test_any_chain(device: torch.device, chain: ChainSpec) -> None:
    logits = rows_of(torch.float32, np.random.default_rng(len(chain.steps)))[:3]
    (part,) = compile_specs((chain,)).chains
    programs: list[Program | None] = [drawing(part.steps, 1.5)] * 3
    assert_equal(on_device(programs, logits, device), on_host(programs, logits), logits)


def test_each_request_has_its_own(device: torch.device) -> None:
    """Steps of several, after bans of a guard, before a mark, and none at all."""
    logits = rows_of(torch.float32, np.random.default_rng(2))[[0, 1, 0, 1, 2]]
    likeliest = int(logits[2].argmax())
    banned = Program().then(compile_specs((BannedTokensSpec((likeliest,)),)))
    steps = ChainStep(top_n_sigma=0.5), ChainStep(xtc=Xtc(0.05, 0.5)), ChainStep(temperature=2.0)
    marked = Program((Acting(Chain(steps[:1], 1.0)), Acting(Mark("news", 5, top_k=5))))
    programs = [
        *(drawing(steps, 2.0), None, banned.then(Program((Acting(Chain(steps[:1], 1.0)),)))),
        *(Program().then(marked), drawing((ChainStep(top_k=2),))),
    ]
    edited, expected = on_device(programs, logits, device), on_host(programs, logits)
    others = [0, 1, 2, 4]  # a row with a drawn token may keep what else it has
    assert_equal(edited[others], expected[others], logits[others])
    assert torch.equal(edited[1], logits[1])
    assert edited[2, likeliest] == -torch.inf
    assert edited[3].argmax() == expected[3].argmax()


def test_each_draft_has_a_row(device: torch.device) -> None:
    """A request with three drafts, beside one without a chain; and a slot that is taken again."""
    logits = rows_of(torch.float32, np.random.default_rng(3))[[0, 1, 2, 0]]
    realizer = DeviceRealizer(VOCABULARY, 2, device)
    history = History(
        torch.ones((2, 4), dtype=torch.int32, device=device),
        *(torch.ones(2, dtype=torch.int32, device=device) for _ in range(2)),
    )
    layout = [1, 1, 1, 0], [0, 1, 2, 0], [1, 1, 1, 1]
    rows = LogitsLayout(*(torch.tensor(each, dtype=torch.int32, device=device) for each in layout))
    for steps in ((ChainStep(top_k=3),), (), (ChainStep(min_p=0.1), ChainStep(temperature=0.5))):
        realizer.remove(1)
        if steps:
            realizer.add(1, drawing(steps), [1], [])
        realizer.upload(history)
        edited = logits.clone().to(device)
        realizer.apply(edited, history, rows, np.arange(2), 3)
        programs: list[Program | None] = [drawing(steps) if steps else None] * 3 + [None]
        assert_equal(edited.cpu(), on_host(programs, logits), logits)
        assert torch.equal(edited.cpu()[3], logits[3])
