"""The automata of all requests: their states, and the loop that takes a step's tokens."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from .automaton import Automaton, Lane, UnknownTokenError
from .history import TokenHistory
from .pool import ROOM_KEPT, AutomatonPool
from .steps import BASE, NO_TOKENS, STATE, TAKEN, begin, begin_output, read_prompt, step

Watch = Callable[["Automata", int, int], bool]
"""What is called before a token of an earlier output is taken: with the request's index, and the
number of tokens then, the prompt's too. It may set states, and returns whether it is to be called
before the next token, too. Otherwise it is called when a phase has ended."""


class Automata:
    """The automata that run, a row of states for each request, without gaps.

    All state is a function of (automata, prompt, output). So a request that is removed, and later
    added again with its output, continues where it was. After a call that fails, nothing is left
    to rely on: all state has to be made again. An ``UnknownTokenError`` changes nothing.

    Attributes:
        tables: the pool of the automata.
        requests: of each index below, the request.
        running: of each index, its automata, in the order of the specs.
        count: ``[capacity]``, the number of these.
        phases: ``[capacity]``, the number of phases.
        length: ``[capacity]``, how many tokens have been taken, with the prompt's.
        newest: ``[capacity]``, the token to take; ``UNKNOWN``, or ``TAKEN`` if there is none.
        failed: ``[capacity]``, 1 if an unknown token has decided a state.
        lanes: ``[5, capacity, width]``, see ``steps.BASE``.
        since: ``[capacity, most phases]``, see ``steps.step``.
        generation: the number of times that indices or states have come, gone or moved.
    """

    def __init__(self) -> None:
        self.tables = AutomatonPool()
        self.requests: list[Any] = []
        self.running: list[Sequence[Lane]] = []
        self.lanes = np.zeros((5, 16, 4), np.int32)
        self.since = np.zeros((16, 1), np.int32)
        self._numbers = np.zeros((5, 16), np.int32)  # few arrays are passed faster to a loop
        self.count, self.phases, self.length, self.newest, self.failed = self._numbers
        self.generation = 0
        self._left = 0

    @property
    def states(self) -> Any:
        """The state of each automaton in the tables, ``[capacity, width]``."""
        return self.lanes[STATE]

    def __len__(self) -> int:
        return len(self.requests)

    def add(
        self,
        request: Any,
        lanes: Sequence[Lane],
        since: Sequence[int],
        history: TokenHistory,
        watch: Watch | None = None,
    ) -> int:
        """Let automata act on a request, which has a history; return its index.

        Args:
            request: the request.
            lanes: the automata.
            since: ``[phases]``, 0 for the phases that a request begins in, -1 for others.
            history: the tokens so far.
            watch: see ``Watch``.

        Raises:
            UnknownTokenError: if a state depends on a token that is unknown and not forced.
        """
        self._make_room(len(lanes), len(since))
        if None in [self.tables.base_of(lane.automaton) for lane in lanes]:  # there is no room
            self._rebuild_tables(lanes)
        i = len(self.requests)
        self.count[i], self.phases[i] = len(lanes), len(since)
        if lanes:
            _, phases, ends = zip(*lanes, strict=True)
            self.lanes[:3, i, : len(lanes)] = _bases_of(lanes, self.tables), phases, ends
        self.newest[i], self.failed[i] = TAKEN, False
        self._read(i, lanes, since, history, watch)
        self.running.append(lanes)
        self.requests.append(request)
        self.generation += 1
        return i

    def read_again(
        self, i: int, since: Sequence[int], history: TokenHistory, watch: Watch | None = None
    ) -> None:
        """Read another history of the request at an index; raises as ``add`` does."""
        self._read(i, self.running[i], since, history, watch)

    def _read(
        self,
        i: int,
        lanes: Sequence[Lane],
        since: Sequence[int],
        history: TokenHistory,
        watch: Watch | None,
    ) -> None:
        self.since[i, : len(since)] = since
        tables, output, is_known = self.tables.tables, history.output_array(), True
        of_request = tables, self.lanes, self.since
        begin(*of_request, i, len(lanes))
        for k, lane in enumerate(lanes if len(history.prompt_ids) else ()):
            if lane.automaton.reads_prompt and self.lanes[STATE, i, k]:
                is_known &= read_prompt(tables, self.lanes, i, k, history.prompt_array())
        self.length[i] = len(history.prompt_ids)
        begin_output(*of_request, i, len(lanes), len(since), self.length[i])
        while len(output) and is_known:
            acts = watch is not None and watch(self, i, int(self.length[i]) + 1)
            part, taken = output[:1] if acts else output, int(self.length[i])
            pauses = watch is not None
            is_known = not step(*of_request, self._numbers, i, i + 1, part, pauses)
            output = output[int(self.length[i]) - taken :]
        if not is_known:
            self.failed[i] = False
            raise UnknownTokenError

    def remove(self, i: int) -> Any:
        """Free an index; the request of the last index moves there, and is returned."""
        self.generation += 1
        self._left += sum(each.cells + len(each.keys) for each, *_ in self.running[i])
        last = len(self.requests) - 1
        for column in (self.lanes, self._numbers):  # a request may fail within a step
            column[:, i] = column[:, last]
        self.since[i] = self.since[last]
        moved, lanes = self.requests.pop(), self.running.pop()
        if i < last:
            self.requests[i], self.running[i] = moved, lanes
        return moved

    def clear(self) -> None:
        """Let go of all requests, whose state will be made again. This cannot fail."""
        self.requests.clear()
        self.running.clear()
        self.generation += 1

    def give_back(self) -> None:
        """Free memory if the tables are mostly unused."""
        if self._left > ROOM_KEPT:  # those removed since the last check may be most of the tables
            self._left = 0
            if self.tables.is_mostly_unused(each for each, *_ in chain(*self.running)):
                self._rebuild_tables()

    def _make_room(self, width: int, phases: int) -> None:
        """Make room for one more request with so many automata and phases."""
        (_, capacity, lanes), most, n = self.lanes.shape, self.since.shape[1], len(self.requests)
        if n < capacity and width <= lanes and phases <= most:
            return
        more = 0, capacity if n == capacity else 0
        self.lanes = np.pad(self.lanes, ((0, 0), more, (0, max(width - lanes, 0))))
        self.since = np.pad(self.since, (more, (0, max(phases - most, 0))))
        self._numbers = np.pad(self._numbers, ((0, 0), more))
        self.count, self.phases, self.length, self.newest, self.failed = self._numbers

    def _rebuild_tables(self, more: Sequence[Lane] = ()) -> None:
        """Keep the automata in use, and ``more``."""
        self.tables.rebuild(each for each, *_ in chain(*self.running, more))
        for i, lanes in enumerate(self.running):
            bases, states = self.lanes[BASE, i], self.lanes[STATE, i]
            for k, base in enumerate(_bases_of(lanes, self.tables)):
                states[k] += base - bases[k] if states[k] else 0
                bases[k] = base
        self.generation += 1

    def advance(self) -> bool:
        """Take the tokens in ``newest``; return whether any request has ``failed``."""
        tables, requests = self.tables.tables, len(self.requests)
        return step(tables, self.lanes, self.since, self._numbers, 0, requests, NO_TOKENS, False)


def _bases_of(lanes: Sequence[Lane], tables: AutomatonPool) -> list[Any]:
    """Find where automata that are in the tables start there."""
    return [tables.base_of(each) for each, *_ in lanes]


def place(
    lanes: Sequence[Lane], since: Sequence[int], history: TokenHistory
) -> tuple[list[tuple[int, int]], list[int]]:
    """Compute where a history leads the automata of a request.

    Returns:
        The state of each automaton, -1 for one whose phase does not act, with its timer; and
        ``since`` by then.

    Raises:
        UnknownTokenError: as ``Automata.add`` does.
    """
    automata = Automata()
    automata.add(None, lanes, since, history)
    return _read_off(automata)


def along(
    lanes: Sequence[Lane], since: Sequence[int], prompt: Sequence[int], output: Sequence[int]
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield where a history leads, before each token of its output; see ``place``."""
    automata = Automata()
    automata.add(None, lanes, since, TokenHistory(prompt, ()))
    for token in output:
        places, now = _read_off(automata)
        yield [state for state, _ in places], now
        automata.newest[0] = token
        automata.advance()


def states_along(
    automaton: Automaton, prompt_ids: Sequence[int], output_ids: Sequence[int]
) -> Iterator[int]:
    """Yield the state of an automaton before each output token, with all due time-outs taken."""
    for (state,), _ in along((Lane(automaton),), (0,), prompt_ids, output_ids):
        yield state


def _read_off(automata: Automata) -> tuple[list[tuple[int, int]], list[int]]:
    """Read the states and timers of the only request, and its ``since``."""
    bases, *_, states, timers = automata.lanes[:, 0, : automata.count[0]]
    own = np.where(states > 0, states - bases, -1).tolist()
    return [*zip(own, timers.tolist(), strict=True)], automata.since[
        0, : automata.phases[0]
    ].tolist()
