"""The history rules: ``no_repeat_ngram``, no n-gram twice, and ``dry``, no long repetition.

At each step, a rule needs the earlier positions that follow the same n - 1 tokens as the next
position, its context. These positions are in two places. An index finds most of them by a hash of
the context. A few hundred loose ones are compared with the newest tokens, all loose positions of
all rules in one numpy call. The newest tokens are loose, since they may be taken back; with a
window, so are the oldest, which are about to leave it. Every few hundred steps, an index takes
over what is loose. It is made aside, for few rules in a step. So the cost of a step does not depend
on n, the window, the history's length or other requests.

``dry`` has the same, for the newest ``allowed_length`` tokens. It keeps all positions, and compares
the tokens before the last of them with the newest tokens, for all requests together.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import NamedTuple

import numpy as np

from ....spec import DrySpec, NoRepeatNgramSpec
from ....spec.kinds.dry import MAX_MATCH, MAX_MATCHES
from ..automaton import Ints, UnknownTokenError
from ..kinds.dry import penalties
from ..logits import Additions, AnyAdditions, Cells, Floats, Mask, RowAdditions, Standing, mask
from .ngram_index import (
    BAN,
    TAKEN_BACK,
    Entries,
    Hashes,
    History,
    Index,
    Reach,
    Tokens,
    dropping,
    following,
    hash_of,
)
from .state_table import ROW, Failures, Outputs, Request, StateTable

LENGTH, BACK, ORIGIN, WINDOW, IS_DRY, DROPPING, CONTEXT, LOOSE, FULL, CAPACITY, BREAK = range(1, 12)
"""Columns: the length of the history; the number of tokens of a context; the first position at
which an n-gram may end; the number of tokens that count; whether the rule is a ``dry``; the factor
that drops the oldest token of a context from its hash; the hash of the newest context; the number
of loose positions; the length at which there must be another layout; the number of tokens that
there is room for in the history, in one slot of each; the newest position of a breaker of ``dry``,
or -1."""

ROOM = 640
"""The most loose positions of a rule."""

FEW = 256
"""The most settled positions for which a rule has no index."""

EARLY = 8
"""Work is done this many steps before it must be, so that it can be tried again if it fails."""

MANY = 512
"""More tokens than this that follow one context are added as they are in the index, uncopied."""

_NEW = 128
"""The most new output ids that are taken without reading the whole history again."""

_NEAR = 16
"""So many tokens before a position are compared first, for ``dry``: they are in one cache line."""

_RECENT = 128
"""So many newest tokens are beside the loose positions: a context after tokens are taken back."""

_NEVER = np.uint64((1 << 64) - 1)
"""The hash of a loose position that is not banned, or no longer the newest of its n-gram."""

_LOW = (1 << 32) - 1
"""Masks the position or token in a number that has a slot in higher bits."""

_ALL = 1 << 62
"""The window of a rule without one."""

_Spec = NoRepeatNgramSpec | DrySpec


@dataclass(slots=True, eq=False)
class _Rule:
    """One of a request's rules.

    Attributes:
        history: the request's history.
        back: the number of tokens of a context.
        window: the number of tokens that count.
        origin: the first position at which an n-gram may end.
        exempt: tokens whose positions do not count.
        penalties: of ``dry``, by the length of a match; ``None`` for others.
        index: the positions that are not loose, if there are many.
        oldest: positions before those of the index, which are loose because they leave the window.
        settled: earlier positions can no longer be taken back.
        breaks: the positions of exempt tokens, of ``dry``: -1, the last one when the history was
            read, and those since then.
    """

    history: History
    back: int
    window: int
    origin: int
    exempt: Mask | None
    penalties: Floats | None
    index: Index | None = None
    oldest: Entries | None = None
    settled: int = 0
    breaks: list[int] = field(default_factory=lambda: [-1])

    @classmethod
    def of(cls, spec: _Spec, history: History, vocab_size: int) -> "_Rule":
        """Make a rule that has read nothing."""
        origin, by_length = 0, None
        if isinstance(spec, DrySpec):
            back, window, exempt = spec.allowed_length, spec.range, spec.breaker_token_ids
            by_length = penalties(spec)
        else:
            back, window, exempt = spec.n - 1, spec.window, spec.allowed_token_ids
            origin = history.prompt_length if spec.output_only else 0
        is_exempt = mask(exempt, vocab_size) if exempt else None
        return cls(history, back, window or _ALL, origin + back, is_exempt, by_length)

    @property
    def is_dry(self) -> bool:
        """Whether all positions of a context count, not only the newest of each token."""
        return self.penalties is not None

    def exempts(self, tokens: Tokens) -> Mask:
        """Return which tokens are exempt; those beyond the vocabulary are not."""
        if self.exempt is None:
            return np.zeros(len(tokens), np.bool_)
        last = len(self.exempt) - 1
        return self.exempt[np.minimum(tokens, last)] & (tokens <= last)

    def first(self, length: int) -> int:
        """Return the first position at which an n-gram may end, in a history of some length."""
        return max(length - self.window + self.back, self.origin)


class _Layout:
    """A new layout of a rule's positions, made aside.

    Args:
        rule: the rule.
        length: the length of the history.
        reach: a part of the history: all that counts if the rule has no index, or what comes
            after the index.
        vocab_size: tokens beyond it are not banned.

    Attributes:
        index: see ``_Rule``.
        oldest: see ``_Rule``.
        settled: see ``_Rule``.
        context: the hash of the newest context.
        full: the length at which there must be another layout.
        hashes: of the contexts of the loose positions.
        tokens: at the loose positions.
        positions: the loose positions; those since the last layout come last.
        earlier: for each, the place of the loose position that it has superseded, or -1.
    """

    def __init__(self, rule: _Rule, length: int, reach: Reach, vocab_size: int) -> None:
        history, every = rule.history, rule.is_dry
        settled = history.settled(length)
        first = start = rule.first(settled)
        self.settled = settled
        index, oldest = rule.index, None
        hashes = reach.hashes(rule.back)
        leaves = rule.window < _ALL and not every
        steps = (ROOM - 2 * TAKEN_BACK) // 2  # so many positions may leave until the next layout
        if index is not None or settled - first > FEW:
            middle = rule.first(length + steps) if leaves else first
            done = first if index is None else max(first, index.end)
            new = Entries.of(reach, hashes, done, rule.exempt, every=every)
            if rule.oldest is not None:
                new = rule.oldest.before(new, first)
            if index is not None:
                index = index.merged(new, settled, every=every)
                if middle > first:
                    oldest, index = index.split(middle)
            else:
                if middle > first:
                    oldest, new = new.split(middle)
                index = Index.of(new, settled)
            start = max(settled, first)
        self.context = int(hashes[length - reach.start])
        self.full = length + ROOM - max(length - start, 0)
        if index is not None and leaves:
            self.full = length + steps
        self.index, self.oldest = index, oldest
        part = slice(start - reach.start, max(length, start) - reach.start)
        hashes, tokens = hashes[part], reach.tokens[part]
        positions = np.arange(start, start + len(tokens), dtype=np.int32)
        counts = (tokens < vocab_size) & ~rule.exempts(tokens)
        if index is not None and not every:
            for i in np.flatnonzero(counts).tolist():
                span = index.find(int(hashes[i]))
                counts[i] = span is None or not index.has(int(tokens[i]), *span)
        hashes = np.where(counts, hashes, _NEVER)
        if oldest is not None:
            hashes = np.concatenate([oldest.hashes, hashes])
            tokens = np.concatenate([oldest.tokens, tokens])
            positions = np.concatenate([oldest.positions, positions])
        self.tokens, self.positions = tokens, positions
        self.hashes, self.earlier = _superseding(hashes, tokens, every=every)


def _superseding(hashes: Hashes, tokens: Tokens, *, every: bool) -> tuple[Hashes, Tokens]:
    """Find the loose positions that later ones supersede.

    Returns:
        The hashes without those of superseded positions, and ``earlier`` of ``_Layout``.
    """
    apart = MAX_MATCHES if every else 1
    order = np.argsort(hashes, kind="stable") if every else np.lexsort((tokens, hashes))
    before, after = order[:-apart], order[apart:]
    same = (hashes[before] == hashes[after]) & (hashes[after] != _NEVER)
    if not every:
        same &= tokens[before] == tokens[after]
    before, after = before[same], after[same]
    earlier = np.full(len(hashes), -1, np.int32)
    earlier[after] = before
    hashes = hashes.copy()
    hashes[before] = _NEVER
    return hashes, earlier


class _Loose(NamedTuple):
    """The loose positions of all slots, ``[slots, ROOM]`` each; see ``_Layout``.

    ``recent`` are the newest tokens, ``[slots, _RECENT]``: each at its position, modulo that.
    """

    hashes: Hashes
    tokens: Tokens
    positions: Tokens
    earlier: Tokens
    recent: Tokens

    @classmethod
    def empty(cls, slots: int) -> "_Loose":
        """Make room for slots."""
        hashes = np.empty((slots, ROOM), np.uint64)
        tokens, positions, earlier = np.empty((3, slots, ROOM), np.int32)
        return cls(hashes, tokens, positions, earlier, np.zeros((slots, _RECENT), np.int32))

    def doubled(self) -> "_Loose":
        """Copy, with room for twice as many slots."""
        more = zip(self, _Loose.empty(len(self.hashes)), strict=True)
        return _Loose._make(np.concatenate(pair) for pair in more)


_Span = tuple[int, Index, int, int]
"""The positions of a context in the index of a slot: from where to where they are there."""


class _Found(NamedTuple):
    """The positions with the newest contexts.

    Attributes:
        slots: the slot of each loose one, ascending.
        places: its place among the slot's loose positions.
        positions: these positions.
        tokens: the token at each.
        few: those of n-gram rules in indexes: the slot of each, and the token at it.
        many: the same where they are more than ``MANY``.
        dry: those of ``dry`` in indexes.
    """

    slots: Ints
    places: Ints
    positions: Tokens
    tokens: Tokens
    few: tuple[Ints, Tokens]
    many: list[_Span]
    dry: list[_Span]


class _Matched(NamedTuple):
    """The matches of ``dry`` at a step.

    Attributes:
        lengths: of each slot, the length of its history.
        oldest: of each slot, the first position that would be among the matches.
        keys: the positions, and in higher bits their slots, ascending, and a number above all.
        matches: how many tokens before each are the same as the newest tokens, and a number.
    """

    lengths: Ints
    oldest: Ints
    keys: Ints
    matches: Ints

    @classmethod
    def of(cls, keys: Ints, matches: Ints, lengths: Ints) -> "_Matched":
        """Keep the matches of a step, at most ``MAX_MATCHES`` of each slot."""
        counts = np.bincount(keys >> 32, minlength=len(lengths))
        is_full = counts >= MAX_MATCHES
        oldest = np.where(is_full, 0, -1)
        oldest[is_full] = keys[counts.cumsum()[is_full] - MAX_MATCHES] & _LOW
        return cls(lengths.copy(), oldest, np.append(keys, _ALL), np.append(matches, 0))

    def next(self, keys: Ints, lengths: Ints, backs: Ints) -> tuple[Ints, Mask]:
        """Compute the matches after one more token, for positions with the newest contexts.

        A match goes on if the position before was among the matches. Otherwise the tokens of the
        context are all that is the same.

        Args:
            keys: see above.
            lengths: see above.
            backs: of each slot, the number of tokens of a context.

        Returns:
            The matches, and which of them are right; others are unknown.
        """
        slots, positions = keys >> 32, keys & _LOW
        place = self.keys.searchsorted(keys - 1)
        goes_on = self.keys[place] == keys - 1
        further = np.minimum(self.matches[place] + 1, MAX_MATCH)
        is_known = goes_on | (positions > self.oldest[slots])
        is_known &= (self.lengths == lengths - 1)[slots]
        return np.where(goes_on, further, backs[slots]), is_known


class _BySlot:
    """What a step reads of the rules, by slot.

    Args:
        rules: the rules of all slots.
        vocab_size: tokens beyond it are not banned.

    Attributes:
        histories: the tokens of each history, by one of its slots.
        of_history: ``[histories]``, these slots.
        exempting: the exempt tokens of the rules that have any.
        indexes: the indexes of n-gram rules with a context.
        dry: the indexes of ``dry``.
        always: the tokens that the indexes of rules without a context ban.
        standing: the bans of those indexes that ban many tokens.
        on_rows: the same bans on their rows; ``None`` until they are placed.
        penalties: ``[slots, 1 + MAX_MATCH]``; zeros for others than ``dry``.
    """

    def __init__(self, rules: Sequence[_Rule], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        first = {rule.history: slot for slot, rule in enumerate(rules)}
        self.histories = {slot: history.numbers for history, slot in first.items()}
        self.of_history = np.array([*self.histories], np.int64)
        self.exempting = {
            slot: rule.exempt.data for slot, rule in enumerate(rules) if rule.exempt is not None
        }
        none = np.zeros(1 + MAX_MATCH, np.float32)
        self.penalties = np.array(
            [none if rule.penalties is None else rule.penalties for rule in rules]
        )
        self.indexes, self.dry = dict[int, Index](), dict[int, Index]()
        self.always, self.standing = dict[int, memoryview](), dict[int, Standing]()
        self._few = dict[int, _Span]()
        self._few_tokens: tuple[Ints, Tokens] | None = None
        self.on_rows: list[RowAdditions] | None = None
        for slot, rule in enumerate(rules):
            self.put(slot, rule)

    @property
    def few(self) -> tuple[Ints, Tokens]:
        """The bans of rules without a context that ban few tokens: the slot of each, the token."""
        if self._few_tokens is None:
            self._few_tokens = _tokens_in([*self._few.values()])
        return self._few_tokens

    def put(self, slot: int, rule: _Rule) -> None:
        """Follow a rule's new index."""
        for each in (self.indexes, self.dry, self.always, self.standing, self._few):
            each.pop(slot, None)
        self._few_tokens = self.on_rows = None
        if (index := rule.index) is None:
            return
        if rule.back:
            (self.dry if rule.is_dry else self.indexes)[slot] = index
        elif (span := index.find(0)) is not None:
            self.always[slot] = index.mask(self._vocab_size)
            if span[1] - span[0] > MANY:
                self.standing[slot] = index.standing(*span, self._vocab_size, moves=False)
            else:
                self._few[slot] = slot, index, *span


