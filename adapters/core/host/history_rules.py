"""The history rules: ``no_repeat_ngram``, no n-gram twice, and ``dry``, no long repetition.

``no_loop`` has its loops in a file of its own.

At each step, a rule needs the earlier positions that follow the same tokens as the next position:
its context, the newest n - 1 tokens, or ``allowed_length``. A scan finds them from the newest to
the oldest with the failure function of Knuth, Morris and Pratt, and passes over blocks of tokens in
which the newest token does not occur. So its time is linear in the history, whatever is in it.

For the history ``7 1 2 3 1 2 4 1 2`` and n = 3, the context is ``1 2``. It ends before position 6,
where token 4 follows, and before position 3, where token 3 follows: 4 and 3 are banned.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ....spec import DrySpec, NoRepeatNgramSpec, SpecError
from ....spec.kinds.dry import MAX_MATCH, MAX_MATCHES
from ....spec.limits import MAX_PATTERN
from ..automaton import BAN_BIAS, UNKNOWN, Lane, UnknownTokenError
from ..automaton.arrays import distinct, token_array
from ..automaton.automata import Automata, Watch
from ..automaton.history import Tokens
from ..automaton.steps import BASE
from ..kinds.no_loop import closes, needs
from ..kinds.simple import penalties
from ..loops import loop
from ..parts import Acting, Grammar, LoopRule, Mark, rank_of
from .draw import draw, drawing_of
from .edit import add, find
from .loop_rules import (
    BLOCK,
    END,
    FIRST,
    FORCING,
    IS_OPEN,
    LOOP,
    ORIGIN,
    PHASE,
    find_loops,
    follow,
)
from .matcher import Matcher, Words, keep, leaves_none
from .search import skip

Floats = npt.NDArray[np.float32]
Scratch = tuple[Tokens, Floats, npt.NDArray[np.bool_], Tokens]

_ROOM = 128
"""The least room for output tokens."""
_ALL = np.iinfo(np.int32).max
_BAN = np.float32(BAN_BIAS)
KIND, NGRAM, DRY = 0, 0, 1
"""The first field of a rule, and what it may be beside ``LOOP``."""
BACK, WINDOW = 4, 5
"""Of n-grams and ``dry``: the number of tokens of a context, and of newest tokens that count."""


def scratch_for(vocab_size: int) -> Scratch:
    """Make what a rule needs at a step, and leaves for the next rule; see ``act``."""
    tokens, values = np.zeros(vocab_size, np.int32), np.zeros(vocab_size, np.float32)
    links = np.zeros(max(MAX_MATCH, MAX_PATTERN) + 1, np.int32)
    return tokens, values, np.zeros(vocab_size, np.bool_), links


class HistoryRules:
    """A request's history rules, and its history.

    Args:
        rules: the rules.
        prompt: the prompt's tokens.
        output: the output's tokens.
        lanes: the request's automata.
        stop_token_id: a token that makes the engine end the request, if there is one.

    Attributes:
        tokens: an array that begins with the history.
        length: the number of its tokens.
        closing: the grammars that end their phases.
        left: what grammars leave of the row at this step, a mask for each that acts.
        drawing: what ``draw`` reads of a mark, if there is one.

    Raises:
        UnknownTokenError: if a token is not known.
    """

    def __init__(
        self,
        rules: Sequence[Acting],
        prompt: Tokens,
        output: Tokens,
        lanes: Sequence[Lane] = (),
        stop_token_id: int | None = None,
    ) -> None:
        self.left: list[Words] = []
        spent = [0.0]
        self._matchers = [
            Matcher(part, phase, rank_of(part.closing, lanes), stop_token_id, spent)
            for part, phase, *_ in rules
            if isinstance(part, Grammar)
        ]
        self.closing = [each for each in self._matchers if each.rank >= 0]
        self._prompt_length = len(prompt)
        self.tokens = np.concatenate([prompt, output, np.zeros(_ROOM, np.int32)])
        self.length = 0
        numbers = list[int]()
        marks = [each.part for each in rules if isinstance(each.part, Mark)]
        self.drawing = drawing_of(marks[0]) if marks else None
        rules = [each for each in rules if not isinstance(each.part, Grammar | Mark)]
        fields = [_fields_of(rule, lanes, len(prompt), numbers) for rule in rules]
        dry = [penalties(each.part) for each in rules if isinstance(each.part, DrySpec)]
        by_length = dry[0] if dry else np.zeros(0, np.float32)
        of_rules = np.array(fields, np.int32).reshape(-1, PHASE + 1)
        self._rules = of_rules, np.array(numbers, np.int32), by_length
        self._follows = bool((self._rules[0][:, [FORCING, BLOCK, PHASE]] > [-1, -1, 0]).any())
        self.read(output)
        if (prompt == UNKNOWN).any():
            raise UnknownTokenError

    def read(self, output: Tokens) -> None:
        """Take another output in place of the one that is there."""
        if (output == UNKNOWN).any():
            raise UnknownTokenError
        end = self._prompt_length + len(output)
        if end >= len(self.tokens):
            self.tokens = np.concatenate([self.tokens, np.zeros(end, np.int32)])
        if self._matchers:
            ours, given = self.tokens[self._prompt_length : self.length], output
            differ = np.flatnonzero(ours[: len(given)] != given[: len(ours)])
            same = differ[0] if len(differ) else min(len(ours), len(given))
            for each in self._matchers:
                each.same = min(each.same, self._prompt_length + int(same))
        self.tokens[self._prompt_length : end] = output
        self.length = end

    def append(self, token: int) -> None:
        """Take one token more."""
        if token < 0:
            raise UnknownTokenError
        if self.length == len(self.tokens):
            self.tokens = np.concatenate([self.tokens, np.zeros_like(self.tokens)])
        self.tokens[self.length] = token
        self.length += 1

    @property
    def watch(self) -> Watch | None:
        """What closes phases along an earlier output, if anything does."""
        return self.close if self.closing else None

    def close(self, automata: Automata, i: int, length: int | None = None) -> bool:
        """Close the phases whose grammars are complete, before the automata take the newest token.

        Returns whether any phase acts that a grammar may close.

        Args:
            automata: the automata of all requests.
            i: the request's index there.
            length: the number of tokens, with the newest; by default, of all.
        """
        length = self.length if length is None else length
        acts = False
        for each in self.closing:
            if (since := automata.since[i, each.phase]) >= 0:
                acts = True
                each.take(self.tokens, self._first(since), length)
                if each.ends_at(length):
                    automata.states[i, each.rank] = automata.lanes[BASE, i, each.rank] + 1
        return acts

    def _first(self, since: Any) -> int:
        """Return where a phase's output begins: phase 0 is there before the prompt."""
        return max(int(since), self._prompt_length)

    def follow(self, automata: Automata, i: int) -> None:
        """Find which rules act and from where on, and set what they force, before a step's edits.

        Args:
            automata: the automata of all requests, after the newest tokens.
            i: the request's index there.

        Raises:
            SpecError: if a grammar does not go on with the tokens, or the others leave none of it.
        """
        self.left = []
        for each in self._matchers:
            if (since := automata.since[i, each.phase]) >= 0:
                each.take(self.tokens, self._first(since), self.length)
                if (left := each.find(self.length)) is not None:
                    self.left.append(left)
                    _check_left(each, left, automata, i)
        if self._follows:
            of_request = automata.lanes[:, i], automata.since[i]
            follow(*of_request, self.tokens, self.length, *self._rules[:2])

    def edit(self, logits: Floats, start: int, columns: int, scratch: Scratch) -> None:
        """Edit a row of flat logits, which begins at ``start``."""
        act(logits, start, columns, self.tokens, self.length, *self._rules, *scratch)
        for words in self.left:
            keep(logits, start, columns, words)

    def draw(self, row: Floats) -> int:
        """Return the token that the request's mark draws from a row, or -1; see ``draw``."""
        assert self.drawing is not None
        return draw(row, self.tokens, self.length, self._prompt_length, self.drawing)

    def cells(self, scratch: Scratch) -> tuple[Tokens, Floats]:
        """List the tokens of this step, and what is added to them."""
        (rules, *others), (tokens, values, *_) = self._rules, scratch
        found = [(tokens[:0], values[:0])]
        for k in range(len(rules)):
            history: Any = self.tokens, self.length, rules[k : k + 1], *others
            count = act(values, 0, 0, *history, *scratch)  # pyright: ignore[reportCallIssue]
            found.append((tokens[:count].copy(), values[:count].copy()))
        every, added = zip(*found, strict=True)
        return np.concatenate(every), np.concatenate(added)


