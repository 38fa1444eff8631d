"""An engine that keeps its tokens on the device, and its driver."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from logitport.adapters.core import Program
from logitport.adapters.core.device import pool
from logitport.adapters.core.device.context import History, LogitsLayout
from logitport.adapters.core.device.realizer import DeviceRealizer

from tests.support.faults import DEVICE_MODULES, MODULES
from tests.support.lives import MOST, Driver, Life
from tests.support.requests import VOCABULARY, Request, Row, assert_row, make_small, random_logits
from tests.support.triton_process import INTERPRETED

SLOTS, LONGEST = 6, 400


class Engine:
    """An engine's slots and tokens, with one realizer.

    Attributes:
        requests: by slot; a slot keeps what was in it until it is used again.
        free: slots that are not in use.
    """

    updates = pool.DevicePool, "update"

    def __init__(
        self,
        device: torch.device,
        vocabulary: int = VOCABULARY,
        slots: int = SLOTS,
        longest: int = LONGEST,
    ):
        self.device, self.vocabulary = device, vocabulary
        self.realizer = DeviceRealizer(vocabulary, slots, device)
        # What is beyond a request's tokens are somebody else's.
        garbage = torch.randint(vocabulary, (slots, longest), dtype=torch.int32)
        self.token_ids = garbage.to(device)
        self.prompt_lengths = torch.zeros(slots, dtype=torch.int32, device=device)
        self.lengths = torch.zeros(slots, dtype=torch.int32, device=device)
        self.requests: dict[int, Request] = {}
        self.free = list(range(slots))

    @property
    def history(self) -> History:
        return History(self.token_ids, self.prompt_lengths, self.lengths)

    def add(self, request: Request, program: Program | None = None) -> int:
        slot = self.free.pop()
        self.requests[slot] = request
        tokens = [*request.prompt, *request.output]
        self.token_ids[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        self.prompt_lengths[slot] = len(request.prompt)
        self.lengths[slot] = len(tokens)
        if program is not None or request.specs:
            # The host may read the tokens, or the device: it makes no difference.
            known: Any = (request.prompt, request.output) if slot % 2 else (None,)
            self.realizer.add(slot, program or request.program, *known, stop_token_id=request.stop)
        else:
            self.realizer.remove(slot)
        return slot

    def finish(self, slot: int) -> Request:
        self.free.insert(0, slot)
        return self.requests.pop(slot)

    def accept(self, slot: int, token_ids: Sequence[int]) -> None:
        """Tokens that were sampled, or drafts that were accepted, are in the history now."""
        length = int(self.lengths[slot])
        new = torch.tensor(list(token_ids), dtype=torch.int32)
        self.token_ids[slot, length : length + len(new)] = new
        self.lengths[slot] += len(new)
        self.requests[slot].output += token_ids

    def apply(
        self, drafts: dict[int, list[int]], before: torch.Tensor
    ) -> tuple[torch.Tensor, list[tuple[int, int]]]:
        """One step of the slots in ``drafts``, in that order; returns what the rows are."""
        of_rows = [(slot, k) for slot, tokens in drafts.items() for k in range(len(tokens) + 1)]
        # The token at a request's first row is one of its history: not to be read as a draft.
        tokens = [drafts[slot][k - 1] if k else VOCABULARY - 1 for slot, k in of_rows]

        def on_device(numbers: Sequence[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.tensor(numbers, dtype=dtype, device=self.device)

        rows = LogitsLayout(
            # vLLM 0.31 says it in int32, 0.32 in int64.
            on_device([slot for slot, _ in of_rows], (torch.int32, torch.int64)[len(of_rows) % 2]),
            on_device([k for _, k in of_rows]),
            on_device(tokens),
        )
        longest = max(int(self.lengths[slot]) + len(more) for slot, more in drafts.items())
        after = before[: len(of_rows)].clone().to(self.device)
        self.realizer.upload(self.history)
        numbers = np.array(list(drafts))
        self.realizer.apply(after, self.history, rows, numbers, longest)
        return after.cpu(), of_rows

    def step(
        self,
        drafts: dict[int, list[int]] | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        more_columns: int = 0,
    ) -> list[Row]:
        """One step of random logits; without ``drafts``, each request has two."""
        drafts = {slot: [4, 5] for slot in self.requests} if drafts is None else drafts
        rows = sum(len(tokens) + 1 for tokens in drafts.values())
        before = random_logits(rows, self.vocabulary + more_columns, seed, dtype)
        after, of_rows = self.apply(drafts, before)
        return [
            (self.requests[slot], before[row], after[row], drafts[slot][:k])
            for row, (slot, k) in enumerate(of_rows)
        ]

    def check(self, drafts: dict[int, list[int]], *how: Any, **more: Any) -> torch.Tensor:
        """One step, held to the reference row by row."""
        rows = self.step(drafts, *how, **more)
        for request, before, after, drafted in rows:
            assert_row(before, after, request.edits(drafted))
        return torch.stack([after for _, _, after, _ in rows])

    def assert_nothing_left(self) -> None:
        assert len(self.realizer) == 0


class Device(Driver):
    """Slots, in which requests stay until others take them; rows after drafts."""

    takes_back = is_core = True
    drafts = 2
    modules: ClassVar[tuple[str, ...]] = MODULES + DEVICE_MODULES

    def __init__(self, groups: Sequence[Sequence[Any]], patch: pytest.MonkeyPatch) -> None:
        self._engine = Engine(torch.device("cpu" if INTERPRETED else "cuda"), slots=MOST + 1)
        core: Any = self._engine.realizer
        for name in ("add", "remove", "upload", "apply"):
            setattr(core, name, self.faults.counted(getattr(core, name)))
        if self.choose.random() < 0.5:
            make_small(core._tables)

    def come(self, life: Life) -> None:
        request = Request((), life.prompt, life.outputs[0])
        program = self.program(life) if life.specs else None
        life.of_engine = self._engine.add(request, program)

    def put_back(self, life: Life) -> None:
        self._engine.finish(life.of_engine)
        if self.choose.random() < 0.5:
            self._engine.realizer.remove(life.of_engine)

    def go(self, life: Life) -> None:
        if life.running:
            self.put_back(life)

    def accept(self, life: Life, beam: int, token_ids: Sequence[int]) -> None:
        self._engine.accept(life.of_engine, token_ids)

    def take_back(self, life: Life, tokens: int) -> None:
        super().take_back(life, tokens)
        self._engine.lengths[life.of_engine] -= tokens

    def has(self, life: Life) -> bool:
        return life.of_engine in self._engine.realizer

    def step(self, lives: Sequence[Life], logits: torch.Tensor) -> torch.Tensor:
        after, _ = self._engine.apply({life.of_engine: life.drafts for life in lives}, logits)
        return after

    def end(self) -> None:
        for slot in range(MOST + 1):
            self._engine.realizer.remove(slot)
        self._engine.assert_nothing_left()