class NgramBatch(StateTable):
    """A table with one slot per request and rule.

    All state is a function of (rules, prompt, output ids). The output may shrink.

    Args:
        vocab_size: the number of tokens; others, such as images' placeholders, are not banned.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__(columns=12)
        self._vocab_size = vocab_size
        self._loose = _Loose.empty(self.values.shape[1])
        self._found: _Found | None = None  # unless a position has come or gone since
        self._matched: _Matched | None = None  # of the last step, unless slots were changed since
        self._by_slot: _BySlot | None = None  # unless slots were changed since
        self._read: Outputs | None = None  # by the last step

    def start(self, request: Request, specs: Sequence[_Spec]) -> None:
        """Let rules act on a request: all of them, or none if this raises.

        Raises:
            UnknownTokenError: if one of the request's tokens is not known.
        """
        history = History(request.prompt_array(), request.output_array())
        rules = [_Rule.of(spec, history, self._vocab_size) for spec in specs]
        length = len(request.prompt_ids) + len(request.output_ids)
        layouts = self._read_all(rules, length)
        self.make_room(len(rules))
        for rule, layout in zip(rules, layouts, strict=True):
            slot = self.new(request, rule).slot
            self._matched = None
            self.values[BACK:CONTEXT, slot] = (
                rule.back,
                rule.origin,
                rule.window,
                rule.is_dry,
                np.uint64(dropping(rule.back)).view(np.int64),
            )
            self._put(slot, length, layout)

    def _read_all(self, rules: Sequence[_Rule], length: int) -> list[_Layout]:
        """Lay out all positions of rules of one history, which have read nothing."""
        history, vocab_size = rules[0].history, self._vocab_size
        settled = history.settled(length)
        starts = [min(rule.first(settled), length) - rule.back for rule in rules]
        reach = Reach(history.tokens, max(min(starts), 0), settled, length, vocab_size)
        for rule in rules:
            if rule.is_dry:
                breaks = np.flatnonzero(rule.exempts(reach.tokens)) + reach.start
                rule.breaks += breaks.tolist()
        return [_Layout(rule, length, reach, vocab_size) for rule in rules]

    def _put(self, slot: int, length: int, layout: _Layout) -> None:
        """Let a slot have a layout."""
        rule: _Rule = self.entries[slot].what
        rule.index, rule.oldest, rule.settled = layout.index, layout.oldest, layout.settled
        # Only the newest of the settled ones counts; -1 stays as the first.
        del rule.breaks[1 : max(bisect_left(rule.breaks, rule.settled) - 1, 1)]
        loose, count = self._loose, len(layout.tokens)
        loose.hashes[slot, :count] = layout.hashes
        loose.hashes[slot, count:] = _NEVER
        loose.tokens[slot, :count] = layout.tokens
        loose.positions[slot, :count] = layout.positions
        loose.earlier[slot, :count] = layout.earlier
        recent = np.arange(max(length - _RECENT, 0), length)
        loose.recent[slot, recent % _RECENT] = rule.history.tokens[recent]
        context, room = np.uint64(layout.context).view(np.int64), len(rule.history.tokens)
        self.values[CONTEXT:, slot] = context, count, layout.full, room, rule.breaks[-1]
        self.values[LENGTH, slot] = length
        self._found = None
        by_slot, self._by_slot = self._by_slot, None  # it stays so if ``put`` fails
        if by_slot is not None and slot < len(by_slot.penalties):
            by_slot.put(slot, rule)
            self._by_slot = by_slot

    def make_room(self, slots: int) -> None:
        """See ``StateTable``."""
        while len(self) + slots > len(self._loose.hashes):
            self._loose = self._loose.doubled()
        super().make_room(slots)

    def delete(self, slot: int) -> None:
        """See ``StateTable``."""
        self._found = self._by_slot = self._read = self._matched = None
        for each in self._loose:
            each[slot] = each[len(self) - 1]
        super().delete(slot)

    def advance(self, failed: Failures) -> None:
        """Read the new output ids; ``failed`` receives the requests that cannot go on."""
        outputs, read, self._read = self.outputs(), self._read, None
        if outputs.follow(read) and min(outputs.newest) >= 0:  # most steps
            tokens = np.array(outputs.newest)[outputs.requests.of_slot]
            self._push(tokens)
            self._lay_out_due(failed)
        elif not outputs.equal(read):
            self._catch_up(outputs, failed)
        if self._found is None:
            self._found = self._find()
        if not failed:
            self._read = outputs

    def _catch_up(self, outputs: Outputs, failed: Failures) -> None:
        """Take any number of tokens; some of the last may have been taken back or replaced."""
        requests, output_ids, of_slot = outputs.requests
        for request in requests:
            try:
                self._take_back(request)
            except Exception as error:
                failed[request] = error
        prompts = np.array([len(request.prompt_ids) for request in requests])
        lengths = np.array(outputs.lengths) + prompts
        while True:
            grows = np.array([request not in failed for request in requests])
            known = self.values[LENGTH, : len(self)]
            slots = np.flatnonzero((lengths[of_slot] > known) & grows[of_slot])
            if not len(slots):
                return
            tokens = np.full(len(self), -1)
            which, at = of_slot[slots], known[slots]
            places = zip(which.tolist(), (at - prompts[which]).tolist(), strict=True)
            tokens[slots] = [output_ids[i][place] for i, place in places]
            for slot in slots[tokens[slots] < 0].tolist():
                failed[self.entries[slot].request] = UnknownTokenError()
            self._push(tokens)
            self._lay_out_due(failed)

    def _take_back(self, request: Request) -> None:
        """Forget the tokens that the output has no longer; if they are too many, read all anew."""
        slots = [entry.slot for entry in request.entries if entry.table is self]
        rules: list[_Rule] = [self.entries[slot].what for slot in slots]
        history, output_ids = rules[0].history, request.output_ids
        lengths = self.values[LENGTH, slots].tolist()
        known = lengths[0] - history.prompt_length
        first = max(known - TAKEN_BACK, 0)
        now = [*output_ids[first : max(known, 0)]]
        before = history.numbers[history.prompt_length + first :]
        changed = (i for i, token in enumerate(now) if token != before[i])
        kept = first + next(changed, len(now))
        length = history.prompt_length + kept
        if (
            min(lengths) != max(lengths)
            or known < 0
            or (first and kept == first)
            or (kept < known and length < max(rule.settled for rule in rules))
            or len(output_ids) - kept > _NEW
        ):
            self._read_again(request, slots)
        elif kept < known:
            for slot in slots:
                self._shorten(slot, length)

    def _read_again(self, request: Request, slots: Sequence[int]) -> None:
        """Read all tokens of a request, from the beginning."""
        request.drop_arrays()
        try:
            history = History(request.prompt_array(), request.output_array())
        finally:
            request.drop_arrays()
        rules = [
            replace(self.entries[slot].what, history=history, index=None, oldest=None, breaks=[-1])
            for slot in slots
        ]
        length = len(request.prompt_ids) + len(request.output_ids)
        layouts = self._read_all(rules, length)
        self._matched = self._by_slot = None
        for slot, rule, layout in zip(slots, rules, layouts, strict=True):
            self.entries[slot].what = rule
            self._put(slot, length, layout)

    def _shorten(self, slot: int, length: int) -> None:
        """Take the newest positions of a slot back."""
        rule: _Rule = self.entries[slot].what
        hashes, _, positions, earlier, _ = (each[slot] for each in self._loose)
        place = int(self.values[LOOSE, slot])
        while place and positions[place - 1] >= length:
            place -= 1
            if earlier[place] >= 0:
                hashes[earlier[place]] = hashes[place]
            hashes[place] = _NEVER
        while rule.breaks[-1] >= length:
            rule.breaks.pop()
        context = hash_of(rule.history.numbers[max(length - rule.back, 0) : length])
        self.values[CONTEXT, slot] = np.uint64(context).view(np.int64)
        self.values[LOOSE, slot] = place
        self.values[LENGTH, slot] = length
        self.values[BREAK, slot] = rule.breaks[-1]
        self._found = self._matched = None

    def _push(self, tokens: Ints) -> None:
        """Take a token in each slot, ``[slots]``; in those with -1, none.

        There is room for a loose position in each of these slots.
        """
        found, loose, values = self._found or self._find(), self._loose, self.values[:, : len(self)]
        length, context = values[LENGTH], values[CONTEXT].view(np.uint64)
        by_slot = self._by_slot or self._look_up()
        self._make_histories_longer(by_slot)
        each, positions = tokens.tolist(), length.tolist()
        for slot, numbers in by_slot.histories.items():
            numbers[positions[slot]] = each[slot]
        oldest = length - values[BACK]
        gone = loose.recent[np.arange(len(self)), oldest % _RECENT].astype(np.int64)
        gone = np.where(oldest == length, tokens, gone)
        dropped = np.where(oldest < 0, 0, gone).astype(np.uint64)
        is_known = tokens < self._vocab_size
        if not is_known.all():
            self._matched = None  # no match with such a token at its end is kept
        is_there = (is_known & (tokens >= 0)).tolist()
        counts = is_known & (length >= values[ORIGIN])
        for slot, exempt in by_slot.exempting.items():
            if is_there[slot] and exempt[each[slot]]:
                counts[slot] = False
                self.entries[slot].what.breaks.append(positions[slot])
                values[BREAK, slot] = positions[slot]
        for slot, banned in by_slot.always.items():
            if is_there[slot] and banned[each[slot]]:
                counts[slot] = False  # the index bans it for as long as it stands
        few, banned_in_few = found.few
        counts[few[banned_in_few == tokens[few]]] = False
        for slot, index, start, end in found.many:
            if index.has(each[slot], start, end):
                counts[slot] = False
        superseded, places = self._superseded(found, tokens, counts)
        earlier = np.full(len(self), -1, np.int32)
        earlier[superseded] = places
        slots = np.flatnonzero(tokens >= 0)
        newest = following(context, tokens, dropped, values[DROPPING].view(np.uint64))
        hashes = np.where(counts, context, _NEVER)
        at = slots, values[LOOSE, slots]
        # From here on, nothing can fail.
        loose.hashes[superseded, places] = _NEVER
        loose.hashes[at] = hashes[slots]
        loose.tokens[at] = tokens[slots]
        loose.positions[at] = length[slots]
        loose.earlier[at] = earlier[slots]
        loose.recent[slots, length[slots] % _RECENT] = tokens[slots]
        context[slots] = newest[slots]
        values[LOOSE, slots] += 1
        values[LENGTH, slots] += 1
        self._found = None

    def _superseded(self, found: _Found, tokens: Ints, counts: Mask) -> tuple[Ints, Ints]:
        """Find the loose positions, at most one in a slot, that new tokens supersede.

        Returns:
            Their slots and places.
        """
        slots, places = found.slots, found.places
        is_dry = self.values[IS_DRY, : len(self)] == 1
        same = found.tokens == tokens[slots]
        same &= (counts & ~is_dry)[slots]
        if not is_dry.any():
            return slots[same], places[same]
        last = np.bincount(slots, minlength=len(self)) >= MAX_MATCHES
        full = np.flatnonzero(last & is_dry & counts & (tokens >= 0))
        oldest = places[slots.searchsorted(full)]
        return np.append(slots[same], full), np.append(places[same], oldest)

    def _lay_out_due(self, failed: Failures) -> None:
        """Lay out loose positions, in as few slots as possible in a step."""
        left = (self.values[FULL] - self.values[LENGTH])[: len(self)]
        for slot in _due(left):
            try:
                self._lay_out(slot)
            except Exception as error:
                if left[slot] <= 0:  # otherwise, a later step tries again
                    failed[self.entries[slot].request] = error

    def _lay_out(self, slot: int) -> None:
        rule: _Rule = self.entries[slot].what
        length, history = int(self.values[LENGTH, slot]), rule.history
        settled = history.settled(length)
        start = rule.first(settled) if rule.index is None else rule.index.end
        start = max(min(start, length) - rule.back, 0)
        reach = Reach(history.tokens, start, settled, length, self._vocab_size)
        self._put(slot, length, _Layout(rule, length, reach, self._vocab_size))

    def _find(self) -> _Found:
        """Find the positions with the newest contexts."""
        values = self.values[:, : len(self)]
        most = int(values[LOOSE].max(initial=0))
        contexts = values[CONTEXT].view(np.uint64)
        same = np.flatnonzero(self._loose.hashes[: len(self), :most] == contexts[:, None])
        slots, places = np.divmod(same, max(most, 1))
        by_slot = self._by_slot or self._look_up()
        numbers = contexts.tolist()
        indexed, dry = (
            [
                (slot, index, *span)
                for slot, index in indexes.items()
                if (span := index.find(numbers[slot])) is not None
            ]
            for indexes in (by_slot.indexes, by_slot.dry)
        )
        many = [span for span in indexed if span[3] - span[2] > MANY]
        few = [span for span in indexed if span[3] - span[2] <= MANY] if many else indexed
        positions, at = self._loose.positions[slots, places], self._loose.tokens[slots, places]
        return _Found(slots, places, positions, at, _tokens_in(few), many, dry)

    def _look_up(self) -> _BySlot:
        self._by_slot = _BySlot([entry.what for entry in self.entries], self._vocab_size)
        return self._by_slot

    def _make_histories_longer(self, by_slot: _BySlot) -> None:
        """Make room for more tokens, in as few histories as possible in a step."""
        slots = by_slot.of_history
        length = self.values[LENGTH, slots]
        left = self.values[CAPACITY, slots] - length
        for i in _due(left):
            slot = int(slots[i])
            history: History = self.entries[slot].what.history
            try:
                history.make_room(int(length[i]))
            except Exception:
                if left[i] <= 0:  # otherwise, a later step tries again
                    raise
            else:
                by_slot.histories[slot] = history.numbers
                self.values[CAPACITY, slot] = len(history.tokens)

    def additions(self) -> list[AnyAdditions]:
        """Return the bans and penalties of this step; no rule has a cell twice."""
        found, by_slot = self._found or self._find(), self._by_slot or self._look_up()
        values, slots = self.values[:, : len(self)], found.slots
        first = np.maximum(values[LENGTH] - values[WINDOW] + values[BACK], values[ORIGIN])
        counts = found.positions >= first[slots]
        is_dry = values[IS_DRY] == 1
        bans = counts & ~is_dry[slots]
        rows = values[ROW].tolist()
        if by_slot.on_rows is None or self.changed:
            by_slot.on_rows = [each.on(rows[slot]) for slot, each in by_slot.standing.items()]
            self.changed = False
        additions: list[AnyAdditions] = [*by_slot.on_rows]
        for slot, index, start, end in found.many:
            standing = index.standing(start, end, self._vocab_size, moves=True)
            additions.append(standing.on(rows[slot]))
        of = np.concatenate([slots[bans], found.few[0], by_slot.few[0]])
        token_ids = np.concatenate([found.tokens[bans], found.few[1], by_slot.few[1]])
        added = BAN.repeat(len(of))
        if is_dry.any():
            penalized = self._penalized(found, counts & is_dry[slots], first)
            of, token_ids = np.append(of, penalized[0]), np.append(token_ids, penalized[1])
            added = np.append(added, by_slot.penalties[penalized[0], penalized[2]])
        if len(of):
            cells = Cells(values[ROW][of], token_ids.astype(np.int64))
            additions.append(Additions(cells, added))
        return additions

    def _penalized(self, found: _Found, loose: Mask, first: Ints) -> tuple[Ints, Ints, Ints]:
        """Find the tokens that ``dry`` penalizes: all that have followed a match.

        Args:
            found: the positions with the newest contexts.
            loose: which of its loose positions count.
            first: of each slot, the first position that counts.

        Returns:
            The slots, the tokens, and the length of the longest match of each.
        """
        at, followers, sizes = [found.positions[loose]], [found.tokens[loose]], list[int]()
        for _, index, start, end in found.dry:
            newest = slice(max(start, end - MAX_MATCHES), end)
            at.append(index.positions[newest])
            followers.append(index.tokens[newest])
            sizes.append(newest.stop - newest.start)
        of = np.array([slot for slot, *_ in found.dry], np.int64)
        keys = np.append(found.slots[loose], of.repeat(sizes)) << 32 | np.concatenate(at)
        order = np.argsort(keys, kind="stable")  # which is fast for two ascending parts
        keys, tokens = keys[order], np.concatenate(followers)[order]
        values, matched = self.values[:, : len(self)], self._matched
        self._matched = None
        lengths, backs = values[LENGTH], values[BACK]
        longest = np.minimum(lengths - 1 - values[BREAK], MAX_MATCH)
        slots = keys >> 32
        ends = np.bincount(slots, minlength=len(self)).cumsum()
        stay = np.arange(len(keys)) >= (ends - MAX_MATCHES)[slots]
        stay &= keys & _LOW >= np.where(longest < backs, _ALL, first)[slots]
        if not stay.all():
            stay = np.flatnonzero(stay)
            keys, slots, tokens = keys[stay], slots[stay], tokens[stay]
        if matched is None:
            matches, is_known = backs[slots], np.zeros(len(keys), np.bool_)
        else:
            matches, is_known = matched.next(keys, lengths, backs)
        if len(unknown := np.flatnonzero(~is_known)):
            matches[unknown] = self._matches(slots[unknown], keys[unknown] & _LOW)
        self._matched = _Matched.of(keys, matches, lengths)
        start = np.maximum(lengths - values[WINDOW], 0)[slots]
        matches = np.minimum(matches, np.minimum(longest[slots], (keys & _LOW) - start))
        # One number for each match: slot, token, length. The last of a slot and token is longest.
        keys = np.sort((slots << 32 | tokens) << 8 | matches)
        is_last = np.append(keys[1:] >> 8 != keys[:-1] >> 8, True)[: len(keys)]
        keys = keys[is_last]
        return keys >> 40, keys >> 8 & _LOW, keys & 0xFF

    def _matches(self, slots: Ints, positions: Ints) -> Ints:
        """Count the tokens before some positions that are the same as the newest, to ``MAX_MATCH``.

        Args:
            slots: the slot of each position, ascending.
            positions: the positions.
        """
        matches = self._near_matches(slots, positions, _NEAR)
        if len(far := np.flatnonzero(matches == _NEAR)):
            matches[far] = self._near_matches(slots[far], positions[far], MAX_MATCH)
        return matches

    def _near_matches(self, slots: Ints, positions: Ints, most: int) -> Ints:
        """Count, up to ``most``; see ``_matches``."""
        which, first = np.unique(slots, return_index=True)
        ends = [*first[1:].tolist(), len(slots)]
        at = positions.astype(np.intp)
        histories = [self.entries[slot].what.history for slot in which.tolist()]
        every = [
            history.windows(most)[at[start:end]]
            for history, start, end in zip(histories, first.tolist(), ends, strict=True)
        ]
        windows = np.concatenate(every).view(np.int32).reshape(-1, most)
        newest = self.values[LENGTH, which][:, None] + np.arange(-most, 0)
        tokens = np.where(newest < 0, -1, self._loose.recent[which[:, None], newest % _RECENT])
        of = np.repeat(np.arange(len(which)), np.diff(np.append(first, len(slots))))
        return _newest_run(windows == tokens[of])


def _due(left: Ints) -> list[int]:
    """Choose slots for some work, so that all are in time and a step has as little as possible.

    Args:
        left: ``[slots]``, the number of steps after which a slot must be chosen.
    """
    if left.min(initial=2 * (len(left) + EARLY)) > len(left) + EARLY:  # most steps
        return []
    order = np.argsort(left, kind="stable")
    # So many in each step are enough for the first one, the first two, and so on.
    a_step = np.arange(1, len(left) + 1) / np.maximum(left[order] - EARLY, 1)
    most = float(a_step.max(initial=0))
    return order[: ceil(most)].tolist() if most >= 1 else []


def _slots_of(spans: Sequence[_Span]) -> Ints:
    """Return the slot of each position of some spans."""
    numbers = np.array([(slot, end - start) for slot, _, start, end in spans], np.int64)
    return np.repeat(*numbers.reshape(-1, 2).T)


def _tokens_in(spans: Sequence[_Span]) -> tuple[Ints, Tokens]:
    """Return the slot of each position of some spans, and the token at it."""
    return _slots_of(spans), _joined([index.tokens[start:end] for _, index, start, end in spans])


def _joined(parts: Sequence[Tokens]) -> Tokens:
    """Concatenate any number of arrays."""
    return np.concatenate(parts) if parts else np.empty(0, np.int32)


def _newest_run(same: Mask) -> Ints:
    """Count the tokens at the end of each row of ``[rows, 16 or 64 tokens]`` that are the same."""
    bits = np.packbits(same, axis=1).view(f">u{same.shape[1] // 8}").ravel().astype(np.uint64)
    differs = ~bits
    lowest = differs & (~differs + np.uint64(1))
    run = np.frexp(lowest.astype(np.float64))[1] - 1
    return np.minimum(np.where(lowest, run, MAX_MATCH), same.shape[1])
