"""Folding: the computation of automaton states from a whole history at once.

An automaton may have to read a prompt of a hundred thousand tokens, plus the output of a request
that comes again. If the last few tokens lead from every start state to the same state, no other
token matters. Otherwise numpy advances through pieces of a long prompt side by side, with all
automata at once. A ``dict`` does the rest: each place in an automaton caches its successor for
each token, or for blocks of several tokens if only a few different tokens occur.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property, reduce
from itertools import accumulate
from operator import getitem
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import TOKEN, Ints, distinct, looked_up
from .automaton import (
    CARRY,
    CLEAR,
    KEEP,
    NO_TIMER,
    UNKNOWN,
    Automaton,
    Edit,
    UnknownTokenError,
    entered,
)
from .history import TokenHistory

_NO_EDGE = -2
"""A stand-in for all tokens that have no edge in any state."""
_SHORT = 64
"""The most tokens that are followed one by one, without preparation."""
_SUFFIX = 32
"""The number of tokens at the end of a prompt that may alone decide the state."""
_MOST_MOVES = 256
"""The most moves, one per token and possible state, in the attempt with ``_SUFFIX`` tokens."""
_MOST_STATES = 256
"""The most reachable states of an automaton that takes tokens in pieces."""
_MOST_EDGES = 1 << 12
"""The most edges of these states."""
_MOST_HOMES = 4
"""The most states that tokens without an edge lead to, in such an automaton."""
_MOST_MEETINGS = 1 << 19
"""The most pairs of a token and a state, over all such automata together."""
_PIECE = 256
"""The number of tokens in a piece: a multiple of 8."""
_EARLY = 64
"""The number of tokens before a piece that determine its possible first states."""
_PIECES = 32
"""The least number of pieces for which tokens are taken in pieces."""
_MOST_RUNS = 1 << 11
"""The most runs of tokens without an edge that are taken one by one."""
_MOST_FOLLOWED = 1 << 12
"""The most blocks that are followed token by token."""
_LATE = 1 << 41
"""A timer that does not reach 0 in a block, and is none that a state sets."""
_BLOCKS = 256
"""The most different blocks: the number of different tokens to the power of the block length."""


def fold_together(automata: Sequence[Automaton], history: TokenHistory) -> list[tuple[int, int]]:
    """Compute the ``(state, timer)`` of each automaton of a request, as ``Automaton.fold`` does.

    The automata fold together because any of them may have forced a token that is not known. They
    are in the order of the specs: if several automata force a token, the first wins.

    Raises:
        UnknownTokenError: if the next state depends on a token that is unknown and not forced.
    """
    walks = [_Walk(automaton) for automaton in automata]
    if len(history.prompt_ids):
        readers = [walk for walk in walks if walk.automaton.reads_prompt]
        readers = [walk for walk in readers if not walk.take_end(history.prompt_ids)]
        if readers:
            _take(readers, _Tokens(history.prompt_array()))
    tokens, done = history.output_array(), 0
    unknown = np.flatnonzero(tokens == UNKNOWN).tolist()
    if unknown:
        tokens = tokens.copy()
    for position in [*unknown, len(tokens)]:
        _take(walks, _Tokens(tokens[done:position]), chosen=True)
        for walk in walks:
            walk.settle()
        if position < len(tokens):
            at = ((walk.automaton, walk.state) for walk in walks)
            forced = (each.operand[state] for each, state in at if each.edit[state] == Edit.FORCE)
            tokens[position] = next(forced, UNKNOWN)
        done = position
    return [(walk.state, walk.timer) for walk in walks]


def states_along(automaton: Automaton, history: TokenHistory) -> Iterator[int]:
    """Yield the state before each output token; see ``Automaton.states_along``."""
    walk = _Walk(automaton)
    if automaton.reads_prompt and len(history.prompt_ids):
        _take([walk], _Tokens(history.prompt_array()))
    for token in history.output_ids:
        walk.settle()
        yield walk.state
        walk.take(_Tokens(np.array([token])), chosen=True)


def _take(walks: "Sequence[_Walk]", tokens: "_Tokens", *, chosen: bool = False) -> None:
    """Take tokens of a prompt or, if ``chosen``, of an output."""
    if not chosen and len(tokens.ids) >= _PIECE * _PIECES:
        simple = [walk for walk in walks if walk.is_simple]
        if simple and _take_pieces(simple, tokens):
            walks = [walk for walk in walks if walk not in simple]
    for walk in walks:
        walk.take(tokens, chosen=chosen)


def _take_pieces(walks: "Sequence[_Walk]", tokens: "_Tokens") -> bool:
    """Take tokens of a prompt, all pieces side by side.

    Returns ``False`` if that does not pay.

    Each piece starts ``_EARLY`` tokens early, once from each of the automaton's homes. The homes
    stand for the effect of earlier tokens, so usually one of these ways has reached the prompt's
    state by the piece's first token. If none has, the piece is taken by itself.
    """
    codes, meaning = tokens.coded(*(walk.automaton for walk in walks))
    sizes = [len(walk.reached) for walk in walks]
    if (
        _is_sparse(codes, meaning)
        or UNKNOWN in meaning
        or sum(sizes) * len(meaning) > _MOST_MEETINGS
    ):
        return False
    *bases, width = accumulate((2 * size for size in sizes), initial=0)
    after = np.empty((len(meaning), width), np.int64)
    for walk, size, base in zip(walks, sizes, bases, strict=True):
        np.add(walk.table(meaning), base, out=after[:, base : base + 2 * size])
    rest = len(codes) % _PIECE
    for walk in walks:
        walk.take(_Tokens(tokens.ids[:rest]))
    pieces = codes[rest:].reshape(-1, _PIECE)
    steps = np.multiply(pieces.T, width, dtype=np.int64, order="C")
    size, base, home, start = np.array(
        [
            (size, base, walk.reached.index(home), walk.reached.index(walk.state))
            for walk, size, base in zip(walks, sizes, bases, strict=True)
            for home in walk.homes
        ]
    ).T[:, :, np.newaxis]
    states = np.repeat(base + home, len(pieces), axis=1)
    _follow(after, states, np.roll(steps[-_EARLY:], 1, axis=1))
    begun = (states - base) % size
    begun[:, :1] = start
    states = base + begun
    _follow(after, states, steps)
    ended, way = states - base, 0
    for walk in walks:
        ways = slice(way, way + len(walk.homes))
        walk.take_pieces(tokens, rest, begun[ways].T.tolist(), ended[ways].T.tolist())
        way = ways.stop
    return True


def _follow(after: Ints, states: Ints, steps: Ints) -> None:
    """Move states on, in place.

    Args:
        after: ``[codes, states]``, the state that each code leads to.
        states: ``[ways, pieces]``.
        steps: ``[tokens, pieces]``, codes times the number of states.
    """
    index = np.empty_like(states)
    for step in steps:
        np.add(states, step, out=index)
        after.take(index, out=states, mode="clip")  # without `mode`, numpy copies into `out`


class _Columns(dict[int, list[int]]):
    """The states that eight bytes of codes lead to, from each state; computed on demand.

    Attributes:
        blocks: ``[pieces, blocks]``, in codes of this automaton alone: it does not distinguish
            tokens for which only other automata have edges.
    """

    def __init__(self, walk: "_Walk", tokens: "_Tokens", first: int) -> None:
        codes, meaning = tokens.coded(walk.automaton)
        self._table, self._kind = walk.table(meaning), codes.dtype
        self.blocks = codes[first:].reshape(-1, _PIECE).view(np.int64)

    def __missing__(self, block: int) -> list[int]:
        states = np.arange(self._table.shape[1])
        for code in np.array([block]).view(self._kind).tolist():
            states = self._table[code][states]
        column = self[block] = states.tolist()
        return column


def _is_sparse(codes: npt.NDArray[Any], meaning: list[int]) -> bool:
    """Return whether hardly any token has an edge."""
    return meaning[0] == _NO_EDGE and int(np.count_nonzero(codes)) <= len(codes) >> 7


class _Place(dict[int, "_Place"]):
    """A state of an automaton, with a cache of the successor for each block seen there so far.

    ``timers`` holds for each block the value that the timer was set to, if any, and the tokens
    since.
    """

    __slots__ = ("blocks", "state", "timers")

    def __init__(self, blocks: "_Blocks", state: int) -> None:
        self.blocks, self.state = blocks, state
        self.timers: dict[int, tuple[int | None, int]] = {}

    def __missing__(self, number: int) -> "_Place":
        walk, state, set_to, ran = self.blocks.walk, self.state, None, 0
        for token in self.blocks.tokens(number):
            state = walk._next(state, token)
            on_entry = walk._on_entry[state]
            if on_entry == CARRY:
                ran += 1
            elif on_entry != KEEP:
                set_to, ran = entered(on_entry, 0), 0
        self.timers[number] = set_to, ran
        place = self[number] = self.blocks[state]
        return place


class _Tokens:
    """Tokens of a history, encoded anew for each alphabet of edge tokens."""

    def __init__(self, ids: Ints) -> None:
        self.ids = ids
        self._coded: dict[bytes, tuple[npt.NDArray[Any], list[int]]] = {}

    def coded(self, *automata: Automaton) -> tuple[npt.NDArray[Any], list[int]]:
        """Return each token's code (one for all without an edge), and the token of each code."""
        edge_tokens = distinct(np.concatenate([each.keys for each in automata]) & TOKEN)
        alphabet = edge_tokens.tobytes()
        if alphabet not in self._coded:
            self._coded[alphabet] = _coded(self.ids, edge_tokens)
        return self._coded[alphabet]


