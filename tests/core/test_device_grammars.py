"""Grammars on a device: the host edits their rows, beside drafts, and no others."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from logitport import spec as s
from logitport.adapters.core import Realizer

from tests.core.test_grammars import ENDS, SIZE, THEN, left, program_of

pytest.importorskip("triton")
from logitport.adapters.core import SplitRealizer
from logitport.adapters.core.device.context import History, LogitsLayout

pytestmark = pytest.mark.device

CHOICES = s.GrammarSpec(choices=("abab", "cb"))


class Slots:
    """A device's tokens, with one realizer."""

    def __init__(self, device: torch.device) -> None:
        self.errors: list[tuple[int, str]] = []
        self.realizer = SplitRealizer(SIZE, 4, device, report=self._report)
        self.token_ids = torch.zeros(4, 64, dtype=torch.int32, device=device)
        self.prompts = torch.zeros(4, dtype=torch.int32, device=device)
        self.lengths = torch.zeros(4, dtype=torch.int32, device=device)
        self.device = device

    def _report(self, slot: int, error: Exception, ends: bool) -> None:
        self.errors.append((slot, str(error)))

    def add(self, slot: int, spec: Any, output: list[int], stop: int = 0) -> None:
        self.prompts[slot] = 1
        self.put(slot, output)
        self.realizer.add(slot, program_of(*spec), [1], output, stop)

    def put(self, slot: int, output: list[int]) -> None:
        tokens = [1, *output]
        self.token_ids[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        self.lengths[slot] = len(tokens)

    def step(self, drafts: dict[int, list[int]]) -> list[set[int]]:
        rows = [(slot, k) for slot, tokens in drafts.items() for k in range(len(tokens) + 1)]
        tokens = [drafts[slot][k - 1] if k else 0 for slot, k in rows]
        numbers = [[slot for slot, _ in rows], [k for _, k in rows], tokens]
        layout = LogitsLayout(
            *(torch.tensor(each, dtype=torch.int32, device=self.device) for each in numbers)
        )
        history = History(self.token_ids, self.prompts, self.lengths)
        logits = torch.zeros(len(rows), SIZE, device=self.device)
        self.realizer.upload(history)
        self.realizer.apply(logits, history, layout, np.array([*drafts]), 60)
        return [left(logits[i : i + 1].cpu()) for i in range(len(rows))]


@pytest.fixture
def slots(device: torch.device) -> Slots:
    return Slots(device)


def on_host(spec: Any, output: list[int]) -> set[int]:
    realizer, logits = Realizer(SIZE), np.zeros((1, SIZE), np.float32)
    realizer.enter(0, program_of(*spec), [1], output, 0)
    realizer.apply(logits)
    return left(logits)


def test_each_draft_has_a_row(slots: Slots):
    """A draft that cannot come leaves its row alone, and ends no request."""
    slots.add(0, [CHOICES], [])
    slots.add(1, [s.BannedTokensSpec((1, 2))], [])
    slots.add(2, [CHOICES], [4])
    everything = {*range(SIZE)}
    found = slots.step({1: [3], 0: [4, 1], 2: [3, 2]})
    assert found[:2] == [everything - {1, 2}] * 2
    assert found[2:5] == [{1, 3, 4, 13}, {1, 4}, {2}]
    assert found[5] == {1, 4}
    assert not slots.errors
    slots.put(0, [4, 4])
    assert slots.step({0: [], 2: [4]}) == [ENDS, {1, 4}, ENDS]


def test_what_came_instead_of_drafts(slots: Slots):
    """Outputs go on as on the host, whatever became of the drafts, until phases are over."""
    numbers = np.random.default_rng(1)
    slots.add(0, [THEN], [])
    slots.add(3, [THEN], [])
    outputs: dict[int, list[int]] = {0: [], 3: []}
    for _ in range(14):
        drafts = {slot: numbers.integers(1, SIZE, 3).tolist() for slot in outputs}
        found = iter(slots.step(drafts))
        for slot, output in outputs.items():
            rows = [next(found) for _ in range(4)]
            expected = on_host([THEN], [*output])
            assert rows[0] == expected
            output.append(int(numbers.choice(sorted(rows[0] & {*range(SIZE)}))))
            if numbers.random() < 0.5 and output[-1] not in ENDS:
                output.append(int(numbers.choice(sorted(on_host([THEN], [*output])))))
            slots.put(slot, output)
    assert not slots.errors


def test_a_request_that_fails_ends_alone(slots: Slots):
    slots.add(0, [CHOICES], [3, 3])
    slots.add(1, [CHOICES], [4])
    assert slots.step({0: [], 1: []}) == [{0}, {1, 4}]
    assert slots.errors == [(0, "The grammar does not go on with token 3")]
    slots.put(0, [3, 3, 0])
    assert slots.step({0: [], 1: []}) == [{0}, {1, 4}]
    slots.realizer.remove(0)
    slots.realizer.remove(1)
    assert len(slots.realizer) == 0
    assert slots.step({0: []}) == [{*range(SIZE)}]
    assert not slots.realizer._on_host._rows


def test_a_prompt_shorter_than_what_it_continues_ends_its_request_alone(slots: Slots):
    """The host has no prompt until the device is read."""
    slots.add(1, [CHOICES], [4])
    slots.add(2, [s.BannedTokensSpec((1, 2))], [])
    slots.prompts[0] = 1
    slots.put(0, [])
    slots.realizer.add(0, replace(program_of(CHOICES), continued=9), None, [], 0)
    everything = {*range(SIZE)}
    for _ in range(2):
        assert slots.step({0: [], 1: [], 2: []}) == [{0}, {1, 4}, everything - {1, 2}]
    (error,) = slots.errors
    assert error == (0, "Expected at most 1, the prompt's tokens, got 9 - at `$.continued`")


def test_the_code_of_a_request_is_made_once(slots: Slots):
    """Not for each row of its drafts, nor again for a row that comes later."""
    made = list[int]()

    def factory() -> Any:
        made.append(0)
        return lambda output_ids, row: row.index_fill(0, row.new_tensor([*ENDS]).long(), -1e9)

    slots.add(0, [s.GrammarSpec(regex="a*"), s.PythonProcessorSpec(factory)], [])
    assert slots.step({0: [1, 1]}) == [{1, 7}] * 3
    slots.put(0, [1])
    assert slots.step({0: []}) == [{1, 7}]
    assert len(made) == 1
    assert not slots.errors


def test_a_guard_comes_after(slots: Slots):
    program = program_of(CHOICES).then(program_of(s.BannedTokensSpec((4,))))
    slots.prompts[0] = 1
    slots.put(0, [])
    slots.realizer.add(0, program, [1], [], 0)
    assert slots.step({0: []}) == [{1, 3, 13}]
