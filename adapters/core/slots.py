"""Per-request numbers, kept densely: a step is a few numpy calls however many rows there are."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .automaton import Ints

ROW, FOLDED = 0, 1
"""Columns that all ``Slots`` have: the row of the logits, and how many output ids are folded in."""


@dataclass(slots=True, eq=False)
class Request:
    """A request that is in the batch, and what acts on it.

    Attributes:
        row: its row of the logits.
        prompt_ids: the prompt's token ids.
        output_ids: the output's token ids so far. The engine appends to this object.
        stop_token_id: a token that makes the engine end the request, if there is one.
        handles: its places in ``Slots``.
        ends: whether it has failed, and nothing but that token acts on it.
    """

    row: int
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    stop_token_id: int | None
    handles: list["Handle"] = field(default_factory=list["Handle"])
    ends: bool = False
    _prompt: Ints | None = None
    _output: Ints | None = None

    def prompt_array(self) -> Ints:
        """The prompt's token ids, not to be changed; made once, until ``drop_arrays``."""
        if self._prompt is None:
            self._prompt = _array(self.prompt_ids)
        return self._prompt

    def output_array(self) -> Ints:
        """The same of the output's, as they were when this was called first."""
        if self._output is None:
            self._output = _array(self.output_ids)
        return self._output

    def drop_arrays(self) -> None:
        """Give back their memory; they would not follow the output."""
        self._prompt = self._output = None


def _array(token_ids: Sequence[int]) -> Ints:
    if not isinstance(token_ids, list | tuple):
        return np.array(token_ids, np.int64)
    try:
        numbers = array("Q", token_ids)  # a list is read twice as fast as with a sign
    except OverflowError:
        numbers = array("q", token_ids)
    return np.frombuffer(numbers, np.int64)


Failures = dict[Request, Exception]
"""Requests that cannot go on, and why."""


@dataclass(slots=True, eq=False)
class Handle:
    """One of a request's places in ``Slots``.

    Attributes:
        request: whose it is.
        what: what is run there.
        home: the slots.
        slot: which of them, at the moment; -1 when it is free again.
    """

    request: Request
    what: Any
    home: "Slots"
    slot: int


class Slots:
    """Rows of numbers, one per handle, without gaps.

    Attributes:
        values: ``[columns, capacity]``, of which the first ``len(self)`` are in use.
        handles: by slot.
        outputs: the output ids, by slot.
        changed: set when slots come, go or get another row; reset by who has looked.
    """

    def __init__(self, columns: int) -> None:
        self.values: Ints = np.zeros((columns, 16), np.int64)
        self.handles: list[Handle] = []
        self.outputs: list[Sequence[int]] = []
        self.changed = False

    def __len__(self) -> int:
        return len(self.handles)

    def new(self, request: Request, what: Any) -> Handle:
        """Give a slot to something that acts on a request."""
        slot = len(self.handles)
        self.make_room(1)
        handle = Handle(request, what, self, slot)
        self.handles.append(handle)
        self.outputs.append(request.output_ids)
        self.values[:, slot] = 0
        self.values[ROW, slot] = request.row
        request.handles.append(handle)
        self.changed = True
        return handle

    def make_room(self, slots: int) -> None:
        """Make sure that so many new slots need no memory."""
        while len(self.handles) + slots > self.values.shape[1]:
            self.values = np.concatenate([self.values, np.zeros_like(self.values)], axis=1)

    def delete(self, slot: int) -> None:
        """Free a slot; the last one takes its place."""
        self.handles[slot].slot = -1
        last = self.handles.pop()
        outputs = self.outputs.pop()
        if last.slot >= 0:
            self.values[:, slot] = self.values[:, last.slot]
            self.handles[slot] = last
            self.outputs[slot] = outputs
            last.slot = slot
        self.changed = True

    def set_row(self, slot: int, row: int) -> None:
        """The request of a slot has moved."""
        self.values[ROW, slot] = row
        self.changed = True

    def grown(self) -> Ints:
        """How many output ids each slot has that are not folded in: ``[slots]``."""
        n = len(self.handles)
        return np.fromiter(map(len, self.outputs), np.int64, n) - self.values[FOLDED, :n]