def _coded(tokens: Ints, edge_tokens: Ints) -> tuple[npt.NDArray[Any], list[int]]:
    count = len(edge_tokens)
    highest = int(edge_tokens[-1]) if count else -1
    small = np.uint8 if count < 255 else np.uint16 if count < 65_535 else np.int64
    if tokens.min() < UNKNOWN:
        tokens = np.where(tokens < UNKNOWN, highest + 1, tokens)
    if highest < 1 << 20:
        number = np.zeros(highest + 3, small)  # index -1, the last, is for UNKNOWN
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
    """A run of an automaton through a history, with its current ``state`` and ``timer``."""

    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        # Reading one number from a memoryview is several times as fast as from an array.
        self._is_link = automaton.is_failure_link.data
        self._default_target = automaton.default_target.data
        self._on_entry, self._timeout = automaton.timer.data, automaton.timeout.data
        self._keys, self._targets = automaton.keys.data, automaton.targets.data
        self.state, self.timer = 0, entered(self._on_entry[0], NO_TIMER)

    def settle(self) -> None:
        """Take the time-outs that are due."""
        while self.timer == 0 and self._timeout[self.state] >= 0:
            self.state = self._timeout[self.state]
            self.timer = entered(self._on_entry[self.state], 0)

    def take_end(self, prompt_ids: Sequence[int]) -> bool:
        """Take a whole prompt if its last tokens alone decide; return ``False`` if they do not."""
        if len(prompt_ids) <= _SHORT or not self.reached:
            return False
        tokens = [int(token) for token in prompt_ids[-_SUFFIX:]]
        if UNKNOWN in tokens:
            return False
        states, timer, moves = {*self.reached}, None, 0
        for token in tokens:
            if (moves := moves + len(states)) > _MOST_MOVES:
                return False
            states = {self._next(state, token) for state in states}
            if len(states) == 1:
                (state,) = states
                if (on_entry := self._on_entry[state]) not in (CARRY, KEEP) or timer is not None:
                    timer = entered(on_entry, timer or 0)
        if timer is None:
            return False
        self.state, self.timer = *states, timer
        return True

    @cached_property
    def reached(self) -> list[int]:
        """The states that a prompt may lead to; empty if they or their edges are too many."""
        seen, new, edges = {self.state}, [self.state], 0
        while new:
            state = new.pop()
            first, end = (bisect_left(self._keys, at << 32) for at in (state, state + 1))
            edges += end - first
            if len(seen) > _MOST_STATES or edges > _MOST_EDGES:
                return []
            for target in (self._default_target[state], *self._targets[first:end]):
                if target not in seen:
                    seen.add(target)
                    new.append(target)
        return [*seen]

    @cached_property
    def homes(self) -> list[int]:
        """The default targets of the reached states, if none of them has a failure link."""
        return sorted({self._default_target[state] for state in self.reached})

    @property
    def is_simple(self) -> bool:
        """Whether the tokens of a prompt can be taken in pieces."""
        return (
            0 < len(self.homes) <= _MOST_HOMES
            and self.state in self.reached
            and not any(self._is_link[at] or self._on_entry[at] == KEEP for at in self.reached)
        )

    def _may_run_out(self, tokens: int) -> bool:
        """Return whether a time-out may be due among so many tokens, or right after them."""
        timer = self.automaton.timer
        shortest = min([self.timer, *timer[timer >= 0].tolist()])
        return shortest <= tokens and bool((self.automaton.timeout >= 0).any())

    def take(self, tokens: "_Tokens", *, chosen: bool = False) -> None:
        """Take tokens of a prompt or, if ``chosen``, of an output."""
        if len(tokens.ids) <= _SHORT:
            for token in tokens.ids.tolist():
                self._take_one(token, chosen=chosen)
            return
        if chosen and forgets(self.automaton) and self._take_last(tokens.ids):
            return
        codes, meaning = tokens.coded(self.automaton)
        done, has_timeouts = 0, chosen and self._may_run_out(len(tokens.ids))
        if _is_sparse(codes, meaning):
            done = self._take_runs(codes, meaning, chosen=has_timeouts)
        length = block_length(self.automaton.states if chosen else 0, len(meaning))
        if length < 1 + has_timeouts:
            if tokens.ids[0] == UNKNOWN and not done:  # no other is: see ``fold_together``
                self._take_one(UNKNOWN, chosen=True)
                done = 1
            self._take_each(tokens.ids[done:])
            return
        blocks, rest = _Blocks(self, meaning, length), codes[done:]
        whole = len(rest) - len(rest) % length
        take = self._take_timed if has_timeouts else self._take_blocks
        take(blocks, blocks.numbered(rest[:whole]))
        for code in rest[whole:].tolist():
            self._take_one(meaning[code], chosen=has_timeouts)

    def _take_last(self, ids: Ints) -> bool:
        """Take the last tokens if they lead from all states to one; return ``False`` otherwise."""
        automaton, states = self.automaton, np.arange(self.automaton.states)
        default, targets = (
            each.astype(np.int64) for each in (automaton.default_target, automaton.targets)
        )
        for token in ids[-_SHORT:].tolist():
            if token == UNKNOWN:
                return False
            left, following = states, [states[:0]]
            while len(left):
                edge, found = looked_up(automaton.keys, left << 32 | token)
                following.append(targets[edge[found]])
                left = left[~found]
                is_link, left = automaton.is_failure_link[left], default[left]
                following.append(left[~is_link])
                left = distinct(left[is_link])
            states = distinct(np.concatenate(following))
        if len(states) > 1:
            return False
        self.state, self.timer = int(states[0]), NO_TIMER
        return True

    def _take_each(self, ids: Ints) -> None:
        """Take tokens of an output one by one, however many states and edges there are."""
        automaton, state, timer, tokens = self.automaton, self.state, self.timer, ids.tolist()
        sources = (automaton.keys >> 32).tolist()
        after: list[dict[int, int]] = [{}] * automaton.states
        for source in dict.fromkeys(sources):
            after[source] = {}
        columns = sources, (automaton.keys & TOKEN).tolist(), automaton.targets.tolist()
        for source, token, target in zip(*columns, strict=True):
            after[source][token] = target
        default, is_link = automaton.default_target.tolist(), automaton.is_failure_link.tolist()
        on_entry, timeout = automaton.timer.tolist(), automaton.timeout.tolist()
        is_timed = bool((automaton.timer != CLEAR).any())
        for token in tokens:
            if is_timed and timer == 0:
                while timer == 0 and timeout[state] >= 0:
                    state = timeout[state]
                    timer = entered(on_entry[state], 0)
            following = after[state].get(token)
            while following is None:
                following = default[state]
                if is_link[state]:
                    state, following = following, after[following].get(token)
            state = following
            if is_timed:
                if (set_to := on_entry[state]) >= 0:
                    timer = set_to
                elif set_to == CARRY:
                    timer -= timer > 0
                elif set_to == CLEAR:
                    timer = NO_TIMER
        self.state, self.timer = state, timer if is_timed else NO_TIMER

    def table(self, meaning: list[int]) -> npt.NDArray[np.int32]:
        """Make the table ``[codes, states]`` of the states that codes lead to.

        Each state comes twice: at its index in ``reached``, and again after all states of
        ``reached``. The second one means that the timer has been set on the way.
        """
        automaton, reached = self.automaton, np.array(self.reached)
        size = len(reached)
        place = np.full(automaton.states, -1)
        place[reached] = np.arange(size)
        arrived = place + size * (automaton.timer != CARRY)
        table = np.empty((len(meaning), 2 * size), np.int32)
        table[:, :size] = arrived[automaton.default_target[reached]]
        sources = place[automaton.keys >> 32]
        code, found = looked_up(np.array(meaning), automaton.keys & TOKEN)
        found &= sources >= 0
        table[code[found], sources[found]] = arrived[automaton.targets[found]]
        table[:, size:] = table[:, :size] % size + size
        return table

    def take_pieces(
        self,
        tokens: "_Tokens",
        first: int,
        begun: list[list[int]],
        ended: list[list[int]],
    ) -> None:
        """Take pieces, using the known ways through each of them.

        Args:
            tokens: the tokens of the pieces, and others before them.
            first: the index at which the pieces begin.
            begun: ``[pieces, ways]``, the states at the start of each piece, as in ``table``.
            ended: ``[pieces, ways]``, the states at its end.
        """
        columns: _Columns | None = None
        size, state = len(self.reached), self.reached.index(self.state)
        last_set, ran = None, 0
        for piece, ways in enumerate(begun):
            before = state
            if state in ways:
                state = ended[piece][ways.index(state)]
            else:
                if columns is None:
                    columns = _Columns(self, tokens, first)
                for column in map(columns.__getitem__, columns.blocks[piece].tolist()):
                    state = column[state]
            ran += _PIECE
            if state >= size:
                state, last_set, ran = state - size, (piece, before), 0
        if last_set is not None:
            piece, before = last_set
            self.state, first = self.reached[before], first + _PIECE * piece
            for token in tokens.ids[first : first + _PIECE].tolist():
                self._take_one(token, chosen=False)
        self.state, self.timer = self.reached[state], entered(CARRY, self.timer, ran)

    def _take_one(self, token: int, *, chosen: bool) -> None:
        if chosen:
            self.settle()
        self.state = self._next(self.state, token)
        self.timer = entered(self._on_entry[self.state], self.timer)

    def _next(self, state: int, token: int) -> int:
        """Return the state after a token."""
        if token == UNKNOWN and self.automaton.branches[state]:
            raise UnknownTokenError
        keys = self._keys
        while True:
            key = state << 32 | token if token >= 0 else _NO_EDGE
            index = bisect_left(keys, key)
            if index < len(keys) and keys[index] == key:
                return self._targets[index]
            is_link, state = self._is_link[state], self._default_target[state]
            if not is_link:
                return state

    def _take_runs(self, codes: npt.NDArray[Any], meaning: list[int], *, chosen: bool) -> int:
        """Take few tokens that have edges, and whole runs of tokens without edges between them.

        Returns:
            The number of tokens that are taken: not all, if there are too many runs.
        """
        done = steps = 0
        for position in [*np.flatnonzero(codes).tolist(), len(codes)]:
            while done < position:
                if (steps := steps + 1) > _MOST_RUNS:
                    return done
                done += self._run(position - done, chosen=chosen)
            if position < len(codes):
                self._take_one(meaning[codes[position]], chosen=chosen)
                done = position + 1
        return done

    def _run(self, length: int, *, chosen: bool) -> int:
        """Take up to ``length`` tokens that have no edge in any state; return how many."""
        if chosen:
            self.settle()
        following = self._next(self.state, _NO_EDGE)
        on_entry, steps = self._on_entry[following], 1
        if following == self.state and (on_entry in (CLEAR, KEEP) or not chosen):
            steps = length
        elif following == self.state and on_entry == CARRY:
            steps = min(length, max(self.timer, 1))
        self.state = following
        self.timer = entered(on_entry, self.timer, steps)
        return steps

    def _take_blocks(self, blocks: "_Blocks", numbers: Sequence[int]) -> None:
        """Take blocks among which no time-out is due."""
        start = blocks[self.state]
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

    def _take_timed(self, blocks: "_Blocks", numbers: Sequence[int]) -> None:
        """Take blocks of an output, and the time-outs that are due among them."""
        state, timer, length = self.state, self.timer, blocks.length
        known: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        for number in numbers:
            # A timer that runs for longer is the same to the block as any other.
            key = state, timer if timer < length else length, number
            if (after := known.get(key)) is None:
                self.state, self.timer = state, timer if timer < length else _LATE
                for token in blocks.tokens(number):
                    self._take_one(token, chosen=True)
                is_running = self.timer > NO_TIMER
                to, ran = (-1, _LATE - self.timer) if is_running else (self.timer, 0)
                after = known[key] = self.state, to, ran
            state, to, ran = after
            timer = timer - ran if to < 0 else to
        self.state, self.timer = state, timer


