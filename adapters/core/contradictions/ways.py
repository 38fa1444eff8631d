"""The tables of a program's automata, and the searches in them."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ....spec import NoRepeatNgramSpec
from ..automaton import NO_TIMER, UNKNOWN, Automaton, AutomatonBuilder
from ..automaton.arrays import distinct, token_array
from ..automaton.pool import AutomatonPool, sizes_of
from .follow import ALLOW, FORCE, LOST, MAX_WORK, UNDECIDED, follow
from .runs import can_rest, find_refused, forced_runs

MAX_COMPARED = 1 << 15
"""The most tokens of forced texts that other automata take, to compare them: 2 ms."""
MAX_WALKED = 62
"""The most automata and rules of a search, which has a bit for each. Plugins may make more."""
_NONE = np.zeros(0, np.int32)


def budget() -> Any:
    """Return the work that the walks of a request may take in all, which they lower."""
    return np.array([MAX_WORK])


class Contradiction(NamedTuple):
    """A step that leaves no token.

    Attributes:
        part: the index of the automaton that forces or offers a token; -1 if none does.
        others: the indices of the parts that refuse it, the rules after the automata.
        token: the forced token; -1 if none is.
    """

    part: int
    others: tuple[int, ...]
    token: int


class Ways:
    """The tables of a program's automata, and the searches in them."""

    def __init__(
        self,
        automata: Sequence[Automaton],
        rules: Sequence[NoRepeatNgramSpec],
        vocab_size: int | None,
        ends: Sequence[int],
        on_demand: int,
        left: Any,
    ) -> None:
        self.automata, self.rules, self.left = automata, rules, left
        self.walked = len(automata) - on_demand  # the others force whenever they like
        pool = AutomatonPool(sizes_of(automata))
        self.bases = np.array([pool.base_of(each) for each in automata], np.int32)
        self.columns = (
            *(pool.default_target, pool.is_failure_link, pool.edge_ends, pool.edge_tokens),
            *(pool.targets, pool.timer, pool.timeout, pool.edit, pool.operand, pool.set_ends),
            *(pool.set_tokens, pool.set_values),
        )
        self.vocab_size = UNKNOWN if vocab_size is None else vocab_size
        self.ends = distinct(token_array(ends))
        places = [each.fold((), ()) for each in automata]
        self.start = np.array(places, np.int32).reshape(-1, 2) + np.outer(
            self.bases, [1, 0]
        ).astype(np.int32)

    def from_the_start(self) -> Contradiction | None:
        """Find a step that leaves no token on every way, or on one that an automaton offers."""
        every = range(self.walked)
        for rules in ((), self.rules) if self.rules else ((),):
            verdict, found = self.follow(every, rules)
            if verdict == UNDECIDED and found.part >= 0:  # these alone have fewer ways
                few = sorted({found.part, *found.others}.intersection(every))
                verdict, found = self.follow(few, rules)
            if verdict == LOST:
                return found
            for i, automaton in enumerate(self.automata[: self.walked]):
                if automaton.states > 1 and (automaton.edit == ALLOW).any():
                    verdict, found = self.follow(every, rules, offering=i)
                    if verdict == LOST:
                        return found
        return None

    def follow(
        self,
        which: Sequence[int],
        rules: Sequence[NoRepeatNgramSpec],
        offering: int = -1,
    ) -> tuple[int, Contradiction]:
        """Follow some of the automata and rules, up to ``MAX_WALKED``."""
        if len(which) + len(rules) > MAX_WALKED:
            return UNDECIDED, Contradiction(-1, (), -1)
        places = self.start[list(which)]
        exempt = [distinct(token_array(rule.allowed_token_ids)) for rule in rules]
        arguments: Any = (
            *(self.columns, places[:, 0].copy(), places[:, 1].copy(), self.ends),
            *(self.vocab_size, np.concatenate([*exempt, _NONE])),
            np.cumsum([0, *map(len, exempt)]),
            np.array([(rule.n, rule.window or NO_TIMER) for rule in rules], np.int64).reshape(
                -1, 2
            ),
            offering,
            self.left,
        )
        verdict, part, refusing, token = follow(*arguments)
        parts = [*which, *range(len(self.automata), len(self.automata) + len(rules))]
        others = [each for k, each in enumerate(parts) if refusing >> k & 1]
        return verdict, Contradiction(which[part] if part >= 0 else part, (*others,), token)

    @property
    def bounds(self) -> Sequence[tuple[int, int]]:
        """The first state of each automaton, and the end of its states."""
        ends = self.bases + [each.states for each in self.automata]
        return [*zip(self.bases.tolist(), ends.tolist(), strict=True)]

    def texts(self, only: Any = _NONE) -> Iterator[tuple[int, tuple[Any, Any]]]:
        """Yield the index of each automaton that forces, and what ``forced_runs`` returns."""
        for i, automaton in enumerate(self.automata):
            if (automaton.edit == FORCE).any():
                # A prompt may have any tokens.
                within: Any = _NONE if automaton.reads_prompt else only
                yield i, forced_runs(self.columns, *self.bounds[i], self.ends, within)

    def anywhere(self) -> Contradiction | None:
        """Find a forced token that another automaton refuses, whatever came before the text."""
        columns, bounds = self.columns, self.bounds
        strict = [k for k, bound in enumerate(bounds) if not can_rest(columns, *bound, self.ends)]
        only = self.bases[[each.states == 1 for each in self.automata]]
        strict.sort(key=lambda k: self.automata[k].states)  # lists and bans are compared first
        left = min(MAX_COMPARED, int(self.left[0]))
        for i, runs in self.texts(only) if strict else ():
            for k in strict:
                if k == i:
                    continue
                token, left = find_refused(columns, *bounds[k], *runs, left)
                if token >= 0:
                    return Contradiction(i, (k,), token)
                if left < 0:
                    return None
        return None


@lru_cache(maxsize=1)
def warm_up() -> None:
    """Compile the loops of the walk, so that no request waits for it."""
    builder = AutomatonBuilder()
    builder.edge(builder.free(), 1, builder.force(2))
    builder.free()
    forcing = builder.build(check=False)
    builder = AutomatonBuilder()
    builder.add(builder.token_set((1,)))
    ways = Ways([forcing, builder.build()], [NoRepeatNgramSpec(2)], 4, [3], 0, budget())
    ways.from_the_start()
    ways.anywhere()
