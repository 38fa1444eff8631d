"""The history rules: ``no_repeat_ngram``, no n-gram twice, and ``dry``, no long repetition.

Each request keeps its history once, plus an index of it for each rule. The index finds the tokens
that followed earlier occurrences of the newest n - 1 tokens. It has two parts. All positions up to
some point are in buckets, by a hash of the n - 1 tokens before them. A few numpy calls make these
arrays, which then never change. The positions after that point are in chains, by the same hash. So
the cost of a step does not depend on n, the window, the history's length or other requests. Taking
a token back removes it from its chain. A context that more than a few tokens followed has an array
of these followers, with the last position of each; its later positions are in no chain.

``dry`` reads the same index, for the newest ``allowed_length`` tokens. It keeps all positions, and
compares the tokens before the last of them with the newest tokens, for all requests together.

A hash only selects candidates: their contexts are compared before a token is banned. The hash of a
single token needs no comparison, because a product with an odd number is different for each token.
"""

import random
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from sys import byteorder
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....spec import DrySpec, NoRepeatNgramSpec
from ....spec.kinds.dry import MAX_MATCH, MAX_MATCHES
from ..automaton import BAN_BIAS, Ints, UnknownTokenError
from ..kinds.dry import penalties
from ..logits import NO_CELLS, Additions, AnyAdditions, Cells, Mask, Standing, is_dense, mask
from .state_table import ROW, Failures, Request, StateTable

Tokens = npt.NDArray[np.int32]

_TAKEN_BACK = 32
"""The most of the newest output ids that may be taken back or replaced at the cost of a step."""

_FEW = 16
"""The most candidates that are compared one by one, and anew each time."""

_MANY = 512
"""More banned tokens than this are laid out once, for as long as they stay banned."""

_HUGE = 2048
"""More candidates than this are grouped when a request comes, so that no step has to."""

_NEW = 128
"""The most new output ids that are taken without reading the whole history again."""

_LAID_OUT = 3
"""The most whole rows of bans that a host keeps for one rule."""

_CHAIN_BITS = 14
_BITS = 64
_WRAP = (1 << _BITS) - 1
_END, _SKIPPED, _NEVER = -1, -2, -3
"""Instead of a position: the chain ends; the position is not indexed; the token is new."""

_Spec = NoRepeatNgramSpec | DrySpec

Hashes = npt.NDArray[np.uint64]

_MULTIPLIER = random.SystemRandom().getrandbits(_BITS) | 1
"""A random odd number, so that no client can choose tokens whose hashes collide."""

_BAN = np.array(BAN_BIAS, np.float32)
_NO_VALUES = np.empty(0, np.float32)
_WINDOW = np.dtype(f"V{4 * MAX_MATCH + 4}")


