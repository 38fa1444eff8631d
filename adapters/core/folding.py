"""Folding: where a whole history leads some automata, at once.

A prompt may have a hundred thousand tokens, each of which an automaton looks at, and a request
that comes again has its output besides. What takes no time there is not done: where the last few
tokens lead to the same state from wherever they start, no other token matters. What has to be done
is done by ``dict``: a place in an automaton remembers where each token has led from it, and
several tokens at once where only a few different ones come.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate
from operator import getitem
from typing import Any

import numpy as np
import numpy.typing as npt

from .automaton import (
    CARRY,
    CLEAR,
    KEEP,
    NO_TIMER,
    UNKNOWN,
    Automaton,
    Edit,
    Ints,
    UnknownTokenError,
    distinct,
    entered,
)
from .slots import Request

_NO_EDGE = -2
"""Stands for all tokens that have no edge anywhere."""
_SHORT = 64
"""As many tokens are followed one by one, without preparation."""
_SUFFIX = 32
"""Tokens at the end of a history of which it is tried whether they alone decide."""
_MOST_PLACES = 256
"""States of an automaton for which that is tried."""
_BLOCKS = 256
"""Different blocks of tokens there may be, and so different tokens times as many as are in one."""


def fold_together(automata: Sequence[Automaton], request: Request) -> list[tuple[int, int]]:
    """The ``(state, timer)`` of each automaton of a request, as ``Automaton.fold`` says it.

    Together they tell more: a token that is not known may have been forced by any of them.

    Args:
        automata: the first spec's first, because its token is chosen where several are forced.
        request: whose history it is.

    Raises:
        UnknownTokenError: if a token decides where to go, is not known and was not forced.
    """
    walks = [_Walk(automaton) for automaton in automata]
    if len(request.prompt_ids):
        readers = [walk for walk in walks if walk.automaton.reads_prompt]
        readers = [walk for walk in readers if not walk.take_end(request.prompt_ids)]
        if readers:
            prompt = _Tokens(request.prompt_array())
            for walk in readers:
                walk.take(prompt)
    tokens, done = request.output_array(), 0
    unknown = np.flatnonzero(tokens == UNKNOWN).tolist()
    if unknown:
        tokens = tokens.copy()
    for position in [*unknown, len(tokens)]:
        run = _Tokens(tokens[done:position])
        for walk in walks:
            walk.take(run, chosen=True)
            walk.settle()
        if position < len(tokens):
            forced = (walk.forced for walk in walks if walk.forced is not None)
            tokens[position] = next(forced, UNKNOWN)
        done = position
    return [(walk.state, walk.timer) for walk in walks]


class _Place(dict[int, "_Place"]):
    """A place in an automaton: where each code leads from it that has come there so far.

    Attributes:
        lead: finds out where a code leads that has not come there yet.
        state: the place's.
        timers: after each code, what it was set to, if it was, and how far it ran since then.
    """

    __slots__ = ("lead", "state", "timers")

    def __init__(self, lead: Callable[["_Place", int], "_Place"], state: int) -> None:
        self.lead, self.state = lead, state
        self.timers: dict[int, tuple[int | None, int]] = {}

    def __missing__(self, code: int) -> "_Place":
        place = self[code] = self.lead(self, code)
        return place


class _Tokens:
    """Tokens of a history, numbered anew for each alphabet that automata look for.

    Attributes:
        ids: the tokens.
    """

    def __init__(self, ids: Ints) -> None:
        self.ids = ids
        self._coded: dict[bytes, tuple[npt.NDArray[Any], list[int]]] = {}

    def coded(self, automaton: Automaton) -> tuple[npt.NDArray[Any], list[int]]:
        """Numbers from 0 on, those without an edge anywhere alike, and what they mean."""
        edge_tokens = distinct(automaton.keys & 0xFFFFFFFF)
        alphabet = edge_tokens.tobytes()
        if alphabet not in self._coded:
            self._coded[alphabet] = _coded(self.ids, edge_tokens)
        return self._coded[alphabet]


def _coded(tokens: Ints, edge_tokens: Ints) -> tuple[npt.NDArray[Any], list[int]]:
    count = len(edge_tokens)
    highest = int(edge_tokens[-1]) if count else -1
    small = np.uint8 if count < 255 else np.int64
    if tokens.min() < UNKNOWN:
        tokens = np.where(tokens < UNKNOWN, highest + 1, tokens)
    if highest < 1 << 20:
        number = np.zeros(highest + 3, small)  # the last one's, -1, is that of UNKNOWN
        number[edge_tokens], number[-1] = np.arange(1, count + 1), count + 1
        codes = number[np.minimum(tokens, highest + 1)]
    else:
        at = np.minimum(edge_tokens.searchsorted(tokens), count - 1)
        codes = np.where(edge_tokens[at] == tokens, at + 1, 0).astype(small)
        codes[tokens == UNKNOWN] = count + 1
    meaning = np.array([_NO_EDGE, *edge_tokens.tolist(), UNKNOWN])
    present = np.flatnonzero(np.bincount(codes, minlength=count + 2))
    number = np.zeros(count + 2, small)
    number[present] = np.arange(len(present))
    return number[codes], meaning[present].tolist()


class _Walk:
    """An automaton on its way through a history.

    Attributes:
        automaton: which one.
        state: where it is.
        timer: what is left of it.
    """

    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        # Plain numbers are read from these views several times as fast as from arrays.
        self._otherwise, self._consumes = automaton.otherwise.data, automaton.consumes.data
        self._on_entry, self._timeout = automaton.timer.data, automaton.timeout.data
        self._keys, self._targets = automaton.keys.data, automaton.targets.data
        self.state, self.timer = 0, entered(self._on_entry[0], NO_TIMER)

    @property
    def forced(self) -> int | None:
        """The token that is chosen here, if one is."""
        automaton, state = self.automaton, self.state
        return int(automaton.argument[state]) if automaton.edit[state] == Edit.FORCE else None

    def settle(self) -> None:
        """Take the time-outs that are due."""
        while self.timer == 0 and self._timeout[self.state] >= 0:
            self.state = self._timeout[self.state]
            self.timer = entered(self._on_entry[self.state], 0)

    def take_end(self, prompt_ids: Sequence[int]) -> bool:
        """Take a whole prompt, if its last tokens alone decide; ``False`` if they do not."""
        automaton = self.automaton
        if len(prompt_ids) <= _SHORT or max(automaton.states, len(self._keys)) > _MOST_PLACES:
            return False
        tokens = [int(token) for token in prompt_ids[-_SUFFIX:]]
        if UNKNOWN in tokens:
            return False
        states, timer = self._reachable(), None
        for token in tokens:
            states = {self._next(state, token) for state in states}
            if len(states) == 1:
                (state,) = states
                if (on_entry := self._on_entry[state]) not in (CARRY, KEEP) or timer is not None:
                    timer = entered(on_entry, timer or 0)
        if timer is None:
            return False
        self.state, self.timer = *states, timer
        return True

    def _reachable(self) -> set[int]:
        """All states that tokens may lead to from here, whatever they are."""
        following: dict[int, list[int]] = {
            state: [target] for state, target in enumerate(self._otherwise)
        }
        for key, target in zip(self._keys, self._targets, strict=True):
            following[key >> 32].append(target)
        seen, new = {self.state}, [self.state]
        while new:
            more = [state for state in following[new.pop()] if state not in seen]
            seen.update(more)
            new += more
        return seen

    def take(self, tokens: "_Tokens", *, chosen: bool = False) -> None:
        """Take tokens, those of a prompt or, if ``chosen``, of an output."""
        if len(tokens.ids) <= _SHORT:
            for token in tokens.ids.tolist():
                self._take_one(token, chosen=chosen)
            return
        codes, meaning = tokens.coded(self.automaton)
        has_timeouts = chosen and bool((self.automaton.timeout >= 0).any())
        if np.count_nonzero(codes) <= len(codes) >> 7 and meaning[0] == _NO_EDGE:
            self._take_runs(codes, meaning, chosen=has_timeouts)
        elif has_timeouts:
            self._take_timed(codes, meaning)
        else:
            self._take_blocks(codes, _Blocks(self, meaning))

    def _take_one(self, token: int, *, chosen: bool) -> None:
        if chosen:
            self.settle()
        self.state = self._next(self.state, token)
        self.timer = entered(self._on_entry[self.state], self.timer)

    def _next(self, state: int, token: int) -> int:
        """The state after a token."""
        if token == UNKNOWN and self.automaton.looks[state]:
            raise UnknownTokenError
        keys = self._keys
        while True:
            key = state << 32 | token if token >= 0 else _NO_EDGE
            index = bisect_left(keys, key)
            if index < len(keys) and keys[index] == key:
                return self._targets[index]
            consumed, state = self._consumes[state], self._otherwise[state]
            if consumed:
                return state

    def _take_runs(self, codes: npt.NDArray[Any], meaning: list[int], *, chosen: bool) -> None:
        """Take few tokens that have edges, and in between whole runs of those that have none."""
        done = 0
        for position in [*np.flatnonzero(codes).tolist(), len(codes)]:
            self._run(position - done, chosen=chosen)
            if position < len(codes):
                self._take_one(meaning[codes[position]], chosen=chosen)
            done = position + 1

    def _run(self, length: int, *, chosen: bool) -> None:
        """Take ``length`` tokens that have no edge anywhere."""
        while length:
            if chosen:
                self.settle()
            following = self._next(self.state, _NO_EDGE)
            on_entry, steps = self._on_entry[following], 1
            if following == self.state and on_entry in (CLEAR, KEEP):
                steps = length
            elif following == self.state and on_entry == CARRY:
                steps = min(length, max(self.timer, 1)) if chosen else length
            self.state, length = following, length - steps
            self.timer = entered(on_entry, self.timer, steps)

    def _take_blocks(self, codes: npt.NDArray[Any], blocks: "_Blocks") -> None:
        """Take tokens among which no time-out is due."""
        whole = len(codes) - len(codes) % blocks.length
        numbers = blocks.numbered(codes[:whole])
        start = blocks.place(self.state)
        self.state = reduce(getitem, numbers, start).state
        if self._on_entry[self.state] == CLEAR:
            self.timer = NO_TIMER
        elif numbers:
            places = [*accumulate(numbers, getitem, initial=start)]
            ran = 0
            for place, number in zip(places[-2::-1], numbers[::-1], strict=True):
                set_to, since = place.timers[number]
                ran += since
                if set_to is not None:
                    self.timer = set_to
                    break
            self.timer = entered(CARRY, self.timer, ran)
        for code in codes[whole:].tolist():
            self._take_one(blocks.meaning[code], chosen=False)

    def _take_timed(self, codes: npt.NDArray[Any], meaning: list[int]) -> None:
        """Take tokens of an output, with the time-outs that are due among them."""
        set_to = self.automaton.timer[self.automaton.timer >= 0]
        # A timer that is set within a block does not run out there.
        blocks = _Blocks(self, meaning, longest=max(int(set_to.min()) if len(set_to) else 1, 1))
        whole = len(codes) - len(codes) % blocks.length
        late: dict[tuple[int, int, int], tuple[_Place, int]] = {}
        place, timer = blocks.place(self.state), self.timer
        for number in blocks.numbered(codes[:whole]):
            if timer >= blocks.length:
                following = place[number]
                to, since = place.timers[number]
                place, timer = following, (timer if to is None else to) - since
                continue
            key = place.state, timer, number
            if key not in late:
                self.state, self.timer = place.state, timer
                for token in blocks.tokens(number):
                    self._take_one(token, chosen=True)
                late[key] = blocks.place(self.state), self.timer
            place, timer = late[key]
        self.state, self.timer = place.state, timer
        for code in codes[whole:].tolist():
            self._take_one(meaning[code], chosen=True)


class _Blocks:
    """Codes of several tokens each.

    Attributes:
        meaning: the tokens, by their numbers.
        length: tokens in a block.
    """

    def __init__(self, walk: _Walk, meaning: list[int], longest: int = 8) -> None:
        self.meaning, self.length = meaning, 1
        while len(meaning) ** (self.length + 1) <= _BLOCKS and self.length < min(longest, 8):
            self.length += 1
        self._walk = walk
        self._places: dict[int, _Place] = {}

    def numbered(self, codes: npt.NDArray[Any]) -> Sequence[int]:
        """The blocks' codes."""
        if len(self.meaning) > _BLOCKS:
            return codes.tolist()
        of_block = codes.astype(np.uint8).reshape(-1, self.length)
        numbers = of_block[:, 0].copy()
        for i in range(1, self.length):
            numbers *= len(self.meaning) & 0xFF
            numbers += of_block[:, i]
        return numbers.tobytes()

    def place(self, state: int) -> _Place:
        if state not in self._places:
            self._places[state] = _Place(self._lead, state)
        return self._places[state]

    def tokens(self, number: int) -> list[int]:
        """The tokens of a block."""
        count, at = len(self.meaning), reversed(range(self.length))
        return [self.meaning[number // count**i % count] for i in at]

    def _lead(self, place: _Place, number: int) -> _Place:
        walk, state, set_to, ran = self._walk, place.state, None, 0
        for token in self.tokens(number):
            state = walk._next(state, token)
            on_entry = walk._on_entry[state]
            if on_entry == CARRY:
                ran += 1
            elif on_entry != KEEP:
                set_to, ran = entered(on_entry, 0), 0
        place.timers[number] = set_to, ran
        return self.place(state)