def forgets(automaton: Automaton) -> bool:
    """Return whether a few last tokens decide the state, as far as the form of the automaton shows.

    So it is where patterns are looked for, and nothing else.
    """
    links = np.count_nonzero(automaton.is_failure_link)
    return 1 < automaton.states <= links + 1 and bool((automaton.timer == CLEAR).all())


def work_to_read(automaton: Automaton) -> int:
    """Compute the units of work to read a long output; see ``MAX_RESUME_WORK``."""
    if automaton.states == 1:
        return 0
    if forgets(automaton):
        return 2 if automaton.states <= _MOST_FOLLOWED >> 2 else 6
    length = 0
    if len(automaton.keys) <= _MOST_FOLLOWED:  # otherwise, the blocks are too many
        length = block_length(automaton.states, 1 + len(distinct(automaton.keys & TOKEN)))
    if length < 2:
        return 8
    return max((12 if (automaton.timeout >= 0).any() else 6) // length, 1)


def block_length(states: int, codes: int) -> int:
    """Choose the number of tokens that an automaton takes at a time: 1 to 16, or 0 for one by one.

    Args:
        states: the number of its states; 0 to follow as many blocks as there are, in a prompt.
        codes: the number of different tokens, where all without an edge are one.
    """
    fitting = (
        length
        for length in range(16, 0, -1)
        # Each block of each state may have to be followed once, for each timer.
        if codes**length <= _BLOCKS and states * codes**length * length**2 <= _MOST_FOLLOWED
    )
    return next(fitting, int(states * codes <= _MOST_FOLLOWED))


class _Blocks(dict[int, _Place]):
    """Blocks of ``length`` tokens, with one number for each block; and the place of each state.

    Attributes:
        meaning: the token of each code.
    """

    def __init__(self, walk: _Walk, meaning: list[int], length: int) -> None:
        self.walk, self.meaning, self.length = walk, meaning, length

    def numbered(self, codes: npt.NDArray[Any]) -> Sequence[int]:
        """Return the number of each block."""
        if len(self.meaning) > _BLOCKS:
            return codes.tolist()
        of_block = codes.astype(np.uint8).reshape(-1, self.length)
        numbers = of_block[:, 0].copy()
        for i in range(1, self.length):
            numbers *= len(self.meaning) & 0xFF
            numbers += of_block[:, i]
        return numbers.tobytes()

    def __missing__(self, state: int) -> _Place:
        place = self[state] = _Place(self, state)
        return place

    def tokens(self, number: int) -> list[int]:
        """Return the tokens of a block."""
        tokens: list[int] = []
        for _ in range(self.length):
            number, code = divmod(number, len(self.meaning))
            tokens.append(self.meaning[code])
        return tokens[::-1]