class _History:
    """A request's prompt and output.

    Attributes:
        tokens: an array that begins with the ``length`` tokens of prompt and output.
        prompt_length: the number of prompt tokens.
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
        """The number of tokens that are never taken back."""
        return max(self.prompt_length, self.length - _TAKEN_BACK)

    def _put(self, tokens: Tokens) -> None:
        self._padded = np.concatenate([np.full(MAX_MATCH, -1, np.int32), tokens])
        self._padded_bytes = self._padded.data.cast("B")
        self.tokens = self._padded[MAX_MATCH:]
        self.numbers = self.tokens.data
        self.bytes = self.numbers.cast("B")

    def append(self, token: int) -> None:
        if token < 0:
            raise UnknownTokenError
        if self.length == len(self.numbers):
            longer = np.empty(self.length + self.length // 8 + _NEW, np.int32)
            longer[: self.length] = self.tokens
            self._put(longer)
        self.numbers[self.length] = token
        self.length += 1

    def matches(self, positions: Tokens) -> npt.NDArray[np.void]:
        """Return the ``MAX_MATCH`` tokens before each position, and the token there, as bytes."""
        windows = np.ndarray(len(self.tokens), _WINDOW, self._padded, 0, (4,))
        return windows[positions]

    def newest(self) -> bytes:
        """Return the ``MAX_MATCH`` newest tokens, as bytes."""
        return bytes(self._padded_bytes[4 * self.length : 4 * (self.length + MAX_MATCH)])

    def before(self, position: int, count: int) -> bytes:
        """Return ``count`` tokens before a position, as bytes."""
        return bytes(self.bytes[4 * (position - count) : 4 * position])


class _Reach:
    """The part of a history that rules look back to, prepared for rules of any n.

    Args:
        history: the request's history; tokens that may be taken back are left out.
        start: the first position of the part.
        vocab_size: tokens beyond it are not banned.

    Attributes:
        start: see above.
        tokens: the tokens of the part.
    """

    def __init__(self, history: _History, start: int, vocab_size: int) -> None:
        self.start, self.tokens = start, history.tokens[start : history.settled]
        self._vocab_size = vocab_size
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

    @cached_property
    def by_token(self) -> Ints:
        """The positions, counted from ``start``, sorted by token and then ascending.

        Positions of tokens beyond the vocabulary are left out.
        """
        by_token = np.argsort(self.tokens.astype(np.uint16), kind="stable")
        most = self.tokens.max(initial=0)
        if most >> 16:
            high = (self.tokens >> 16).astype(np.uint16)[by_token]
            by_token = by_token[np.argsort(high, kind="stable")]
        if most >= self._vocab_size:
            by_token = by_token[self.tokens[by_token] < self._vocab_size]
        return by_token

    def hashes(self, back: int) -> Hashes:
        """Compute a hash of the ``back`` tokens before each position; valid until the next call.

        Hashes of positions with fewer tokens before them in this part are meaningless.
        """
        hashes, values = self._hashes[back:], self._values
        dropping = np.uint64(pow(_MULTIPLIER, back, 1 << _BITS))
        np.multiply(values[: len(hashes)], dropping, out=hashes)
        np.subtract(values[back : back + len(hashes)], hashes, out=hashes)
        hashes *= np.uint64(_MULTIPLIER)
        return self._hashes


@lru_cache(maxsize=4)
def _powers(factor: int, count: int) -> Hashes:
    """Compute the first powers of a number."""
    powers = np.full(count, factor, np.uint64)
    powers[0] = 1
    return np.cumprod(powers, out=powers)


class _Followers:
    """The distinct tokens that followed one context, with the last position of each.

    Most of the tokens are in ascending order, for a fast search. The few newer ones are not.

    Args:
        tokens: the followers, in ascending order.
        last: the last position of each.
        moves: whether the rule may have another context at each step.

    Attributes:
        standing: the bans of the sorted tokens, if they are many.
        count: the number of the newer tokens.
    """

    def __init__(self, tokens: Tokens, last: Tokens, *, moves: bool) -> None:
        self._moves = moves
        self._new = np.empty((2, _FEW), np.int32)  # the newer tokens, and their last positions
        self.count = 0
        self._put(tokens, last)

    def _put(self, tokens: Tokens, last: Tokens) -> None:
        self._tokens, self._last = tokens, last
        self._sorted = tokens.data
        self._limit = self.count + _MANY
        self.standing: Standing | None = None
        if len(tokens) > _MANY:
            self.standing = Standing(tokens, _BAN, moves=self._moves)
            self._oldest = int(last.min())

    def push(self, position: int, token: int) -> int:
        """Take a token, at a later position than all earlier tokens.

        Returns:
            The token's last position before this one, or ``_NEVER``.
        """
        last, at = self._where(token)
        if last is not None:
            before, last[at] = int(last[at]), position
            return before
        if self.count == self._new.shape[1]:
            room = np.empty((2, self.count + _FEW), np.int32)
            self._new = np.concatenate([self._new, room], axis=1)
        self._new[0, self.count] = token
        self._new[1, self.count] = position
        self.count += 1
        return _NEVER

    def take_back(self, token: int, before: int) -> None:
        """Undo the last push, which took ``token`` and returned ``before``."""
        if before == _NEVER:
            self.count -= 1
        else:
            last, at = self._where(token)
            assert last is not None
            last[at] = before

    def _where(self, token: int) -> tuple[Tokens | None, int]:
        """Find the array that holds a token's last position, and the index in it."""
        at = bisect_left(self._sorted, token)
        if at < len(self._sorted) and self._sorted[at] == token:
            return self._last, at
        if not self.count:
            return None, 0
        found = (self._new[0, : self.count] == token).nonzero()[0]
        return (self._new[1], int(found[0])) if len(found) else (None, 0)

    def banned(self, first: int, *, leaves: bool) -> list[Tokens]:
        """List the tokens that are banned, except the standing ones.

        Args:
            first: the first position that counts.
            leaves: whether this position moves on with each step.
        """
        if leaves and self.standing is not None and first > self._oldest:
            self.standing = None
        banned: list[Tokens] = []
        if self.standing is None:
            banned.append(self._tokens[self._last >= first] if leaves else self._tokens)
        if self.count:
            tokens, last = self._new[0, : self.count], self._new[1, : self.count]
            banned.append(tokens[last >= first] if leaves else tokens)
        return banned

    def is_due(self, first: int, *, leaves: bool) -> bool:
        """Return whether a new layout of the standing tokens saves time. See ``banned``."""
        if self.count > self._limit:
            return True
        if self.standing is None:
            return len(self._tokens) > _MANY
        return leaves and first + _MANY // 2 > self._oldest

    def lay_out(self, kept: int, first: int, settled: int) -> None:
        """Let the tokens stand that are not about to leave.

        Args:
            kept: tokens whose last position is before this one are dropped.
            first: tokens whose last position is before this one do not stand.
            settled: nor do tokens whose last position is here or later: they may be taken back.
        """
        tokens = np.concatenate([self._tokens, self._new[0, : self.count]])
        last = np.concatenate([self._last, self._new[1, : self.count]])
        stay = (last >= first) & (last < settled)
        others = ~stay & (last >= kept)
        self._new = np.stack([tokens[others], last[others]])
        self.count = self._new.shape[1]
        tokens, last = tokens[stay], last[stay]
        order = np.argsort(tokens)
        self._put(tokens[order], last[order])


