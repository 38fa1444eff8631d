"""Requests of the batch, and what has been read of their outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from ..automaton import UNKNOWN, Lane
from ..automaton.automata import Automata
from ..automaton.history import TokenHistory
from ..parts import Acting, Chain
from .history_rules import HistoryRules


@dataclass(slots=True, eq=False)
class Request(TokenHistory):
    """A request in the batch.

    Attributes:
        row: the request's row of the logits.
        stop_token_id: a token that makes the engine end the request, if there is one.
        end_token: see ``Program``.
        lanes: the automata that act on it, in the order of the specs.
        since: see ``Program``.
        rules: its history rules, as they act.
        chain: its chain, if it has one.
        index: its index in ``Automata``, or -1.
        ends: whether the request has failed, so that only the stop token acts on it.
    """

    row: int
    stop_token_id: int | None = None
    end_token: int | None = None
    lanes: Sequence[Lane] = ()
    since: Sequence[int] = (0,)
    rules: Sequence[Acting] = ()
    chain: Chain | None = None
    index: int = -1
    ends: bool = False

    @property
    def reads_output(self) -> bool:
        """Whether anything depends on the output."""
        return bool(self.rules) or any(each.states > 1 for each, *_ in self.lanes)


_last = itemgetter(-1)
_last_but_one = itemgetter(-2)


class Outputs:
    """What has been read of the outputs of requests that depend on them.

    Attributes:
        requests: these requests.
        lengths: the number of tokens that have been read of each output.
        last: the last of these tokens; -1 if it was not known, or there was none.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.lengths: list[int] = []
        self.last: list[int] = []
        self._output_ids: list[Sequence[int]] = []
        self._indices: tuple[int, Any] = -1, None

    def add(self, request: Request) -> None:
        """Follow the output of a request that has been placed."""
        output = request.output_array()
        self.requests.append(request)
        self.lengths.append(len(output))
        self.last.append(int(output[-1]) if len(output) else UNKNOWN)
        self._output_ids.append(request.output_ids)

    def remove(self, request: Request) -> None:
        """Follow an output no longer, if it is followed."""
        if request in self.requests:
            i = self.requests.index(request)
            for column in (self.requests, self.lengths, self.last, self._output_ids):
                del column[i]

    def forget(self, request: Request | None) -> None:
        """Let the next ``read`` read the whole output of a request, if it is followed."""
        if request in self.requests:
            self.last[self.requests.index(request)] = UNKNOWN - 1

    def read(
        self, automata: Automata, rules: Mapping[Request, HistoryRules]
    ) -> list[tuple[Request, Exception]]:
        """Read what has been appended since the last call.

        The automata get a new token as their newest; after any other change, their states are those
        after the whole output. Rules get the tokens.

        Returns:
            The requests that cannot go on, with the reason.
        """
        outputs = self._output_ids
        lengths = [*map(len, outputs)]
        failed: list[tuple[Request, Exception]] = []
        if (
            self.lengths == [length - 1 for length in lengths]
            and min(lengths, default=2) > 1
            and self.last == [*map(_last_but_one, outputs)]
        ):  # most steps
            grown, last = range(len(outputs)), [*map(_last, outputs)]
        else:
            grown, last = self._read_apart(automata, rules, lengths, failed)
        self.lengths, self.last = lengths, last
        if grown:
            if len(grown) == len(outputs):
                indices, newest = self._find_indices(automata), last
            else:
                indices = np.array([self.requests[i].index for i in grown])
                newest = [last[i] for i in grown]
            automata.newest[indices] = newest
        if rules:
            for i in grown:
                request = self.requests[i]
                if request in rules:
                    try:
                        own = rules[request]
                        own.append(last[i])
                        if own.closing:
                            own.close(automata, request.index)
                    except Exception as error:
                        failed.append((request, error))
        return failed

    def _find_indices(self, automata: Automata) -> Any:
        """Return the index of each request."""
        if self._indices[0] != automata.generation or len(self._indices[1]) != len(self.requests):
            indices = np.array([request.index for request in self.requests])
            self._indices = automata.generation, indices
        return self._indices[1]

    def _read_apart(
        self,
        automata: Automata,
        rules: Mapping[Request, HistoryRules],
        lengths: list[int],
        failed: list[tuple[Request, Exception]],
    ) -> tuple[Sequence[int], list[int]]:
        """Read outputs one by one; return which have one token more, and the last tokens."""
        grown, last = list[int](), list[int]()
        for i, request in enumerate(self.requests):
            ids, length, known = request.output_ids, lengths[i], self.lengths[i]
            last.append(int(ids[-1]) if length else UNKNOWN)
            before = ids[known - 1] if 0 < known <= length else UNKNOWN
            if known > length or self.last[i] not in (before, UNKNOWN) or length > known + 1:
                try:
                    self._fold_again(request, automata, rules)
                except Exception as error:
                    failed.append((request, error))
            elif length > known:
                grown.append(i)
        return grown, last

    def _fold_again(
        self, request: Request, automata: Automata, rules: Mapping[Request, HistoryRules]
    ) -> None:
        """Read a whole output: tokens were taken back, or several came at once."""
        try:
            own = rules.get(request)
            if own is not None:
                own.read(request.output_array())
            automata.read_again(request.index, request.since, request, own and own.watch)
        finally:
            request.drop_arrays()
