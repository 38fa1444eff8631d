"""Histories of requests, and indexes of the positions that follow the same tokens.

The ``back`` tokens before a position are its context. Contexts are equal if their 64-bit hashes
are. The hash has a random factor, so that two contexts have the same one with a probability of at
most 2**-20 even if a client chooses them to, and of about 2**-60 otherwise.
"""

import random
from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from ....spec.kinds.dry import MAX_MATCH
from ..automaton import BAN_BIAS, Ints, UnknownTokenError
from ..automaton.arrays import differ
from ..logits import Mask, Standing, is_dense, mask

Tokens = npt.NDArray[np.int32]
Hashes = npt.NDArray[np.uint64]

TAKEN_BACK = 32
"""The most of the newest output ids that may be taken back or replaced at the cost of a step."""

_BITS = 64
MULTIPLIER = random.SystemRandom().getrandbits(_BITS) | 1
"""A random odd number, so that no client can choose tokens whose hashes collide."""

_NEW = 128
"""The room for output ids that a history has at least when its array is made."""

_BUCKET_BITS = 10
_BUCKETS = np.arange(1 << _BUCKET_BITS, dtype=np.uint64) << np.uint64(_BITS - _BUCKET_BITS)
"""The lowest hash of each bucket, in which a search for a hash begins."""

_LAID_OUT = 3
"""The most whole rows of bans that a host keeps for one index."""

BAN = np.array(BAN_BIAS, np.float32)
"""The value of a ban."""


