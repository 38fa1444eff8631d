"""No n-gram twice: the history rules of ``no_repeat_ngram``.

Each request has its history once, and for each rule an index of it, which gives the tokens that
followed the newest n - 1 tokens before. It has two parts. All positions up to some point are in
buckets, by a hash of the n - 1 tokens before them; these arrays are made with a few numpy calls and
then stay as they are. The positions after that point are in chains, one for each bucket. So a step
costs the same whatever n, the window and the length of the history, taking a token back is taking
it off its chain, and a request costs another one nothing. What many tokens followed has an array of
them, to which more are added.

A hash only says where to look: tokens are compared before one is banned.
"""

import random
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ...spec import NoRepeatNgramSpec
from .automaton import BAN_BIAS, Ints, UnknownTokenError
from .edits import Additions, Cells, Standing, is_dense, mask
from .slots import FOLDED, ROW, Failures, Request, Slots

Tokens = npt.NDArray[np.int32]

_TAKEN_BACK = 32
"""So many of the newest output ids may be taken back, or be exchanged, at the cost of a step."""

_FEW = 16
"""Candidates that are compared one by one."""

_SEVERAL = 64
"""Candidates that are compared anew each time, and followers that come without an array."""

_MANY = 512
"""Banned tokens that are laid out once, and not again for as long as they stay banned."""

_HUGE = 2048
"""Candidates that are looked through when a request comes, lest a step has to."""

_NEW = 128
"""New output ids, at most, that are not read with the rest of the history once more."""

_LAID_OUT = 3
"""Whole rows of bans that a host keeps for one rule."""

_CHAIN_BITS = 14
_BITS = 64
_WRAP = (1 << _BITS) - 1
_END, _SKIPPED = -1, -2
"""In a chain: there is no further position; the position is in none."""

Hashes = npt.NDArray[np.uint64]
Halves = npt.NDArray[np.uint32]

_MULTIPLIER = random.SystemRandom().getrandbits(_BITS) | 1
"""A random odd number, so that nobody can choose tokens whose hashes collide."""

_BAN = np.array(BAN_BIAS, np.float32)


