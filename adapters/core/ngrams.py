"""No n-gram twice: the history rules of ``no_repeat_ngram``.

Each request has its history once, and an index of it for each n among its rules. The index gives
the tokens that followed the newest n - 1 tokens before. It has two parts. All positions up to some
point are in buckets, by a hash of the n - 1 tokens before them; these arrays are made with a few
numpy calls and then stay as they are. The positions after that point are in a dictionary. So a
step costs the same whatever n, the window and the length of the history, taking a token back is
taking it out of the dictionary, and a request costs another one nothing.

A hash only says where to look: tokens are compared before one is banned, and before one of two
equal n-grams is dropped from an index.
"""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from ...spec import NoRepeatNgramSpec
from ...spec.limits import MAX_COUNT
from .automaton import BAN_BIAS, Ints, UnknownTokenError
from .edits import Additions, Cells
from .slots import FOLDED, ROW, Failures, Request, Slots

Tokens = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

_TAKEN_BACK = 32
"""So many of the newest output ids may be taken back, or be exchanged, at the cost of a step."""

_FEW = 32
"""Candidates that are compared one by one."""

_MANY = 1024
"""Banned tokens that are laid out once, and not again for as long as they stay banned."""

_RECENT = 128
"""Positions in the dictionary, at least, before they are put into the buckets."""

_BITS = 64
_WRAP = (1 << _BITS) - 1


Hashes = npt.NDArray[np.uint64]


def _multiplier() -> int:
    """A random odd number, so that nobody can choose tokens whose hashes collide."""
    return random.SystemRandom().getrandbits(_BITS) | 1


_MULTIPLIER = _multiplier()


_NONE: dict[int, int] = {}


class _CollisionError(Exception):
    """Different n-grams have the same hash."""


@dataclass(slots=True, eq=False)
class _Group:
    """Positions that many tokens hold which followed the same tokens.

    Attributes:
        positions: ``[followers]``, ascending.
        tokens: at the positions; no two are the same.
    """

    positions: Tokens
    tokens: Tokens