def _check_left(matcher: Matcher, left: Words, automata: Automata, i: int) -> None:
    """Refuse what a grammar leaves if lists and bans of a request leave no token of it."""
    tables = automata.tables
    of_tables = tables.edit, tables.operand, tables.set_ends, tables.set_tokens, tables.set_values
    words, states = left.view(np.uint32), automata.states[i, : automata.count[i]]
    if leaves_none(words, states, *of_tables, matcher.may_end):
        raise SpecError("The grammar and the other specs leave no token together")


def _fields_of(
    acting: Acting, lanes: Sequence[Lane], prompt_length: int, numbers: list[int]
) -> Sequence[int]:
    """List what the loops read of a rule; append to the numbers of the request's rules."""
    rule, phase, *_ = acting
    first = len(numbers)
    if isinstance(rule, LoopRule):
        spec, enough = rule.spec, needs(rule.spec).tolist()
        reach = max(enough[period] + period for period in range(spec.min_period, len(enough)))
        numbers += *enough, *spec.then_token_ids
        of_loops = first + len(enough), reach, closes(spec), *rule.ranks(lanes), rule.inside
        origin = prompt_length if spec.output_only else 0
        return LOOP, origin, first, len(numbers), *of_loops, 1, origin, phase
    if isinstance(rule, DrySpec):
        kind, exempt, origin = DRY, rule.breaker_token_ids, 0
        back, window = rule.allowed_length, rule.range
    else:
        assert isinstance(rule, NoRepeatNgramSpec)  # the last kind of ``RULES``
        kind, exempt, origin = NGRAM, rule.allowed_token_ids, prompt_length * rule.output_only
        back, window = rule.n - 1, rule.window
    numbers += distinct(token_array(exempt)).tolist()
    return kind, origin, first, len(numbers), back, window or _ALL, 0, -1, -1, 0, 1, origin, phase