class _Terms(NamedTuple):
    """What the index of a rule depends on.

    Attributes:
        back: the number of newest tokens that are looked up.
        window: the number of tokens that count, or ``None``.
        exempt: tokens whose positions are not indexed.
        output_only: whether only the output counts.
    """

    back: int
    window: int | None
    exempt: Sequence[int]
    output_only: bool

    @classmethod
    def of(cls, spec: _Spec) -> "_Terms":
        """Return the terms of a spec."""
        if isinstance(spec, DrySpec):
            return cls(spec.allowed_length, spec.range, spec.breaker_token_ids, False)
        return cls(spec.n - 1, spec.window, spec.allowed_token_ids, spec.output_only)

    def start(self, history: _History, length: int) -> int:
        """Return the first position that counts, in a history of some length."""
        origin = history.prompt_length if self.output_only else 0
        return max(length - (self.window or length), origin)


class _Rule:
    """One of a request's rules, with an index of the request's history.

    Args:
        terms: what the index depends on.
        history: the request's history.
        reach: the part of the history that the rule's window reaches, or more.
        vocab_size: tokens beyond it are not banned.

    Attributes:
        banned: the banned tokens.
        standing: further bans, which stand for several steps.
        settled: positions before this one are never taken back.
    """

    def __init__(self, terms: _Terms, history: _History, reach: _Reach, vocab_size: int) -> None:
        self._terms, self._history = terms, history
        self._back, self._window = terms.back, terms.window
        self._origin = terms.back + terms.start(history, 0)  # no n-gram ends before it
        self._vocab_size, self._exempt = vocab_size, None
        if terms.exempt:
            self._exempt = mask(terms.exempt, vocab_size)
        self._dropping = pow(_MULTIPLIER, self._back, 1 << _BITS)  # drops the oldest token
        # A hash keeps 32 bits: the low ones identify one token; else the high ones carry the most.
        self._low = 0 if self._back <= 1 else 32
        self._groups: dict[bytes, Any] = {}
        self._laid_out: list[Standing] = []
        self._heads = array("i", [_END]) * (1 << _CHAIN_BITS)
        self._before = array("i")  # previous position in the chain, or the result of a group's push
        self._base = self.settled = history.settled
        self._put_into_buckets(reach)
        self._hash_numbers = self._hashes.data
        self._go_to(self._base)
        for position in range(self._base, history.length):
            self.push(position)
        self.banned: list[Tokens] = []
        self.standing: Standing | None = None
        # The followers that are banned now. ``banned`` has views of them, not copies: a token that
        # is taken back and another one in its place leave the count as it was.
        self._shown: tuple[_Followers, int] | None = None

    def _first(self, length: int) -> int:
        """Return the first position at which an n-gram may end, in a history of some length."""
        if self._window is None:
            return self._origin
        return max(length - self._window + self._back, self._origin)

    def _put_into_buckets(self, reach: _Reach) -> None:
        """Sort positions by the hash of their context and by token; keep the newest of equals."""
        self._start = self._first(self._history.length - _TAKEN_BACK)
        order = reach.by_token
        if self._exempt is not None:
            order = order[~self._exempt[reach.tokens[order]]]
        hashes = (reach.hashes(self._back) >> np.uint64(self._low)).astype(np.uint32).take(order)
        by_hash = np.argsort((hashes >> np.uint32(16)).astype(np.uint16), kind="stable")
        order, hashes = order.take(by_hash), hashes.take(by_hash)
        tokens = reach.tokens.take(order)
        kept = order >= self._start - reach.start
        kept[:-1] &= (hashes[1:] != hashes[:-1]) | (tokens[1:] != tokens[:-1])
        if not kept.all():
            newest = np.flatnonzero(kept)
            order, hashes = order.take(newest), hashes.take(newest)
        self._hashes, self._positions = hashes, order.astype(np.int32)
        self._positions += reach.start
        bits = min(max(len(order).bit_length(), 4), 16)
        self._shift = 32 - bits
        sizes = np.bincount(hashes >> np.uint32(self._shift), minlength=1 << bits)
        starts = np.zeros((1 << bits) + 1, np.int32)
        np.cumsum(sizes, out=starts[1:])
        self._starts = starts.data
        for bucket in np.flatnonzero(sizes > _HUGE).tolist():
            start, end = self._starts[bucket], self._starts[bucket + 1]
            for value in {*hashes[[start, (start + end) // 2, end - 1]].tolist()}:
                positions = self._with_hash(value)
                if len(positions) > _HUGE and self._follows(positions, at := int(positions[-1])):
                    self._group(self._history.before(at, self._back), positions)

    def _with_hash(self, value: int) -> Tokens:
        """Find the positions whose context has a hash; with equal tokens, later positions last."""
        bucket = value >> self._shift
        part = slice(self._starts[bucket], self._starts[bucket + 1])
        return self._positions[part][self._hashes[part] == value]

    def _follows(self, positions: Tokens, position: int) -> bool:
        """Return whether all positions of a hash have the same context as another position."""
        if not self._low:
            return True
        tokens, back = self._history.tokens, self._back
        size = len(tokens) - back + 1
        windows = np.ndarray(size, f"V{4 * back}", tokens, 0, (4,))
        same = self._history.before(position, back) * len(positions)
        return windows[positions - back].tobytes() == same

    def _search(self) -> Tokens:
        """Search the buckets' positions token by token, if other contexts share the hash."""
        tokens, back = self._history.tokens, self._back
        at = np.arange(self._start, max(self._base, self._start), dtype=np.int32)
        for i in range(1, back + 1):
            at = at[tokens[at - i] == tokens[self._history.length - i]]
        at = at[tokens[at] < self._vocab_size]
        return at if self._exempt is None else at[~self._exempt[tokens[at]]]

    def _group(self, context: bytes, positions: Tokens) -> _Followers:
        """Keep the followers of a context; with equal tokens, later positions come last."""
        tokens = self._history.tokens[positions]
        if np.count_nonzero(tokens[1:] <= tokens[:-1]):
            order = np.argsort(tokens, kind="stable")
            is_last = np.ones(len(order), np.bool_)
            np.not_equal(tokens[order[1:]], tokens[order[:-1]], out=is_last[:-1])
            order = order[is_last]
            positions, tokens = positions[order], tokens[order]
        group = _Followers(tokens, positions, moves=self._back > 0)
        self._groups[context] = group
        return group

    def _go_to(self, position: int) -> None:
        """Set the context to the n - 1 tokens before a position."""
        count, self._hash = min(position, self._back), 0
        for token in self._history.numbers[position - count : position]:
            self._hash = (self._hash + token) * _MULTIPLIER & _WRAP
        self._context = self._history.before(position, count)

    def push(self, position: int) -> None:
        """Take the token at ``position``."""
        back, numbers = self._back, self._history.numbers
        token, before = numbers[position], _SKIPPED
        counts = token < self._vocab_size and (self._exempt is None or not self._exempt[token])
        if counts and position >= self._origin:
            if (group := self._groups.get(self._context)) is not None:
                before = group.push(position, token)
            else:
                slot = self._hash >> _BITS - _CHAIN_BITS
                before, self._heads[slot] = self._heads[slot], position
        self._before.append(before)
        if back:
            dropped = numbers[position - back] * self._dropping if position >= back else 0
            self._hash = (self._hash + token - dropped) * _MULTIPLIER & _WRAP
            self._context = (self._context + token.to_bytes(4, byteorder))[-4 * back :]

    def take_back(self, count: int) -> None:
        """Undo the last pushes; the history has been shortened before."""
        length = self._history.length
        for position in range(length + count - 1, length - 1, -1):
            self._go_to(position)
            before, slot = self._before.pop(), self._hash >> _BITS - _CHAIN_BITS
            if self._heads[slot] == position:
                self._heads[slot] = before
                self._groups.pop(self._context, None)  # the group was made from the chain
            elif before != _SKIPPED:
                self._groups[self._context].take_back(self._history.numbers[position], before)

    def look_up(self, *, may_stand: bool) -> bool:
        """Find the tokens that followed the newest n - 1 tokens.

        Args:
            may_stand: whether a large group may be laid out, although this can wait.

        Returns:
            Whether a group was laid out.
        """
        group = self._groups.get(self._context)
        if self._window is None and group is not None and self._shown == (group, group.count):
            return False
        length = self._history.length
        self.banned, self.standing, self._shown = [], None, None
        if length < self._back:
            return False
        first = self._first(length)
        if group is None:
            numbers, older, recent = self._history.numbers, self._older(), self._recent()
            found = len(older) + len(recent)
            if not found:  # most steps
                return False
            if found <= _FEW and self._back:  # without a context, they only become more
                newest = {numbers[at]: at for at in (*older, *recent)}
                if few := [token for token, at in newest.items() if at >= first]:
                    self.banned = [np.array(few, np.int32)]
                return False
            positions = np.asarray(older, np.int32)
            if recent:
                positions = np.concatenate([positions, np.array(recent, np.int32)])
            group = self._group(self._context, positions)
        leaves = self._window is not None and length > self._window
        is_due = group.is_due(first, leaves=leaves)
        if is_due and may_stand:
            # The history may have become shorter; positions before `settled` cannot be undone.
            self.settled = settled = max(self.settled, self._history.settled)
            group.lay_out(self._first(settled), first + _MANY if leaves else 0, settled)
        self.banned = group.banned(first, leaves=leaves)
        self.standing = group.standing
        if may_stand or not is_due:  # otherwise it is laid out in a later step
            self._shown = group, group.count
        if (
            self.standing is not None
            and is_dense(len(self.standing), self._vocab_size)
            and self.standing not in self._laid_out
        ):
            self._laid_out.append(self.standing)
            if len(self._laid_out) > _LAID_OUT:
                self._laid_out.pop(0).kept.clear()
        return is_due and may_stand

    def _recent(self) -> list[int]:
        """Find the positions after the newest tokens in the chains, ascending."""
        context, back, history = self._context, self._back, self._history.bytes
        found: list[int] = []
        at = self._heads[self._hash >> _BITS - _CHAIN_BITS]
        while at != _END:
            if history[4 * (at - back) : 4 * at] == context:
                found.append(at)
            at = self._before[at - self._base]
        found.reverse()
        return found

    def _older(self) -> list[int] | Tokens:
        """Find the positions after the newest tokens in the buckets, as an array if they are many.

        Of positions with equal tokens, later ones come last.
        """
        context, back, history = self._context, self._back, self._history
        value = self._hash >> self._low & 0xFFFFFFFF
        bucket = value >> self._shift
        start, end = self._starts[bucket], self._starts[bucket + 1]
        if end - start <= _FEW:
            hashes, said = self._hash_numbers, history.bytes
            found = [i for i in range(start, end) if hashes[i] == value]
            if found:
                positions = self._positions.data
                found = [positions[i] for i in found]
                if self._low and any(said[4 * (at - back) : 4 * at] != context for at in found):
                    return self._search()
            return found
        candidates = self._with_hash(value)
        if not self._follows(candidates, history.length):
            candidates = self._search()
        return candidates if len(candidates) > _FEW else candidates.tolist()


_NOWHERE = np.empty(0, np.int32)


class _Positions:
    """The positions after one context, if it came often since the index was made."""

    def __init__(self, positions: list[int]) -> None:
        self.positions = array("i", positions)

    def push(self, position: int, token: int) -> int:
        """See ``_Followers``."""
        self.positions.append(position)
        return _NEVER

    def take_back(self, token: int, before: int) -> None:
        """See ``_Followers``."""
        self.positions.pop()


class _DryRule(_Rule):
    """A ``dry`` rule, whose index keeps all positions.

    Args:
        spec: the rule.
        others: see ``_Rule``.

    Attributes:
        values: what is added after a match of each length.
        positions: the last positions after the newest tokens.
        matches: the tokens before and at each position; see ``_History.matches``.
        newest: the newest tokens.
        start: the first position that counts.
        shortest: the number of tokens that a match has at least.
        longest: the number of newest tokens that a match may have.
    """

    def __init__(self, spec: DrySpec, *others: Any) -> None:
        self._breaks = [-1]  # the last breaker when the index was made, and those since then
        super().__init__(_Terms.of(spec), *others)
        self.values = penalties(spec)
        self.positions = _NOWHERE
        self.shortest = spec.allowed_length

    def _put_into_buckets(self, reach: _Reach) -> None:
        """Sort positions by the hash of their context, and keep them all."""
        self._start = self._first(self._history.length - _TAKEN_BACK)
        order = np.arange(max(self._start - reach.start, 0), len(reach.tokens))
        keeps = reach.tokens < self._vocab_size
        if self._exempt is not None:
            is_exempt = keeps & self._exempt[np.minimum(reach.tokens, self._vocab_size - 1)]
            self._breaks += (reach.start + np.flatnonzero(is_exempt)[-1:]).tolist()
            keeps &= ~is_exempt
        if not keeps.all():
            order = order[keeps[order]]
        hashes = (reach.hashes(self._back) >> np.uint64(self._low)).astype(np.uint32).take(order)
        for shift in (0, 16):
            by_half = np.argsort((hashes >> np.uint32(shift)).astype(np.uint16), kind="stable")
            order, hashes = order.take(by_half), hashes.take(by_half)
        self._hashes, self._positions = hashes, (order + reach.start).astype(np.int32)

    def _is_break(self, token: int) -> bool:
        return self._exempt is not None and token < self._vocab_size and bool(self._exempt[token])

    def push(self, position: int) -> None:
        """Take the token at ``position``."""
        super().push(position)
        if self._is_break(self._history.numbers[position]):
            self._breaks.append(position)

    def take_back(self, count: int) -> None:
        """Undo the last pushes; the history has been shortened before."""
        super().take_back(count)
        while self._breaks[-1] >= self._history.length:
            self._breaks.pop()

    def look_up(self, *, may_stand: bool) -> bool:
        """Find the last positions after the newest tokens, and the tokens before them."""
        history, length = self._history, self._history.length
        self.longest = min(length - 1 - self._breaks[-1], MAX_MATCH)
        self.positions = self._last_positions() if self.longest >= self._back else _NOWHERE
        if len(self.positions):
            self.start = self._terms.start(history, length)
            self.matches, self.newest = history.matches(self.positions), history.newest()
        return False

    def search(self) -> None:
        """Find the positions token by token, because other contexts have the same hash."""
        self.positions = self._last(np.append(self._search(), np.array(self._recent(), np.int32)))
        self.matches = self._history.matches(self.positions)

    def _last_positions(self) -> Tokens:
        """Find the last positions after the newest tokens."""
        if (group := self._groups.get(self._context)) is None:
            recent = self._recent()
            if len(recent) > _FEW:
                self._groups[self._context] = _Positions(recent)
        else:
            recent = group.positions[-MAX_MATCHES:]
        value, hashes = self._hash >> self._low & 0xFFFFFFFF, self._hash_numbers
        end = bisect_right(hashes, value)
        start = bisect_left(hashes, value, max(end - MAX_MATCHES, 0), end)
        older = self._positions[start:end]
        if not recent:
            return self._last(older)
        return self._last(np.concatenate((older, np.array(recent, np.int32))))

    def _last(self, positions: Tokens) -> Tokens:
        """Select the last positions that count."""
        positions = positions[-MAX_MATCHES:]
        if self._window is None:
            return positions
        return positions[positions >= self._first(self._history.length)]


class _Rules:
    """The rules of a request, with its history.

    Args:
        request: the request.
        specs: the rules; no two are equal.
        vocab_size: tokens beyond it are not banned.

    Raises:
        UnknownTokenError: if a token is not known.
    """

    def __init__(self, request: Request, specs: Sequence[_Spec], vocab_size: int) -> None:
        self._specs, self._vocab_size = specs, vocab_size
        self._read(request)

    def _read(self, request: Request) -> None:
        """Read all tokens, from the beginning."""
        self._history = history = _History(request.prompt_array(), request.output_array())
        oldest = history.length - _TAKEN_BACK
        start = min(_Terms.of(spec).start(history, oldest) for spec in self._specs)
        reach = _Reach(history, start, self._vocab_size)
        self._rules = [
            _DryRule(spec, history, reach, self._vocab_size)
            if isinstance(spec, DrySpec)
            else _Rule(_Terms.of(spec), history, reach, self._vocab_size)
            for spec in self._specs
        ]
        self._remember(request.output_ids)
        for rule in self._rules:
            rule.look_up(may_stand=True)
        self._is_looked_up = True

    def __iter__(self) -> Iterator[_Rule]:
        return iter(self._rules)

    def follow(self, request: Request) -> None:
        """Take the new output ids, and take back the ids that the output has no longer.

        Raises:
            UnknownTokenError: if a token is not known.
        """
        newest, known = list(request.output_ids[self._start :]), len(self._newest)
        if newest == self._newest:
            return
        self._is_looked_up = False
        kept = known if newest[:known] == self._newest else self._kept(newest)
        if kept is None or len(newest) - kept > _NEW:
            request.drop_arrays()
            self._read(request)
            request.drop_arrays()
            return
        history = self._history
        if kept < known:
            history.length -= known - kept
            for rule in self._rules:
                rule.take_back(known - kept)
        for token in newest[kept:]:
            history.append(int(token))
            for rule in self._rules:
                rule.push(history.length - 1)
        self._remember(request.output_ids)

    def _remember(self, output_ids: Sequence[int]) -> None:
        """Remember the output ids that may be taken back."""
        self._start = max(len(output_ids) - _TAKEN_BACK, 0)
        self._newest = list(output_ids[self._start :])

    def _kept(self, newest: list[int]) -> int | None:
        """Count the unchanged output ids since ``_start``; ``None`` if all must be read again."""
        pairs = zip(newest, self._newest, strict=False)
        changed = (i for i, (now, before) in enumerate(pairs) if now != before)
        kept = next(changed, min(len(newest), len(self._newest)))
        if self._start and not kept:
            return None
        length = self._history.prompt_length + self._start + kept
        return None if length < max(rule.settled for rule in self._rules) else kept

    def look_up(self, *, may_stand: bool) -> bool:
        """Find the banned tokens, if they are not known yet; see ``_Rule.look_up``."""
        if self._is_looked_up:
            return False
        stood = False
        for rule in self._rules:
            stood = rule.look_up(may_stand=may_stand and not stood) or stood
        self._is_looked_up = True
        return stood


class NgramBatch(StateTable):
    """A table with one slot per request.

    All state is a function of (rules, prompt, output ids). The output may shrink.

    Args:
        vocab_size: the number of tokens; others, such as images' placeholders, are not banned.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__(columns=1)
        self._vocab_size = vocab_size

    def start(self, request: Request, specs: Sequence[_Spec]) -> None:
        """Let rules act on a request.

        Raises:
            UnknownTokenError: if one of the request's tokens is not known.
        """
        self.new(request, _Rules(request, specs, self._vocab_size))

    def advance(self, failed: Failures) -> None:
        """Read the new output ids; ``failed`` receives the requests that cannot go on."""
        may_stand = True  # one layout per step, so that no step has to wait for many
        for entry in self.entries:
            rules: _Rules = entry.what
            try:
                rules.follow(entry.request)
                may_stand = not rules.look_up(may_stand=may_stand) and may_stand
            except Exception as error:
                failed[entry.request] = error

    def additions(self) -> list[AnyAdditions]:
        """Return the bans and penalties of this step; no rule has a cell twice."""
        additions: list[AnyAdditions] = []
        banned: list[Tokens] = []
        rows: list[int] = []
        penalized: list[tuple[int, _DryRule]] = []
        for entry, row in zip(self.entries, self.values[ROW, : len(self)].tolist(), strict=True):
            for rule in entry.what:
                if isinstance(rule, _DryRule):
                    if len(rule.positions):
                        penalized.append((row, rule))
                    continue
                banned += rule.banned
                rows += [row] * len(rule.banned)
                if rule.standing is not None:
                    additions.append(rule.standing.on(row))
        if banned:
            tokens: Ints = np.concatenate(banned, dtype=np.int64)
            cells = Cells(np.repeat(rows, [*map(len, banned)]), tokens)
            additions.append(Additions(cells, _BAN.repeat(len(tokens))))
        if penalized:
            additions.append(_penalties(*zip(*penalized, strict=True)))
        return additions


def _penalties(rows: Sequence[int], rules: Sequence[_DryRule]) -> Additions:
    """Lay out the penalties of all rows, one for each token that has followed."""
    of_rule = np.repeat(np.arange(len(rules)), [len(rule.positions) for rule in rules])
    bounds = np.array([(rule.shortest, rule.longest, rule.start) for rule in rules])
    shortest, longest, start = bounds[of_rule].T
    matches = np.concatenate([rule.matches for rule in rules]).view(np.int32)
    matches = matches.reshape(-1, MAX_MATCH + 1)
    newest = np.frombuffer(b"".join([rule.newest for rule in rules]), np.int32)
    lengths = _newest_run(matches[:, :MAX_MATCH] == newest.reshape(-1, MAX_MATCH)[of_rule])
    if (mistaken := lengths < shortest).any():
        for i in set(of_rule[mistaken].tolist()):
            rules[i].search()
        left = [(row, rule) for row, rule in zip(rows, rules, strict=True) if len(rule.positions)]
        return _penalties(*zip(*left, strict=True)) if left else Additions(NO_CELLS, _NO_VALUES)
    positions = np.concatenate([rule.positions for rule in rules])
    lengths = np.minimum(lengths, np.minimum(longest, positions - start))
    # One number for each match: rule, token, length. The last of a rule and token is the longest.
    keys = np.sort((of_rule << 32 | matches[:, MAX_MATCH]) << 8 | lengths)
    is_last = np.append(keys[1:] >> 8 != keys[:-1] >> 8, True)
    keys = keys[is_last]
    of_rule = keys >> 40
    values = np.stack([rule.values for rule in rules])[of_rule, keys & 0xFF]
    return Additions(Cells(np.array(rows)[of_rule], keys >> 8 & 0xFFFFFFFF), values)


def _newest_run(matches: Mask) -> Ints:
    """Count the tokens at the end of each row of ``[rows, MAX_MATCH]`` that match."""
    differs = ~np.packbits(matches, axis=1).view(">u8").ravel().astype(np.uint64)
    lowest = differs & (~differs + np.uint64(1))
    return np.where(lowest, np.frexp(lowest.astype(np.float64))[1] - 1, MAX_MATCH)