class _History:
    """A request's prompt and output."""

    def __init__(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        parts = [np.array(part, np.int32) for part in (prompt_ids, output_ids)]
        self.prompt_length = len(parts[0])
        self.length = len(parts[0]) + len(parts[1])
        self._put(np.empty(self.length + _RECENT, np.int32))
        np.concatenate(parts, out=self.tokens[: self.length])
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
            longer = np.empty(self.length + self.length // 8 + _RECENT, np.int32)
            longer[: self.length] = self.tokens
            self._put(longer)
        self.numbers[self.length] = token
        self.length += 1

    def before(self, position: int, count: int) -> bytes:
        """The tokens before a position, as bytes."""
        return bytes(self.bytes[4 * (position - count) : 4 * position])


class _Index:
    """What followed the newest n - 1 tokens of a history before.

    Args:
        history: a request's.
        n: as rules say.
        window: the longest of these rules.
        vocab_size: tokens beyond it are not banned.
        hashes: see ``rebuild``.
        skipped: see ``rebuild``.

    Attributes:
        few: what followed the newest n - 1 tokens, not in the dictionary, with the newest position.
        many: the same, where that may be more than a few.
        recent: what followed according to the dictionary, with the newest position.
    """

    def __init__(
        self,
        history: _History,
        n: int,
        window: int,
        vocab_size: int,
        hashes: "_Hashes",
        skipped: Mask,
    ) -> None:
        self._history, self._back, self._window = history, n - 1, window
        self.vocab_size = vocab_size
        self.few: dict[int, int] = {}
        self.many: _Group | None = None
        self.recent: dict[int, int] = {}
        self.rebuild(hashes, skipped)

    def __len__(self) -> int:
        """Positions that are in the dictionary, or have been."""
        return len(self._log)

    @property
    def is_long(self) -> bool:
        """Whether more positions should be put into the buckets."""
        spare = min(self._history.length, self._window) // 128 if self._back else 0
        return len(self._log) > _TAKEN_BACK + max(_RECENT, spare)

    def rebuild(self, hashes: "_Hashes | None" = None, skipped: Mask | None = None) -> None:
        """Put positions into the buckets; of the output, not the newest.

        Args:
            hashes: of the part of the history that the window reaches, at least.
            skipped: see ``_buckets``.
        """
        history, back = self._history, self._back
        end = history.settled
        start = max(history.length - _TAKEN_BACK - self._window, 0)
        multiplier = _MULTIPLIER
        if hashes is None:
            hashes = _Hashes(history, start, multiplier)
        if skipped is None:
            skipped = history.tokens[:end] >= self.vocab_size
        while True:
            try:
                buckets = _buckets(history.tokens, skipped, hashes, start + back, back)
                break
            except _CollisionError:
                multiplier = _multiplier()
                hashes = _Hashes(history, start, multiplier)
        starts, order, self._shift = buckets
        self._multiplier = multiplier
        self._dropping = pow(multiplier, back, 1 << _BITS)  # what drops the oldest token
        self._starts, self._order = starts.data, order
        self._groups: dict[bytes, _Group] = {}
        self._recent: dict[bytes, dict[int, int]] = {}
        self._log: list[tuple[bytes, int, int | None] | None] = []
        self._stand_at(end)
        for position in range(end, history.length):
            self.push(position)
        self.look_up()

    def _stand_at(self, position: int) -> None:
        """Let the newest n - 1 tokens be those before a position."""
        self._context = b""
        self._hash = 0
        for token in self._history.numbers[max(position - self._back, 0) : position]:
            self._hash = self._hash * self._multiplier + token & _WRAP
        if position >= self._back:
            self._context = self._history.before(position, self._back)

    def push(self, position: int) -> None:
        """Take one token, the one at ``position``."""
        back, numbers, context = self._back, self._history.numbers, self._context
        token = numbers[position]
        if position < back or token >= self.vocab_size:
            self._log.append(None)
        elif (followers := self._recent.get(context)) is None:
            self._recent[context] = {token: position}
            self._log.append((context, token, None))
        else:
            self._log.append((context, token, followers.get(token)))
            followers[token] = position
        if back:
            dropped = numbers[position - back] * self._dropping if position >= back else 0
            self._hash = self._hash * self._multiplier + token - dropped & _WRAP
            if position + 1 >= back:
                self._context = self._history.before(position + 1, back)

    def take_back(self, count: int) -> None:
        """Undo the last pushes; there were so many since the last ``rebuild``."""
        for _ in range(count):
            entry = self._log.pop()
            if entry is not None:
                context, token, before = entry
                followers = self._recent[context]
                if before is not None:
                    followers[token] = before
                else:
                    del followers[token]
                    if not followers:
                        del self._recent[context]
        self._stand_at(self._history.length)

    def look_up(self) -> None:
        """Find what followed the newest n - 1 tokens."""
        history, context, back = self._history, self._context, self._back
        self.few, self.many, self.recent = _NONE, None, _NONE
        if history.length < back:
            return
        self.recent = self._recent.get(context, _NONE)
        bucket = (self._hash * self._multiplier & _WRAP) >> self._shift
        first, end = self._starts[bucket], self._starts[bucket + 1]
        if first == end:
            return
        if end - first > _FEW:
            self.many = self._groups.get(context) or self._compare(first, end)
        else:
            numbers, tokens = history.numbers, history.bytes
            self.few = {
                numbers[at]: at
                for at in self._order[first:end].tolist()
                if tokens[4 * (at - back) : 4 * at] == context
            }

    def _compare(self, first: int, end: int) -> _Group:
        """Candidates of a bucket that do follow the newest n - 1 tokens."""
        tokens, positions = self._history.tokens, self._order[first:end]
        length = self._history.length
        for back in range(1, self._back + 1):
            same = tokens[positions - back] == tokens[length - back]
            if not same.all():
                positions = positions[same]
                if not len(positions):
                    break
        positions = _newest(positions, tokens)
        group = _Group(positions, tokens[positions])
        if len(positions) > _FEW or end - first > _MANY:
            self._groups[self._context] = group
        return group


class _Hashes:
    """Polynomial hashes of what a history has after some position.

    Args:
        history: a request's.
        start: the position.
        multiplier: odd.

    Attributes:
        multiplier: see there.
    """

    def __init__(self, history: _History, start: int, multiplier: int) -> None:
        self._start, self.multiplier = start, multiplier
        count = history.length - start
        size = 1 << count.bit_length()
        powers = _powers(multiplier, size)
        inverses = _powers(pow(multiplier, -1, 1 << _BITS), size)
        self._values = np.zeros(count + 1, np.uint64)
        values = self._values[1:]
        values[:] = history.tokens[start : history.length]
        values *= inverses[:count]
        np.cumsum(values, out=values)
        values *= powers[:count]

    def before(self, positions: Tokens, count: int) -> Hashes:
        """The hashes of the ``count`` tokens before each of some positions, which ascend."""
        dropping = np.uint64(pow(self.multiplier, count, 1 << _BITS))
        ends: slice | Tokens = positions - self._start
        begins: slice | Tokens = ends - count
        if len(ends) and ends[-1] - ends[0] < len(ends):  # without a gap
            ends, begins = slice(ends[0], ends[-1] + 1), slice(begins[0], begins[-1] + 1)
        hashes = self._values[begins] * dropping
        return np.subtract(self._values[ends], hashes, out=hashes)


@lru_cache(maxsize=4)
def _powers(factor: int, count: int) -> Hashes:
    """The first powers of a number."""
    powers = np.full(count, factor, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers, out=powers)


def _buckets(
    tokens: Tokens, skipped: Mask, hashes: _Hashes, first: int, back: int
) -> tuple[Tokens, Tokens, int]:
    """Sort positions by the tokens before them.

    Args:
        tokens: a history.
        skipped: ``[positions]``, those that are left out. Positions that hold the same token after
            the same tokens as a later one are added, at least where there are many.
        hashes: the history's.
        first: the first position.
        back: how many tokens before a position matter.

    Returns:
        Where each bucket starts, ``[buckets + 1]``; the positions, bucket by bucket, ascending; and
        by how many bits the product of hash and multiplier is shifted to give the bucket.

    Raises:
        _CollisionError: if different n-grams have the same hash.
    """
    positions = np.flatnonzero(~skipped[first:]).astype(np.int32)
    positions += first
    if not back or not len(positions):
        positions = _newest(positions, tokens)
        return np.array([0, len(positions)], np.int32), positions, _BITS
    factor, bits = np.uint64(hashes.multiplier), min(max(len(positions).bit_length(), 4), 16)
    contexts = hashes.before(positions, back)
    contexts *= factor
    contexts >>= np.uint64(_BITS - bits)
    buckets = contexts.astype(np.uint16)
    counts = np.bincount(buckets, minlength=1 << bits)
    if counts.max() > 2 * _FEW:
        heavy = positions[(counts > 2 * _FEW)[buckets]]
        ngrams = hashes.before(heavy + 1, back + 1)
        ngrams *= factor
        skipped[_repeated(tokens, heavy, back + 1, ngrams)] = True
        kept = ~skipped[positions]
        positions, buckets = positions[kept], buckets[kept]
        counts = np.bincount(buckets, minlength=len(counts))
    starts = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    return starts, positions[np.argsort(buckets, kind="stable")], _BITS - bits


def _newest(positions: Tokens, tokens: Tokens) -> Tokens:
    """The last of the positions of each token."""
    at = tokens[positions]
    newest = np.empty(at.max(initial=-1) + 1, np.int32)
    newest[at] = positions  # numpy keeps the last one
    return positions[newest[at] == positions]


def _repeated(tokens: Tokens, positions: Tokens, n: int, hashes: Hashes) -> Tokens:
    """The positions that end an n-gram that ends at a later one too; not all need be found.

    Raises:
        _CollisionError: if different n-grams have the same hash.
    """
    order = np.argsort((hashes >> np.uint64(48)).astype(np.uint16), kind="stable")
    ascending = hashes[order]
    equal = np.flatnonzero(ascending[1:] == ascending[:-1])
    ends, later = positions[order[equal]], positions[order[equal + 1]]
    earlier = ends
    # Where the n-grams that end one token before are equal and as far apart, one token is left to
    # be compared; elsewhere all are.
    apart = np.zeros(len(tokens) + 1, np.int32)
    apart[later] = later - earlier
    follows = apart[later - 1] == apart[later]
    if (tokens[later] != tokens[earlier]).any():
        raise _CollisionError
    later, earlier = later[~follows], earlier[~follows]
    for back in range(1, n):
        if (tokens[later - back] != tokens[earlier - back]).any():
            raise _CollisionError
    return ends


@dataclass(slots=True, eq=False)
class _Standing:
    """Bans of several steps: what ``group`` has from a position in it on.

    Attributes:
        group: see there.
        start: the first of its followers.
        row: of the logits.
        beside: what else stands on the row, and is not banned again.
        additions: the bans.
        banned: ``[vocab_size]``, the same.
    """

    group: _Group
    start: int
    row: int
    beside: list["_Standing"]
    additions: Additions
    banned: Mask


@dataclass(slots=True, eq=False)
class _Rule:
    """One of a request's rules.

    Attributes:
        index: for its n.
        spec: the rule.
        allowed: ``[vocab_size]``, what may repeat; ``None`` if nothing may.
        standing: what it bans for several steps, if it does.
    """

    index: _Index
    spec: NoRepeatNgramSpec
    allowed: Mask | None
    standing: _Standing | None = None

    def first(self, length: int) -> int:
        """The first position at which an n-gram may end, in a history of some length."""
        return self.spec.n - 1 + max(length - (self.spec.window or length), 0)

    def add_few(self, length: int, tokens: set[int]) -> None:
        """Put what it bans into ``tokens``, but for what is in the index's ``many``."""
        index, allowed = self.index, self.allowed
        if allowed is None and (self.spec.window or length) >= length:
            tokens.update(index.few, index.recent)
            return
        first = self.first(length)
        for followers in (index.few, index.recent):
            for token, at in followers.items():
                if at >= first and (allowed is None or not allowed[token]):
                    tokens.add(token)

    def many(self, length: int, row: int, standing: list[_Standing]) -> Tokens:
        """What it bans of the index's ``many``; what stays is put into ``standing`` instead."""
        group = self.index.many
        if group is None:
            return _NOTHING
        first = self.first(length)
        start, end = int(group.positions.searchsorted(first)), len(group.positions)
        if end - start > _MANY:
            kept = self.standing
            if (
                kept is None
                or (kept.group, kept.row, kept.beside) != (group, row, standing)
                or kept.start < start
            ):
                # What is about to leave the window is left out.
                later = first if first < self.spec.n else first + _MANY
                kept = self._stand(group, int(group.positions.searchsorted(later)), row, standing)
                self.standing = kept
            standing.append(kept)
            end = kept.start
        return self._banned(group.tokens[start:end])

    def _banned(self, tokens: Tokens) -> Tokens:
        return tokens if self.allowed is None else tokens[~self.allowed[tokens]]

    def _stand(self, group: _Group, start: int, row: int, beside: list[_Standing]) -> _Standing:
        tokens = self._banned(group.tokens[start:])
        for other in beside:
            tokens = tokens[~other.banned[tokens]]
        banned = np.zeros(self.index.vocab_size, np.bool_)
        banned[tokens] = True
        tokens = np.flatnonzero(banned)  # ascending: next to each other in memory
        additions = _bans(np.broadcast_to(np.int64(row), len(tokens)), tokens, kept={})
        return _Standing(group, start, row, beside.copy(), additions, banned)


_NOTHING: Tokens = np.empty(0, np.int32)


def _bans(rows: Ints, token_ids: Ints, kept: dict[Any, Any] | None = None) -> Additions:
    values = np.broadcast_to(np.float32(BAN_BIAS), len(rows))
    return Additions(Cells(rows, token_ids), values, kept)


class _Rules:
    """The rules of a request, with its history.

    Args:
        request: whose they are.
        specs: the rules; no two are equal.
        vocab_size: tokens beyond it are not banned.

    Attributes:
        banned: tokens, apart from what is in ``standing``, which are all different.
        standing: what is banned for several steps.

    Raises:
        UnknownTokenError: if a token is not known.
    """

    def __init__(
        self, request: Request, specs: Sequence[NoRepeatNgramSpec], vocab_size: int
    ) -> None:
        self._specs = tuple(specs)
        self._vocab_size = vocab_size
        self._masks = [_mask(spec.allowed_token_ids, vocab_size) for spec in self._specs]
        self._row = -1
        self.banned: Collection[int] | Ints = ()
        self.standing: list[_Standing] = []
        self._read(request)

    def _read(self, request: Request) -> None:
        """Begin again with all tokens."""
        self._history = history = _History(request.prompt_ids, request.output_ids)
        windows: dict[int, int] = {}
        for spec in self._specs:
            window = spec.window or MAX_COUNT
            windows[spec.n] = max(window, windows.get(spec.n, 0))
        start = max(history.length - _TAKEN_BACK - max(windows.values()), 0)
        hashes = _Hashes(history, start, _MULTIPLIER)
        size = self._vocab_size
        skipped = history.tokens[: history.settled] >= size
        # A position whose n-gram is there again need not be looked at for a smaller n.
        indexes = {
            n: _Index(history, n, windows[n], size, hashes, skipped)
            for n in sorted(windows, reverse=True)
        }
        self._indexes = list(indexes.values())
        self._rules = [
            _Rule(indexes[spec.n], spec, mask)
            for spec, mask in zip(self._specs, self._masks, strict=True)
        ]
        self._row = -1

    def follow(self, request: Request, known: int) -> None:
        """Take the output ids that are new, and take back those that are not there any more.

        Args:
            request: whose the rules are.
            known: how many output ids there were before.

        Raises:
            UnknownTokenError: if a token is not known.
        """
        history, output_ids = self._history, request.output_ids
        kept = self._kept(output_ids, known)
        if kept is None or len(output_ids) - kept > _RECENT:
            self._read(request)
            return
        if kept < known:
            history.length -= known - kept
            for index in self._indexes:
                index.take_back(known - kept)
        for token in output_ids[kept:]:
            history.append(int(token))
            for index in self._indexes:
                index.push(history.length - 1)
        self._row = -1
        for index in self._indexes:
            index.look_up()

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
        if kept < known and any(len(index) < known - kept for index in self._indexes):
            return None
        return kept

    def rebuild_one(self) -> bool:
        """Put positions into the buckets of an index that needs it; whether there was one."""
        for index in self._indexes:
            if index.is_long:
                index.rebuild()
                self._row = -1
                return True
        return False

    def lay_out(self, row: int, places: Ints) -> None:
        """Find what is banned, if that is not known.

        Args:
            row: of the logits.
            places: ``[vocab_size]``, to work with.
        """
        if row == self._row:
            return
        length, few, standing = self._history.length, set[int](), list[_Standing]()
        for rule in self._rules:
            rule.add_few(length, few)
        self.banned, self.standing, self._row = few, standing, row
        if any(index.many is not None for index in self._indexes):
            pieces = [rule.many(length, row, standing) for rule in self._rules]
            banned = np.concatenate([np.fromiter(few, np.int64, len(few)), *pieces])
            numbers = np.arange(len(banned))
            places[banned] = numbers
            banned = banned[places[banned] == numbers]  # one ban is enough
            for each in standing:
                banned = banned[~each.banned[banned]]
            self.banned = banned


def _mask(token_ids: Sequence[int], vocab_size: int) -> Mask | None:
    if not token_ids:
        return None
    tokens = np.array(token_ids, np.int64)
    mask = np.zeros(vocab_size, np.bool_)
    mask[tokens[tokens < vocab_size]] = True
    return mask


class Ngrams(Slots):
    """One slot per request.

    All of it is a function of (rules, prompt, output ids), which may shrink.

    Args:
        vocab_size: a prompt may have other tokens, such as images' placeholders: none is banned.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__(columns=2)
        self._vocab_size = vocab_size
        self._places: Ints = np.empty(0, np.int64)

    def start(self, request: Request, specs: Sequence[NoRepeatNgramSpec]) -> None:
        """Let rules act on a request.

        Raises:
            UnknownTokenError: if one of its tokens is not known.
        """
        if not len(self._places):
            self._places = np.empty(self._vocab_size, np.int64)
        rules = _Rules(request, specs, self._vocab_size)
        slot = self.new(request, rules).slot
        self.values[FOLDED, slot] = len(request.output_ids)

    def advance(self, failed: Failures) -> None:
        """Read the new output ids; requests that cannot go on are put into ``failed``."""
        may_rebuild = True  # one in a step, so that no step has to wait for many
        for handle, grown in zip(self.handles, self.grown().tolist(), strict=True):
            rules, request, slot = handle.what, handle.request, handle.slot
            try:
                if grown:
                    rules.follow(request, int(self.values[FOLDED, slot]))
                    self.values[FOLDED, slot] = len(request.output_ids)
                    may_rebuild = may_rebuild and not rules.rebuild_one()
                rules.lay_out(int(self.values[ROW, slot]), self._places)
            except Exception as error:
                failed[request] = error

    def bans(self) -> list[Additions]:
        """What would complete an n-gram that is there already; no cell is in it twice."""
        rules: list[_Rules] = [handle.what for handle in self.handles]
        additions = [each.additions for request in rules for each in request.standing]
        lengths = [len(request.banned) for request in rules]
        if count := sum(lengths):
            tokens = chain.from_iterable(request.banned for request in rules)
            rows = np.repeat(self.values[ROW, : len(self)], lengths)
            additions.append(_bans(rows, np.fromiter(tokens, np.int64, count)))
        return additions