@loop
def act(
    logits: Any,
    start: int,
    columns: int,
    tokens: Any,
    length: int,
    rules: Any,
    numbers: Any,
    by_length: Any,
    cell_tokens: Any,
    cell_values: Any,
    seen: Any,
    links: Any,
) -> int:
    """List what rules add to a row, and add it.

    Args:
        logits: flat logits.
        start: where the row begins in them.
        columns: the number of its columns; 0 leaves the logits alone.
        tokens: ``[length or more]``, the history.
        length: its length.
        rules: ``[rules, fields]``, see ``_fields_of``.
        numbers: the tokens of each rule that are not banned or, for ``dry``, end a match,
            ascending; for ``no_loop``, what it ``needs``, and then the tokens that it forces.
        by_length: for ``dry``, what is added after a match of each length.
        cell_tokens: gets the tokens, each once.
        cell_values: gets what is added to each.
        seen: ``[vocabulary]``, false before and after.
        links: room for the failure function.

    Returns:
        The number of cells of the last rule.
    """
    count = 0
    for k in range(len(rules)):
        count = 0
        if rules[k, KIND] != LOOP and rules[k, IS_OPEN]:
            history = tokens, length, rules[k], numbers, by_length
            count = scan(history, cell_tokens, cell_values, seen, links)
        elif rules[k, FORCING] < 0 and rules[k, IS_OPEN]:
            count = find_loops(tokens, length, rules[k], numbers, cell_tokens, cell_values, seen)
        add(logits, start, columns, cell_tokens, cell_values, 0, count)
    return count


@loop
def scan(history: Any, cell_tokens: Any, cell_values: Any, seen: Any, links: Any) -> int:
    """List what an n-gram rule or ``dry`` adds; see ``act``."""
    tokens, length, rule, numbers, by_length = history
    is_dry, origin, back, window = rule[KIND] == DRY, rule[ORIGIN], rule[BACK], rule[WINDOW]
    exempt = numbers[rule[FIRST] : rule[END]]
    count = matches = 0
    oldest = max(length - window, origin)  # the oldest token that counts
    longest = MAX_MATCH
    if is_dry:  # no match contains a breaker
        for matched in range(min(MAX_MATCH, length)):
            if contains(exempt, tokens[length - 1 - matched]):
                longest = matched
                break
        if longest < back:
            return 0
    if length - back < origin:
        return 0
    link(tokens, length, back, links)
    matched, position = 0, length - 1  # so many tokens from ``position`` on are the context's
    if back > 0:
        position -= 1
    while position >= oldest:
        if back > 0:
            if matched == 0:
                position = skip(tokens, position, oldest, tokens[length - 1])
                if position < oldest:
                    break
            while matched > 0 and tokens[position] != tokens[length - 1 - matched]:
                matched = links[matched]
            if tokens[position] == tokens[length - 1 - matched]:
                matched += 1
            position -= 1
            if matched < back:
                continue
            at = position + 1 + back  # here the context has been followed by a token
            matched = links[matched]
        else:
            at = position
            position -= 1
        token = tokens[at]
        if is_dry:
            if contains(exempt, token):
                continue
            same, most = back, min(longest, at - oldest)
            while same < most and tokens[at - 1 - same] == tokens[length - 1 - same]:
                same += 1
            matches += 1
            if 0 <= token < len(seen):
                cell = count
                if seen[token]:
                    cell = 0
                    while cell_tokens[cell] != token:
                        cell += 1
                    cell_values[cell] = min(cell_values[cell], by_length[same])
                else:
                    seen[token] = True
                    cell_tokens[count], cell_values[count] = token, by_length[same]
                    count += 1
            if matches == MAX_MATCHES:
                break
        elif 0 <= token < len(seen) and not seen[token]:
            seen[token] = True
            cell_tokens[count], cell_values[count] = token, _BAN
            count += 1
    kept = 0
    for cell in range(count):
        token = cell_tokens[cell]
        seen[token] = False
        if not contains(exempt, token):
            cell_tokens[kept], cell_values[kept] = token, cell_values[cell]
            kept += 1
    return kept


@loop
def link(tokens: Any, length: int, back: int, links: Any) -> None:
    """Compute how much of the context still matches if a token does not go on with it."""
    matched = 0
    if back > 0:
        links[0] = links[1] = 0
    for k in range(1, back):
        token = tokens[length - 1 - k]
        while matched > 0 and token != tokens[length - 1 - matched]:
            matched = links[matched]
        if token == tokens[length - 1 - matched]:
            matched += 1
        links[k + 1] = matched


@loop
def contains(ascending: Any, wanted: int) -> bool:
    """Return whether an ascending array contains a token."""
    at = find(ascending, 0, len(ascending), wanted)
    return at < len(ascending) and ascending[at] == wanted
