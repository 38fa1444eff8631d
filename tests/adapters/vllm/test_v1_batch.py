"""Which request is in which row, told in the words of vLLM's V1 runner."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from logitport import spec as lp
from logitport.adapters.core import compile_specs
from logitport.adapters.core.device import edit_kernel
from logitport.adapters.core.host import realizer
from logitport.adapters.core.host.triton_editor import TritonEditor
from logitport.adapters.vllm import LogitportProcessor, attach
from logitport.adapters.vllm.v1_batch import V1Batch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor.interface import MoveDirectionality
from vllm.v1.sample.logits_processor.state import BatchUpdateBuilder

from tests.support.kernels import Launches
from tests.support.lives import STOP, VOCABULARY, Driver, Life, lead
from tests.support.seeds import seeds

from .stand_ins import configuration

OWN: Any = {"temperature": 0.5, "stop_token_ids": [STOP]}
"""The temperature of the `at_end` with several end tokens."""


class PersistentBatch(Driver):
    """vLLM's ``InputBatch``, in which other requests, without specs, come and go."""

    any_part = False

    def __init__(self, groups: Sequence[Sequence[Any]], patch: pytest.MonkeyPatch) -> None:
        self._processor = LogitportProcessor(configuration(VOCABULARY), torch.device("cpu"))
        self._params = [attach(SamplingParams(**OWN), each) for each in groups]
        self._params.append(SamplingParams())
        self._others = [Life(-1, (), [1], [[]], running=False) for _ in range(3)]
        self._rows: list[Life | None] = []
        self._new: list[Life] = []
        self._builder = BatchUpdateBuilder()

    def come(self, life: Life) -> None:
        life.outputs[0] = [*life.outputs[0]]  # it was preempted, and has another list
        self._new.append(life)

    def put_back(self, life: Life) -> None:
        if life in self._new:
            self._new.remove(life)
            return
        row = self._rows.index(life)
        self._builder.removed_append(row)
        self._rows[row] = None

    def go(self, life: Life) -> None:
        if life.running:
            self.put_back(life)

    def step(self, lives: Sequence[Life], logits: torch.Tensor) -> torch.Tensor:
        if self.choose.random() < 0.4:
            other = self.choose.choice(self._others)
            other.running = not other.running
            (self.come if other.running else self.put_back)(other)
        self._fill()
        if self.choose.random() < 0.4:
            self._swap()
        self._processor.update_state(self._builder.get_and_reset(len(self._rows)))
        # Rows beyond the batch may be there, for a graph of a fixed size.
        before = torch.zeros(len(self._rows) + 2, VOCABULARY)
        rows = [self._rows.index(life) for life in lives]
        before[rows] = logits
        after = before.clone()
        self._processor.apply(after)
        free = [row for row in range(len(before)) if row not in rows]
        assert torch.equal(before[free], after[free])
        return after[rows]

    def _fill(self) -> None:
        """As ``add_request`` and ``condense``: new requests in free rows, then the last ones."""
        rows, builder = self._rows, self._builder
        for life in self._new:
            row = builder.pop_removed()
            if row is None:
                row = len(rows)
                rows.append(None)
            rows[row] = life
            params = self._params[life.group]
            builder.added.append((row, params, life.prompt, life.outputs[0]))
        self._new.clear()
        while (empty := builder.peek_removed()) is not None:
            last = max((row for row, life in enumerate(rows) if life), default=-1)
            if empty >= last:
                break
            builder.pop_removed()
            rows[empty], rows[last] = rows[last], None
            builder.moved.append((last, empty, MoveDirectionality.UNIDIRECTIONAL))
        rows[:] = filter(None, rows)

    def _swap(self) -> None:
        a, b = self.choose.choices(range(len(self._rows)), k=2)
        if a != b:
            self._rows[a], self._rows[b] = self._rows[b], self._rows[a]
            self._builder.moved.append((a, b, MoveDirectionality.SWAP))


@pytest.mark.parametrize("seed", seeds(3, 12))
def test_any_lives(seed: int) -> None:
    lead(PersistentBatch, seed)


def on_gpu(logits: torch.Tensor) -> TritonEditor:
    return TritonEditor(logits.device)


@pytest.mark.parametrize("vocabulary", [151_936, 50_257])
def test_no_request_waits_for_a_kernel(monkeypatch: pytest.MonkeyPatch, vocabulary: int) -> None:
    """Triton compiles while the engine starts, and for no request."""
    kernel = Launches(edit_kernel._edit_kernel)
    monkeypatch.setattr(edit_kernel, "_edit_kernel", kernel)
    monkeypatch.setattr(realizer, "editor_for", on_gpu)
    batch = V1Batch(configuration(), vocabulary, lambda params: None, torch.device("cpu"))
    warm = set(kernel.variants)
    assert len(warm) == 1
    several = (
        lp.AllowedTokensSpec((1, 2)),
        lp.BannedTokensSpec((1,)),
        lp.ForcedTokenSequenceSpec((1, 2), 0),
        lp.TriggerSpec((1,), (2,)),
        lp.LogitBiasSpec({1: 1.0}),
    )
    for row in range(17):
        program = compile_specs(several[row % 5 : 1 + row % 5 + row % 3])
        batch.realizer.add(row, program, [1, 2], [])
        batch.apply(torch.zeros(row + 1, vocabulary))
    assert batch.realizer.failed_requests == 0
    assert kernel.variants == warm