class _History:
    """A request's prompt and output.

    Attributes:
        tokens: the first ``length`` are those.
        prompt_length: how many of them are the prompt's.
    """

    def __init__(self, prompt_ids: Ints, output_ids: Ints) -> None:
        self.prompt_length = len(prompt_ids)
        self.length = len(prompt_ids) + len(output_ids)
        self._put(np.empty(self.length + _NEW, np.int32))
        self.tokens[: self.prompt_length] = prompt_ids
        self.tokens[self.prompt_length : self.length] = output_ids
        if (self.tokens[: self.length] < 0).any():
            raise UnknownTokenError

    @property
    def settled(self) -> int:
        """How many tokens are not going to be taken back."""
        return max(self.prompt_length, self.length - _TAKEN_BACK)

    def _put(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.numbers = tokens.data
        self.bytes = self.numbers.cast("B")

    def append(self, token: int) -> None:
        if token < 0:
            raise UnknownTokenError
        if self.length == len(self.tokens):
            longer = np.empty(self.length + self.length // 8 + _NEW, np.int32)
            longer[: self.length] = self.tokens
            self._put(longer)
        self.numbers[self.length] = token
        self.length += 1

    def before(self, position: int, count: int) -> bytes:
        """The tokens before a position, as bytes."""
        return bytes(self.bytes[4 * (position - count) : 4 * position])


class _Reach:
    """The part of a history that rules look back to, as rules of any n need it.

    Args:
        history: a request's, without the tokens that may be taken back.
        start: the first position of that part.

    Attributes:
        start: see there.
        tokens: of that part.
        by_token: its positions, counted from ``start``: those with the same token together, but
            for some with another one, and ascending.
    """

    def __init__(self, history: _History, start: int) -> None:
        self.start, self.tokens = start, history.tokens[start : history.settled]
        self.by_token = np.argsort(self.tokens.astype(np.uint16), kind="stable")
        # Polynomial hashes of all tokens before each position.
        count = len(self.tokens)
        size = 1 << count.bit_length()
        powers = _powers(_MULTIPLIER, size)
        inverses = _powers(pow(_MULTIPLIER, -1, 1 << _BITS), size)
        self._values = np.zeros(count + 1, np.uint64)
        self._hashes = np.zeros(count, np.uint64)
        values = self._values[1:]
        values[:] = self.tokens
        values *= inverses[:count]
        np.cumsum(values, out=values)
        values *= powers[:count]

    def hashes(self, back: int) -> Halves:
        """A hash of the ``back`` tokens before each position; until the next call.

        Where there are fewer tokens in this part, it means nothing.
        """
        hashes, values = self._hashes[back:], self._values
        dropping = np.uint64(pow(_MULTIPLIER, back, 1 << _BITS))
        np.multiply(values[: len(hashes)], dropping, out=hashes)
        np.subtract(values[back : back + len(hashes)], hashes, out=hashes)
        hashes *= np.uint64(_MULTIPLIER)
        return self._hashes.astype("<u8", copy=False).view("<u4")[1::2]


@lru_cache(maxsize=4)
def _powers(factor: int, count: int) -> Hashes:
    """The first powers of a number."""
    powers = np.full(count, factor, np.uint64)
    powers[0] = 1
    return np.cumprod(powers, out=powers)


class _Growing:
    """Different tokens that followed the same ones, whenever that was.

    Args:
        tokens: in ascending order.

    Attributes:
        standing: most of them, if they are many.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._new = np.empty((2, _FEW), np.int32)  # positions and tokens
        self._count = 0
        self._put(tokens)

    def _put(self, tokens: Tokens) -> None:
        self._old, self.standing = tokens, Standing(tokens, _BAN) if len(tokens) > _MANY else None

    def push(self, position: int, token: int) -> int:
        """Take a token, at a later position than all that there are.

        Returns:
            Where it was before, if that has been forgotten for it, or -1.
        """
        at = self._old.searchsorted(np.int32(token))
        is_there = at < len(self._old) and self._old[at] == token
        if not is_there and not (self._new[1, : self._count] == token).any():
            if self._count == self._new.shape[1]:
                self._new = np.concatenate([self._new, np.empty_like(self._new)], axis=1)
            self._new[:, self._count] = position, token
            self._count += 1
        return -1

    def take_back(self, position: int, before: int) -> None:
        """Undo the push of a position, which was the last one, and returned ``before``."""
        if self._count and self._new[0, self._count - 1] == position:
            self._count -= 1

    def banned(self, first: int, *, leaves: bool, may_stand: bool) -> list[Tokens]:
        """The tokens from a position on, but for those that stand.

        Args:
            first: the position.
            leaves: whether it is a later one with each step.
            may_stand: whether what has become much may be laid out, if it need not be.
        """
        settled = self._count - _TAKEN_BACK  # the others can be taken back
        if settled > _MANY and may_stand:
            self._put(_ascending(np.concatenate([self._old, self._new[1, :settled]])))
            self._new = self._new[:, settled:].copy()
            self._count -= settled
        new = self._new[1, : self._count]
        return [self._old, new] if self.standing is None else [new]


class _Sliding:
    """Different tokens that followed the same ones, by where they did last.

    Args:
        positions: ascending.
        tokens: at the positions.

    Attributes:
        standing: most of those in the window, if they are many.
    """

    def __init__(self, positions: Tokens, tokens: Tokens) -> None:
        self._all, self._count = np.stack([positions, tokens]), len(positions)
        self.standing: Standing | None = None
        self._oldest = self._newest = 0  # the positions of what stands
        self._moved: set[int] = set()  # what stands and has come again

    def push(self, position: int, token: int) -> int:
        """See ``_Growing``."""
        before = -1
        if len(same := np.flatnonzero(self._all[1, : self._count] == token)):
            before = int(self._all[0, same[0]])
            self._remove(int(same[0]))
            if self.standing is not None and self._oldest <= before <= self._newest:
                self._moved.add(token)
        self._insert(self._count, position, token)
        return before

    def take_back(self, position: int, before: int) -> None:
        """See ``_Growing``."""
        if not self._count or self._all[0, self._count - 1] != position:
            return
        token = int(self._all[1, self._count - 1])
        self._remove(self._count - 1)
        if position <= self._newest:
            self.standing = None
        self._moved.discard(token)
        if before >= 0:
            self._insert(self._until(before), before, token)

    def _insert(self, index: int, position: int, token: int) -> None:
        count = self._count
        if count == self._all.shape[1]:
            room = np.empty((2, count // 8 + _FEW), np.int32)
            self._all = np.concatenate([self._all, room], axis=1)
        self._all[:, index + 1 : count + 1] = self._all[:, index:count]
        self._all[:, index] = position, token
        self._count += 1

    def _remove(self, index: int) -> None:
        self._all[:, index : self._count - 1] = self._all[:, index + 1 : self._count]
        self._count -= 1

    def _until(self, position: int) -> int:
        """How many of them are before a position; with a number of Python's, numpy takes a copy."""
        return int(self._all[0, : self._count].searchsorted(np.int32(position)))

    def banned(self, first: int, *, leaves: bool, may_stand: bool) -> list[Tokens]:
        """See ``_Growing``."""
        start, tokens = self._until(first), self._all[1, : self._count]
        if len(tokens) - start <= _MANY:
            self.standing = None
            return [tokens[start:]]
        if self.standing is None or (leaves and self._oldest < first):
            may_stand = needs_to = True
        else:
            is_late = leaves and self._oldest < first + _MANY // 2
            needs_to = is_late or len(tokens) - self._until(self._newest) > _MANY
        if may_stand and needs_to:
            self._stand(first, leaves=leaves)
        new = tokens[self._until(self._newest + 1) :]
        if self._moved:
            new = new[~np.isin(new, [*self._moved])]
        return [tokens[start : self._until(self._oldest)], new]

    def _stand(self, first: int, *, leaves: bool) -> None:
        """Lay out what is not about to leave."""
        start = self._until(first + _MANY if leaves else first)
        positions, tokens = self._all[:, start : self._count]
        self.standing = Standing(_ascending(tokens), _BAN)
        self._oldest, self._newest = int(positions[0]), int(positions[-1])
        self._moved = set()


_Group = _Growing | _Sliding


def _ascending(values: Tokens) -> Tokens:
    """In this order; no two are the same."""
    if len(values) <= _HUGE:
        return np.sort(values)
    lowest = values.min()
    is_there = np.zeros(values.max() - lowest + 1, np.bool_)
    is_there[values - lowest] = True
    return np.flatnonzero(is_there).astype(np.int32) + lowest


class _Rule:
    """One of a request's rules, with an index of its history.

    Args:
        spec: the rule.
        history: the request's.
        reach: the part of it to which the window reaches, at least.
        vocab_size: tokens beyond it are not banned.

    Attributes:
        few: what is banned, if it is little.
        some: the same, if it may be more.
        standing: what is banned besides, for several steps.
    """

    def __init__(
        self, spec: NoRepeatNgramSpec, history: _History, reach: _Reach, vocab_size: int
    ) -> None:
        self._history, self._back, self._window = history, spec.n - 1, spec.window
        self._vocab_size, self._exempt = vocab_size, None
        if spec.allowed_token_ids:
            self._exempt = mask(spec.allowed_token_ids, vocab_size)
        self._dropping = pow(_MULTIPLIER, self._back, 1 << _BITS)  # what drops the oldest token
        self._groups: dict[bytes, _Group] = {}
        self._laid_out: list[Standing] = []
        self._heads = array("i", [_END]) * (1 << _CHAIN_BITS)
        self._previous = array("i")
        self._before = array("i")  # what groups say of the same positions
        self._base = history.settled
        self._put_into_buckets(reach)
        self._go_to(self._base)
        for position in range(self._base, history.length):
            self.push(position)
        self.few: list[int] = []
        self.some: list[Tokens] = []
        self.standing: Standing | None = None

    def __len__(self) -> int:
        """How many positions came one by one, and can be taken back."""
        return len(self._previous)

    def _first(self, length: int) -> int:
        """The first position at which an n-gram may end, in a history of some length."""
        return self._back + max(length - (self._window or length), 0)

    def _put_into_buckets(self, reach: _Reach) -> None:
        """Sort positions by the tokens before them, and then by their own; and keep the newest."""
        self._start = self._first(self._history.length - _TAKEN_BACK)
        counts = reach.tokens < self._vocab_size
        counts[: self._start - reach.start] = False
        if self._exempt is not None:
            counts &= ~self._exempt[np.minimum(reach.tokens, self._vocab_size - 1)]
        order = reach.by_token if counts.all() else reach.by_token[counts[reach.by_token]]
        hashes = reach.hashes(self._back)
        order = order[np.argsort((hashes >> np.uint32(16)).astype(np.uint16)[order], kind="stable")]
        hashes, tokens = hashes[order], reach.tokens[order]
        is_newest = np.ones(len(order), np.bool_)
        np.not_equal(hashes[1:], hashes[:-1], out=is_newest[:-1])
        is_newest[:-1] |= tokens[1:] != tokens[:-1]
        if not is_newest.all():
            newest = np.flatnonzero(is_newest)
            order, hashes = order[newest], hashes[newest]
        self._hashes, self._positions = hashes, order.astype(np.int32)
        self._positions += reach.start
        bits = min(max(len(order).bit_length(), 4), 16)
        self._shift = 32 - bits
        buckets = hashes >> np.uint32(self._shift)
        ends = np.flatnonzero(np.diff(buckets, append=1 << bits))
        starts = np.zeros((1 << bits) + 1, np.int32)
        starts[buckets[ends] + np.int64(1)] = np.diff(ends, prepend=-1)
        sizes = starts[1:].copy()
        np.cumsum(starts, out=starts)
        self._starts = starts.data
        for bucket in np.flatnonzero(sizes > _HUGE).tolist():
            start, end = self._starts[bucket], self._starts[bucket + 1]
            for value in {*hashes[[start, (start + end) // 2, end - 1]].tolist()}:
                positions = self._with_hash(value)
                if len(positions) > _HUGE and self._follows(positions, at := int(positions[-1])):
                    self._group(self._history.before(at, self._back), positions)

    def _with_hash(self, value: int) -> Tokens:
        """The positions after what has a hash; of those with equal tokens, later ones last."""
        bucket = value >> self._shift
        part = slice(self._starts[bucket], self._starts[bucket + 1])
        same = self._hashes[part] == value
        return self._positions[part] if same.all() else self._positions[part][same]

    def _follows(self, positions: Tokens, position: int) -> bool:
        """Whether the same tokens are before all of these positions as before another one."""
        tokens, back = self._history.tokens, self._back
        shape = len(tokens) - back + 1, back
        windows = np.ndarray(shape, np.int32, tokens, 0, (tokens.itemsize, tokens.itemsize))
        return bool((windows[positions - back] == windows[position - back]).all())

    def _search(self) -> Tokens:
        """The positions after the newest tokens, where a hash does not tell them."""
        tokens, back = self._history.tokens, self._back
        at = np.arange(self._start, max(self._base, self._start), dtype=np.int32)
        for i in range(1, back + 1):
            at = at[tokens[at - i] == tokens[self._history.length - i]]
        at = at[tokens[at] < self._vocab_size]
        return at if self._exempt is None else at[~self._exempt[tokens[at]]]

    def _group(self, context: bytes, positions: Tokens) -> _Group:
        """Keep what followed a context; of positions with equal tokens, later ones come last."""
        tokens = self._history.tokens[positions]
        if (tokens[1:] <= tokens[:-1]).any():
            order = np.argsort(tokens.astype(np.uint16), kind="stable")
            order = order[np.argsort((tokens >> 16).astype(np.uint16)[order], kind="stable")]
            order = order[np.diff(tokens[order], append=-1) != 0]
            positions, tokens = positions[order], tokens[order]
        if self._window is None:
            group = _Growing(tokens)
        else:
            positions = _ascending(positions)
            group = _Sliding(positions, self._history.tokens[positions])
        self._groups[context] = group
        return group

    def _go_to(self, position: int) -> None:
        """Let the newest n - 1 tokens be those before a position."""
        self._context, self._hash = b"", 0
        for token in self._history.numbers[max(position - self._back, 0) : position]:
            self._hash = self._hash * _MULTIPLIER + token & _WRAP
        if position >= self._back:
            self._context = self._history.before(position, self._back)

    @property
    def _mixed(self) -> int:
        return self._hash * _MULTIPLIER & _WRAP

    def push(self, position: int) -> None:
        """Take one token, the one at ``position``."""
        back, numbers = self._back, self._history.numbers
        token, previous, before = numbers[position], _SKIPPED, -1
        counts = token < self._vocab_size and (self._exempt is None or not self._exempt[token])
        if counts and position >= back:
            if (group := self._groups.get(self._context)) is not None:
                before = group.push(position, token)
            else:
                slot = self._mixed >> _BITS - _CHAIN_BITS
                previous, self._heads[slot] = self._heads[slot], position
        self._previous.append(previous)
        self._before.append(before)
        if back:
            dropped = numbers[position - back] * self._dropping if position >= back else 0
            self._hash = self._hash * _MULTIPLIER + token - dropped & _WRAP
            if position + 1 >= back:
                self._context = self._history.before(position + 1, back)

    def take_back(self, count: int) -> None:
        """Undo the last pushes; the history is shorter already."""
        length = self._history.length
        for position in range(length + count - 1, length - 1, -1):
            self._go_to(position)
            previous, before = self._previous.pop(), self._before.pop()
            if previous != _SKIPPED:
                self._heads[self._mixed >> _BITS - _CHAIN_BITS] = previous
            if (group := self._groups.get(self._context)) is not None:
                group.take_back(position, before)

    def look_up(self, *, may_stand: bool) -> bool:
        """Find what followed the newest n - 1 tokens.

        Args:
            may_stand: whether what has become much may be laid out, if it need not be.

        Returns:
            Whether it was.
        """
        length = self._history.length
        self.few, self.some, self.standing = [], [], None
        if length < self._back:
            return False
        first = self._first(length)
        if (group := self._groups.get(self._context)) is None:
            numbers, older, recent = self._history.numbers, self._older(), self._recent()
            if len(older) + len(recent) <= _SEVERAL:
                newest = {numbers[at]: at for at in (*older, *recent)}
                self.few = [token for token, at in newest.items() if at >= first]
                return False
            group = self._group(self._context, np.array(older, np.int32))
            for at in recent:
                self._before[at - self._base] = group.push(at, numbers[at])
        stood = group.standing
        leaves = self._window is not None and length > self._window
        self.some = group.banned(first, leaves=leaves, may_stand=may_stand)
        self.standing = group.standing
        if (
            self.standing is not None
            and is_dense(len(self.standing), self._vocab_size)
            and self.standing not in self._laid_out
        ):
            self._laid_out.append(self.standing)
            if len(self._laid_out) > _LAID_OUT:
                self._laid_out.pop(0).kept.clear()
        return group.standing is not stood

    def _recent(self) -> list[int]:
        """The positions after the newest tokens that came one by one, ascending."""
        context, back, history = self._context, self._back, self._history.bytes
        found: list[int] = []
        at = self._heads[self._mixed >> _BITS - _CHAIN_BITS]
        while at != _END:
            if history[4 * (at - back) : 4 * at] == context:
                found.append(at)
            at = self._previous[at - self._base]
        found.reverse()
        return found

    def _older(self) -> list[int] | Tokens:
        """The positions after the newest tokens in the buckets; with equal tokens, later ones last.

        Many of them come as an array.
        """
        context, back, history = self._context, self._back, self._history
        value = self._mixed >> 32
        bucket = value >> self._shift
        start, end = self._starts[bucket], self._starts[bucket + 1]
        if end - start <= _FEW:
            hashes, positions, said = self._hashes.data, self._positions.data, history.bytes
            found = [positions[i] for i in range(start, end) if hashes[i] == value]
            if all(said[4 * (at - back) : 4 * at] == context for at in found):
                return found
            return self._search()
        candidates = self._with_hash(value)
        if not self._follows(candidates, history.length):
            candidates = self._search()
        return candidates if len(candidates) > _SEVERAL else candidates.tolist()


class _Rules:
    """The rules of a request, with its history.

    Args:
        request: whose they are.
        specs: the rules; no two are equal.
        vocab_size: tokens beyond it are not banned.

    Raises:
        UnknownTokenError: if a token is not known.
    """

    def __init__(
        self, request: Request, specs: Sequence[NoRepeatNgramSpec], vocab_size: int
    ) -> None:
        self._specs, self._vocab_size = specs, vocab_size
        self._read(request)

    def _read(self, request: Request) -> None:
        """Begin again with all tokens."""
        self._history = history = _History(request.prompt_array(), request.output_array())
        windows = [spec.window or history.length for spec in self._specs]
        reach = _Reach(history, max(history.length - _TAKEN_BACK - max(windows), 0))
        self._rules = [_Rule(spec, history, reach, self._vocab_size) for spec in self._specs]
        self._is_looked_up = False

    def __iter__(self) -> Iterator[_Rule]:
        return iter(self._rules)

    def follow(self, request: Request, known: int) -> None:
        """Take the output ids that are new, and take back those that are not there any more.

        Args:
            request: whose the rules are.
            known: how many output ids there were before.

        Raises:
            UnknownTokenError: if a token is not known.
        """
        history, output_ids = self._history, request.output_ids
        self._is_looked_up = False
        kept = self._kept(output_ids, known)
        if kept is None or len(output_ids) - kept > _NEW:
            request.drop_arrays()
            self._read(request)
            request.drop_arrays()
            return
        if kept < known:
            history.length -= known - kept
            for rule in self._rules:
                rule.take_back(known - kept)
        for token in output_ids[kept:]:
            history.append(int(token))
            for rule in self._rules:
                rule.push(history.length - 1)

    def _kept(self, output_ids: Sequence[int], known: int) -> int | None:
        """How many of the output ids are the same as before; ``None`` if it may be fewer."""
        history = self._history
        kept = min(known, len(output_ids))
        first = max(kept - _TAKEN_BACK, 0)
        at = history.prompt_length
        before = history.numbers[at + first : at + kept].tolist()
        now = list(output_ids[first:kept])
        if before != now:
            kept = first + next(i for i in range(len(now)) if before[i] != now[i])
            if kept == first and first > 0:
                return None
        return None if known - kept > min(map(len, self._rules)) else kept

    def look_up(self, *, may_stand: bool) -> bool:
        """Find what is banned, if that is not known; see ``_Rule.look_up``."""
        if self._is_looked_up:
            return False
        stood = False
        for rule in self._rules:
            stood = rule.look_up(may_stand=may_stand and not stood) or stood
        self._is_looked_up = True
        return stood


class Ngrams(Slots):
    """One slot per request.

    All of it is a function of (rules, prompt, output ids), which may shrink.

    Args:
        vocab_size: a prompt may have other tokens, such as images' placeholders: none is banned.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__(columns=2)
        self._vocab_size = vocab_size

    def start(self, request: Request, specs: Sequence[NoRepeatNgramSpec]) -> None:
        """Let rules act on a request.

        Raises:
            UnknownTokenError: if one of its tokens is not known.
        """
        rules = _Rules(request, specs, self._vocab_size)
        slot = self.new(request, rules).slot
        self.values[FOLDED, slot] = len(request.output_ids)

    def advance(self, failed: Failures) -> None:
        """Read the new output ids; requests that cannot go on are put into ``failed``."""
        may_stand = True  # one in a step, so that no step has to wait for many
        for handle, grown in zip(self.handles, self.grown().tolist(), strict=True):
            rules, request, slot = handle.what, handle.request, handle.slot
            try:
                if grown:
                    rules.follow(request, int(self.values[FOLDED, slot]))
                    self.values[FOLDED, slot] = len(request.output_ids)
                may_stand = not rules.look_up(may_stand=may_stand) and may_stand
            except Exception as error:
                failed[request] = error

    def bans(self) -> list[Additions]:
        """What would complete an n-gram that is there already; no rule has a cell twice."""
        additions: list[Additions] = []
        few: list[int] = []
        some: list[Tokens] = []
        rows_of_few: list[int] = []
        rows_of_some: list[int] = []
        for handle, row in zip(self.handles, self.values[ROW, : len(self)].tolist(), strict=True):
            for rule in handle.what:
                few += rule.few
                rows_of_few += [row] * len(rule.few)
                some += rule.some
                rows_of_some += [row] * len(rule.some)
                if rule.standing is not None:
                    additions.append(rule.standing.on(row))
        tokens: Ints = np.concatenate([np.array(few, np.int64), *some], dtype=np.int64)
        if len(tokens):
            rows = np.array(rows_of_few + rows_of_some, np.int64)
            lengths = [1] * len(few) + [len(each) for each in some]
            cells = Cells(np.repeat(rows, lengths), tokens)
            additions.append(Additions(cells, np.broadcast_to(_BAN, len(tokens))))
        return additions
