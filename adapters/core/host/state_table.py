"""Dense tables of numbers per request: a step is a few numpy calls however many rows there are."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ..automaton import UNKNOWN, Ints
from ..automaton.history import TokenHistory

ROW = 0
"""The first column of each ``StateTable``: the row of the logits."""


@dataclass(slots=True, eq=False, kw_only=True)
class Request(TokenHistory):
    """A request in the batch, and its entries in the tables.

    Attributes:
        row: the request's row of the logits.
        stop_token_id: a token that makes the engine end the request, if there is one.
        entries: the request's entries in each ``StateTable``.
        ends: whether the request has failed, so that only the stop token acts on it.
    """

    row: int
    stop_token_id: int | None = None
    entries: list["Entry"] = field(default_factory=list["Entry"])
    ends: bool = False


Failures = dict[Request, Exception]
"""Requests that cannot go on, with the reason."""


@dataclass(slots=True, eq=False)
class Entry:
    """An entry of a request in a ``StateTable``.

    Attributes:
        request: the request.
        what: the part of its program that runs in the slot.
        table: the table.
        slot: the current slot in the table; -1 after the entry is deleted.
    """

    request: Request
    what: Any
    table: "StateTable"
    slot: int


class Requests(NamedTuple):
    """The requests that have slots in a ``StateTable``.

    Attributes:
        every: the requests.
        output_ids: the output ids of each.
        of_slot: ``[slots]``, the index in ``every`` of each slot's request.
    """

    every: list[Request]
    output_ids: list[Sequence[int]]
    of_slot: Ints


class Outputs(NamedTuple):
    """The outputs of the requests that have slots in a ``StateTable``, at a step.

    Attributes:
        requests: the requests.
        lengths: of each request, the number of output ids.
        newest: of each request, the last output id, or -1 if there is none.
    """

    requests: Requests
    lengths: list[int]
    newest: list[int]

    def follow(self, before: "Outputs | None") -> bool:
        """Return whether each output is one token longer, and the last token was the same."""
        return (
            before is not None
            and before.requests is self.requests
            and [length - 1 for length in self.lengths] == before.lengths
            and before.newest == last_but(1, self.requests.output_ids, self.lengths)
        )

    def equal(self, before: "Outputs | None") -> bool:
        """Return whether nothing has changed, as far as the last tokens show."""
        return (
            before is not None
            and before.requests is self.requests
            and (before.lengths, before.newest) == (self.lengths, self.newest)
        )


def last_but(n: int, output_ids: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[int]:
    """Return the last output id but ``n`` of each output, or -1 if it is too short."""
    if min(lengths, default=0) > n:  # faster
        return [*map(itemgetter(-1 - n), output_ids)]
    pairs = zip(output_ids, lengths, strict=True)
    return [ids[length - n - 1] if length > n else UNKNOWN for ids, length in pairs]


class StateTable:
    """A table of numbers with one slot per entry, without gaps.

    Attributes:
        values: ``[columns, capacity]``, of which the first ``len(self)`` slots are in use.
        entries: the entries, by slot.
        changed: set when slots are added, freed or get another row; reset by the reader.
    """

    def __init__(self, columns: int) -> None:
        self.values: Ints = np.zeros((columns, 16), np.int64)
        self.entries: list[Entry] = []
        self.changed = False
        self._requests: Requests | None = None

    def __len__(self) -> int:
        return len(self.entries)

    def new(self, request: Request, what: Any) -> Entry:
        """Give a slot to a part of a program that acts on a request."""
        slot = len(self.entries)
        self.make_room(1)
        entry = Entry(request, what, self, slot)
        self._requests = None
        self.entries.append(entry)
        self.values[:, slot] = 0
        self.values[ROW, slot] = request.row
        request.entries.append(entry)
        self.changed = True
        return entry

    def make_room(self, slots: int) -> None:
        """Make room, so that so many new slots need no allocation."""
        while len(self.entries) + slots > self.values.shape[1]:
            self.values = np.concatenate([self.values, np.zeros_like(self.values)], axis=1)

    def delete(self, slot: int) -> None:
        """Free a slot; the entry of the last slot moves into it."""
        self._requests = None
        self.entries[slot].slot = -1
        last = self.entries.pop()
        if last.slot >= 0:
            self.values[:, slot] = self.values[:, last.slot]
            self.entries[slot] = last
            last.slot = slot
        self.changed = True

    def set_row(self, slot: int, row: int) -> None:
        """Set the row of a slot whose request has moved."""
        self.values[ROW, slot] = row
        self.changed = True

    def requests(self) -> Requests:
        """Return the requests that have slots: the same object until slots are added or freed."""
        if self._requests is None:
            of_slots = [entry.request for entry in self.entries]
            index = {request: i for i, request in enumerate(dict.fromkeys(of_slots))}
            of_slot = np.fromiter(map(index.__getitem__, of_slots), np.int64, len(of_slots))
            output_ids = [request.output_ids for request in index]
            self._requests = Requests([*index], output_ids, of_slot)
        return self._requests

    def outputs(self) -> Outputs:
        """Read the lengths of the outputs, and their last tokens."""
        requests = self.requests()
        lengths = [*map(len, requests.output_ids)]
        return Outputs(requests, lengths, last_but(0, requests.output_ids, lengths))
