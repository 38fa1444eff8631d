"""The kernel of marks draws what the host draws: for drafts, narrow types and any truncation."""

from typing import Any

import numpy as np
import pytest
import torch
from logitport.adapters.core import Acting, Mark, Program, Realizer

pytest.importorskip("triton")
from logitport.adapters.core.device.context import History, LogitsLayout
from logitport.adapters.core.device.realizer import DeviceRealizer

pytestmark = pytest.mark.device

VOCABULARY, LONGEST, KEY = 5000, 64, (1 << 63) + 12345


def program(**fields: Any) -> Program:
    return Program().then(Program((Acting(Mark("news", KEY, **fields)),)))


def random_rows(seed: int, rows: int, dtype: torch.dtype, spread: float = 3) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(rows, VOCABULARY)).astype(np.float32) * spread)
    logits[:, rng.integers(0, VOCABULARY, 1000)] = -torch.inf
    logits[:, rng.integers(0, VOCABULARY, 300)] -= 1e9 if dtype != torch.float16 else 6e4
    logits[:, :4] = logits.amax(1, keepdim=True)  # ties
    return logits.to(dtype)


def drawn(logits: torch.Tensor) -> list[int]:
    """The forced token of each row, -1 for none."""
    highest = torch.finfo(logits.dtype).max / 4 if logits.dtype == torch.float16 else 1e8
    return [int(row.argmax()) if row.max() > highest * 0.9 else -1 for row in logits.float()]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.7},
        {"temperature": 2.5, "width": 5},
        {"top_k": 50},
        {"top_k": VOCABULARY * 2},
        {"top_p": 0.9},
        {"top_p": 1e-6},
        {"min_p": 0.05},
        {"top_k": 20, "top_p": 0.8, "min_p": 0.01, "temperature": 0.6},
        {"width": 2},
        {"width": 2, "searched": 0},
        {"width": 2, "searched": 3},
        {"width": 3, "reads_prompt": True},
        {"width": 64},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (torch.float16, torch.bfloat16)),
    ],
)
def test_as_the_host(device: torch.device, fields: dict[str, Any], dtype: torch.dtype) -> None:
    """Two requests, one with three drafts: the host gets a row for each of these histories."""
    marked = program(**fields)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, 3, 5).tolist(), rng.integers(0, 3, 9).tolist()]
    outputs = [rng.integers(0, 3, n).tolist() for n in (7, 20)]
    drafts = [1, 2, 1]
    on_device = DeviceRealizer(VOCABULARY, 2, device)
    token_ids = torch.zeros((2, LONGEST), dtype=torch.int32, device=device)
    lengths = []
    for slot, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        on_device.add(slot, marked, prompt, output)
        tokens = torch.tensor([*prompt, *output], dtype=torch.int32)
        token_ids[slot, : len(tokens)] = tokens
        lengths.append(len(tokens))

    def on(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    history = History(token_ids, on([len(each) for each in prompts]), on(lengths))
    rows = LogitsLayout(on([0, 1, 1, 1, 1]), on([0, 0, 1, 2, 3]), on([0, 0, *drafts]))
    logits = random_rows(2, 5, dtype)
    edited = logits.clone().to(device)
    on_device.upload(history)
    on_device.apply(edited, history, rows, np.arange(2), LONGEST)

    on_host = Realizer(VOCABULARY)
    on_host.add(0, marked, prompts[0], outputs[0])
    for count in range(4):
        on_host.add(1 + count, marked, prompts[1], [*outputs[1], *drafts[:count]])
    expected = logits.clone()
    on_host.apply(expected)
    assert on_device.failed_requests == on_host.failed_requests == 0
    assert drawn(edited.cpu()) == drawn(expected)
    assert torch.equal(edited.cpu(), expected) or dtype != torch.float32


def test_a_slot_keeps_no_mark(device: torch.device) -> None:
    realizer = DeviceRealizer(VOCABULARY, 1, device)
    zeros = torch.zeros(1, dtype=torch.int32, device=device)
    history = History(torch.zeros((1, LONGEST), dtype=torch.int32, device=device), zeros, zeros)
    for marked in (program(), None, program(), Program()):
        realizer.remove(0)
        if marked is not None:
            realizer.add(0, marked, [], [])
        realizer.upload(history)
        logits = random_rows(3, 1, torch.float32).to(device)
        before = logits.clone()
        realizer.apply(logits, history, LogitsLayout(zeros, zeros, zeros), np.zeros(1, int), 1)
        assert torch.equal(logits, before) is (marked is None or marked.guard is None)


def test_a_mark_without_a_key_ends_its_request(device: torch.device) -> None:
    reasons: list[str] = []
    realizer = DeviceRealizer(
        VOCABULARY, 1, device, report=lambda slot, error, ends: reasons.append(str(error))
    )
    realizer.add(0, Program((Acting(Mark("news")),)), [], [], stop_token_id=7)
    assert reasons == ["This engine has no profile 'news' of marks"]