class History:
    """The tokens of a request's prompt and output.

    Attributes:
        tokens: an array that begins with these tokens.
        numbers: the same memory; one number is read from it faster.
        prompt_length: the number of prompt tokens.

    Raises:
        UnknownTokenError: if a token is not known.
    """

    def __init__(self, prompt_ids: Ints, output_ids: Ints) -> None:
        self.prompt_length = len(prompt_ids)
        length = len(prompt_ids) + len(output_ids)
        self._put(length + _NEW, prompt_ids, output_ids)
        if (self.tokens[:length] < 0).any():
            raise UnknownTokenError

    def _put(self, size: int, *parts: Ints | Tokens) -> None:
        padded = np.empty(MAX_MATCH + size, np.int32)
        padded[:MAX_MATCH] = -1
        np.concatenate(parts, out=padded[MAX_MATCH : MAX_MATCH + sum(map(len, parts))])
        self._padded, self.tokens = padded, padded[MAX_MATCH:]
        self.numbers = self.tokens.data
        self._windows: dict[int, npt.NDArray[np.void]] = {}

    def make_room(self, length: int) -> None:
        """Make room for more tokens than ``length``, which is how many there are."""
        self._put(length + length // 8 + _NEW, self.tokens[:length])

    def settled(self, length: int) -> int:
        """Return the number of tokens that are never taken back, of so many."""
        return max(self.prompt_length, length - TAKEN_BACK)

    def windows(self, count: int) -> npt.NDArray[np.void]:
        """View each position as the ``count`` tokens before it, up to ``MAX_MATCH``."""
        windows = self._windows.get(count)
        if windows is None:
            size, first = np.dtype((np.void, 4 * count)), 4 * (MAX_MATCH - count)
            windows = np.ndarray(len(self.tokens), size, self._padded, first, (4,))
            self._windows[count] = windows
        return windows


class Reach:
    """A part of a history, prepared for rules of any n.

    Args:
        tokens: the history.
        start: the first position of the part.
        settled: the end of the positions that indexes may have.
        end: the end of the part.
        vocab_size: tokens beyond it are not banned.

    Attributes:
        tokens: the tokens of the part.
        settled: those of them that indexes may have.
        start: see above.
        vocab_size: see above.
    """

    def __init__(self, tokens: Tokens, start: int, settled: int, end: int, vocab_size: int) -> None:
        self.start, self.tokens = start, tokens[start:end]
        self.settled, self.vocab_size = self.tokens[: max(settled - start, 0)], vocab_size
        # Polynomial hashes of all tokens before each position.
        count = end - start
        size = 1 << count.bit_length()
        powers = _powers(MULTIPLIER, size)
        inverses = _powers(pow(MULTIPLIER, -1, 1 << _BITS), size)
        self._values = np.zeros(count + 1, np.uint64)
        values = self._values[1:]
        values[:] = self.tokens
        values *= inverses[:count]
        np.cumsum(values, out=values)
        values *= powers[:count]

    @cached_property
    def places(self) -> Hashes:
        """Positions, from the start of the part, of the tokens that indexes may have."""
        return np.arange(len(self.settled), dtype=np.uint64)

    @cached_property
    def places_of_tokens(self) -> Hashes:
        """The same, with the token in higher bits."""
        tokens = self.settled.astype(np.uint64)
        tokens <<= np.uint64(len(tokens).bit_length())
        return tokens | self.places

    def hashes(self, back: int) -> Hashes:
        """Compute the hash of the context of each position, that of the end included.

        If the part does not begin with the history, its first ``back`` hashes are meaningless.
        """
        hashes = self._values.copy()
        hashes[back:] -= self._values[: max(len(hashes) - back, 0)] * np.uint64(dropping(back))
        hashes *= np.uint64(MULTIPLIER)
        return hashes


def hash_of(context: Iterable[int]) -> int:
    """Compute the hash of a context, or of the fewer tokens that there are."""
    value = 0
    for token in context:
        value = (value + token) * MULTIPLIER & ((1 << _BITS) - 1)
    return value


def following(contexts: Hashes, tokens: Ints, dropped: Hashes, factors: Hashes) -> Hashes:
    """Compute the hashes of the contexts one position later.

    Args:
        contexts: the hashes.
        tokens: the newest token of each context.
        dropped: the token that each context has no longer; 0 if there is none.
        factors: see ``dropping``.
    """
    return (contexts + tokens.astype(np.uint64) - dropped * factors) * np.uint64(MULTIPLIER)


def dropping(back: int) -> int:
    """Return the factor of the oldest token of a context, to drop it from a hash."""
    return pow(MULTIPLIER, back, 1 << _BITS)


@lru_cache(maxsize=4)
def _powers(factor: int, count: int) -> Hashes:
    """Compute the first powers of a number."""
    powers = np.full(count, factor, np.uint64)
    powers[0] = 1
    return np.cumprod(powers, out=powers)


class Entries:
    """Positions, sorted by context.

    Args:
        hashes: of the context of each position.
        tokens: at each position.
        positions: the positions.
    """

    def __init__(self, hashes: Hashes, tokens: Tokens, positions: Tokens) -> None:
        self.hashes, self.tokens, self.positions = hashes, tokens, positions

    @classmethod
    def of(
        cls, reach: Reach, contexts: Hashes, first: int, exempt: Mask | None, *, every: bool
    ) -> "Entries":
        """Sort the settled positions of a part of a history.

        Args:
            reach: the part.
            contexts: the hashes of its contexts; see ``Reach.hashes``.
            first: positions before it are left out.
            exempt: tokens whose positions are left out.
            every: whether to sort by context and position. Otherwise they are sorted by context
                and token, and only the newest position of equals is kept.
        """
        tokens = reach.settled
        counts = tokens < reach.vocab_size
        counts[: max(first - reach.start, 0)] = False
        if exempt is not None:
            counts &= ~exempt.take(tokens, mode="clip")
        # One number for each position, since numpy sorts numbers four times as fast as indices. It
        # has the upper bits of the hash, the token unless ``every``, and the position.
        bits = np.uint64(len(tokens).bit_length())
        shift = bits if every else bits + np.uint64(reach.vocab_size.bit_length())
        position, lower = (np.uint64((1 << int(count)) - 1) for count in (bits, shift))
        numbers = contexts[: len(tokens)] & ~lower
        numbers |= reach.places if every else reach.places_of_tokens
        if not counts.all():
            numbers = numbers[counts]
        numbers.sort()
        hashes = contexts.take((numbers & position).view(np.int64))
        changes = hashes[1:] ^ hashes[:-1]
        changes -= np.uint64(1)  # of equal hashes, this is above all others
        is_mixed = changes < lower
        if any_mixed := bool(is_mixed.any()):
            _sort_further(numbers, hashes, is_mixed, lower)
        if every:
            tokens = reach.tokens.take((numbers & position).view(np.int64))
        else:
            is_newest = np.ones(len(numbers), np.bool_)
            np.greater(numbers[1:] ^ numbers[:-1], position, out=is_newest[:-1])
            if any_mixed:
                is_newest[:-1] |= hashes[1:] != hashes[:-1]
            if not is_newest.all():
                numbers, hashes = numbers[is_newest], hashes[is_newest]
            tokens = ((numbers & lower) >> bits).astype(np.int32)
        positions = (numbers & position).astype(np.int32)
        positions += np.int32(reach.start)
        return cls(hashes, tokens, positions)

    def split(self, first: int) -> "tuple[Entries, Entries]":
        """Split off the positions before one."""
        is_early = self.positions < first
        early, late = (
            Entries(self.hashes[at], self.tokens[at], self.positions[at])
            for at in (np.flatnonzero(is_early), np.flatnonzero(~is_early))
        )
        return early, late

    def before(self, later: "Entries", first: int) -> "Entries":
        """Put later positions to those from a first one, sorted by context and token.

        Of equal contexts and tokens, only the newest position is kept.
        """
        stay = self.positions >= first
        hashes = np.concatenate([self.hashes[stay], later.hashes])
        tokens = np.concatenate([self.tokens[stay], later.tokens])
        positions = np.concatenate([self.positions[stay], later.positions])
        order = np.lexsort((tokens, hashes))
        hashes, tokens = hashes[order], tokens[order]
        is_newest = np.ones(len(order), np.bool_)
        is_newest[:-1] = (hashes[1:] != hashes[:-1]) | (tokens[1:] != tokens[:-1])
        return Entries(hashes[is_newest], tokens[is_newest], positions[order][is_newest])


def _sort_further(numbers: Hashes, hashes: Hashes, is_mixed: Mask, lower: np.uint64) -> None:
    """Sort, by the lower bits, the hashes whose upper bits are equal, and their numbers."""
    mixed = np.unique(numbers[1:][is_mixed] & ~lower)
    start, end = numbers.searchsorted(mixed), numbers.searchsorted(mixed | lower, "right")
    sizes = end - start
    at = np.arange(sizes.sum()) + (end - sizes.cumsum()).repeat(sizes)
    by_hash = np.argsort(hashes[at], kind="stable")
    numbers[at], hashes[at] = numbers[at][by_hash], hashes[at][by_hash]


def _bounds(hashes: Hashes) -> Ints:
    """Return where each run of equal hashes begins, and where the last one ends."""
    return np.append(np.flatnonzero(differ(hashes)), len(hashes))


def _after(sizes: Ints) -> Ints:
    """Return where runs of some lengths begin, and where the last one ends."""
    return np.append(0, sizes.cumsum())


class Index:
    """The positions of a rule, found by context. It never changes.

    Args:
        contexts: the hashes of the contexts, ascending.
        bounds: where the positions of each begin, and where the last ones end.
        tokens: at each position.
        positions: the positions, by context, and then by token or ascending.
        end: later positions are not in the index.

    Attributes:
        tokens: see above.
        positions: see above.
        end: see above.
    """

    def __init__(
        self, contexts: Hashes, bounds: Ints, tokens: Tokens, positions: Tokens, end: int
    ) -> None:
        self.tokens, self.positions, self.end = tokens, positions, end
        self._contexts, self._bounds = contexts, bounds.astype(np.int32)
        self._numbers = tokens.data
        starts = np.append(contexts.searchsorted(_BUCKETS), len(contexts))
        self._lookup = starts.data, contexts.data, self._bounds.data
        self._mask: memoryview | None = None
        self._standing: dict[int, Standing] = {}
        self._whole: list[Standing] = []

    @classmethod
    def of(cls, entries: Entries, end: int) -> "Index":
        """Make an index."""
        bounds = _bounds(entries.hashes)
        contexts = entries.hashes.take(bounds[:-1])
        return cls(contexts, bounds, entries.tokens, entries.positions, end)

    def find(self, context: int) -> tuple[int, int] | None:
        """Return where the positions of a context begin and end, or ``None`` if there are none."""
        starts, contexts, bounds = self._lookup
        bucket = context >> _BITS - _BUCKET_BITS
        end = starts[bucket + 1]
        at = bisect_left(contexts, context, starts[bucket], end)
        return (bounds[at], bounds[at + 1]) if at < end and contexts[at] == context else None

    def has(self, token: int, start: int, end: int) -> bool:
        """Return whether a token is at one of the positions of a context."""
        at = bisect_left(self._numbers, token, start, end)
        return at < end and self._numbers[at] == token

    def mask(self, vocab_size: int) -> memoryview:
        """Return which tokens are at a position; the same one each time."""
        if self._mask is None:
            self._mask = mask(self.tokens, vocab_size).data
        return self._mask

    def merged(self, new: Entries, end: int, *, every: bool) -> "Index":
        """Make an index with further, later positions; see ``Entries.of``."""
        contexts, sizes = self._contexts, np.diff(self._bounds)
        place = contexts.searchsorted(new.hashes)
        is_known = contexts.take(place, mode="clip") == new.hashes if len(contexts) else place > 0
        wanted = place << 32 | (0xFFFFFFFF if every else new.tokens)
        wanted[~is_known] = place[~is_known] << 32
        keys = np.repeat(np.arange(len(sizes)) << 32, sizes) | self.tokens
        at = keys.searchsorted(wanted)
        positions, is_there = self.positions, np.zeros(len(at), np.bool_)
        if len(keys) and not every:
            is_there = is_known & (keys.take(at, mode="clip") == wanted)
            positions = positions.copy()
            positions[at[is_there]] = new.positions[is_there]
        fresh = np.flatnonzero(~is_there)
        at, place, is_known = at[fresh], place[fresh], is_known[fresh]
        sizes = sizes + np.bincount(place[is_known], minlength=len(sizes))
        unknown = np.flatnonzero(~is_known)
        hashes = new.hashes[fresh][unknown]
        bounds = _bounds(hashes)
        before = place[unknown][bounds[:-1]]
        return Index(
            np.insert(contexts, before, hashes[bounds[:-1]]),
            _after(np.insert(sizes, before, np.diff(bounds))),
            np.insert(self.tokens, at, new.tokens[fresh]),
            np.insert(positions, at, new.positions[fresh]),
            end,
        )

    def split(self, first: int) -> "tuple[Entries, Index]":
        """Split off the positions before one."""
        is_early = self.positions < first
        early = np.flatnonzero(is_early)
        late = np.flatnonzero(~is_early)
        sizes = np.diff(self._bounds)
        context = np.repeat(np.arange(len(sizes)), sizes)
        sizes = sizes - np.bincount(context[early], minlength=len(sizes))
        entries = Entries(self._contexts[context[early]], self.tokens[early], self.positions[early])
        left = np.flatnonzero(sizes)
        rest = Index(
            self._contexts[left],
            _after(sizes[left]),
            self.tokens[late],
            self.positions[late],
            self.end,
        )
        return entries, rest

    def standing(self, start: int, end: int, columns: int, *, moves: bool) -> Standing:
        """Return the bans of the tokens of a context, which stand while the index does."""
        standing = self._standing.get(start)
        if standing is None:
            standing = Standing(self.tokens[start:end], BAN, moves=moves)
            self._standing[start] = standing
            if is_dense(end - start, columns):
                self._whole.append(standing)
                if len(self._whole) > _LAID_OUT:
                    self._whole.pop(0).kept.clear()
        return standing
