"""Timed token automata: immutable tables that say, state by state, what the next token may be."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from struct import pack
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
N = TypeVar("N", bound=np.integer[Any])

BAN_BIAS = -1e9
"""What a ban adds to a logit.

The token's probability is exactly 0 beside any other that is not banned; where nothing else is
left (every other token is masked by somebody else), the row still has a finite logit. A token
that the engine has masked with -inf stays masked.
"""

HIGHEST_ADDITION = 1e6
"""The most that a rule or a plugin's automaton may add to a logit: FORCE beats any sum of them."""

NO_TIMEOUT = -1
CARRY = -1
"""Timer on entry: goes on running, if it runs."""
CLEAR = -2
"""Timer on entry: none from here on."""
KEEP = -3
"""Timer on entry: as it is; this token does not count."""
_TOKEN = 0xFFFFFFFF
"""The part of a key that is the token."""
NO_TIMER = 1 << 40
"""A timer that never gets to 0."""

UNKNOWN = -1
"""In a history: a token that was sampled but not told, or not yet. Where one was forced, it is
that one."""


class Edit(IntEnum):
    """What a state does to the logits. A ban is an ``ADD`` of ``BAN_BIAS``."""

    FREE = 0
    FORCE = 1
    ALLOW = 2
    ADD = 3


@dataclass(frozen=True, slots=True, eq=False)
class Automaton:
    """A timed token automaton; it starts by entering state 0. Make one with ``AutomatonBuilder``.

    A request's state is two integers, ``(state, timer)``. When a token arrives, the edge of that
    token is taken; without one, ``otherwise`` is, which either consumes the token or looks for an
    edge again from there (a failure link, as in Aho-Corasick). The state that is entered sets the
    timer, or lets it run down by one, or keeps it: then it counts how often other states are
    entered. A timer that is 0 when a token is about to be chosen moves to the state's time-out
    first.

    Attributes:
        edit: ``[states]`` int8, an ``Edit``.
        argument: ``[states]`` int32, the token of a ``FORCE``, the token set of ``ALLOW``/``ADD``.
        otherwise: ``[states]`` int32, the next state for a token without an edge.
        consumes: ``[states]`` bool, whether ``otherwise`` consumes the token.
        looks: ``[states]`` bool, whether the next state depends on the token.
        timer: ``[states]`` int32, on entry: set to n >= 0, ``CARRY``, ``CLEAR`` or ``KEEP``.
        timeout: ``[states]`` int32, where to go when the timer is 0, or -1.
        keys: ``[edges]`` int64, ascending, ``state << 32 | token``.
        targets: ``[edges]`` int32, the next state for each of ``keys``.
        set_ends: ``[sets]`` int32, where each token set ends in ``set_tokens``.
        set_tokens: ``[total]`` int32, token ids, ascending within a set.
        set_values: ``[total]`` float32, what an ``ADD`` adds.
        reads_prompt: whether prompt tokens are observed before output tokens are.
        highest_token: the largest token id in any edit, or -1.
    """

    edit: npt.NDArray[np.int8]
    argument: npt.NDArray[np.int32]
    otherwise: npt.NDArray[np.int32]
    consumes: npt.NDArray[np.bool_]
    looks: npt.NDArray[np.bool_]
    timer: npt.NDArray[np.int32]
    timeout: npt.NDArray[np.int32]
    keys: Ints
    targets: npt.NDArray[np.int32]
    set_ends: npt.NDArray[np.int32]
    set_tokens: npt.NDArray[np.int32]
    set_values: npt.NDArray[np.float32]
    reads_prompt: bool
    highest_token: int

    @property
    def states(self) -> int:
        """Number of states."""
        return len(self.edit)

    @property
    def cells(self) -> int:
        """Size of the tables: states, and tokens in their sets."""
        return self.states + len(self.set_tokens)

    @property
    def set_sizes(self) -> npt.NDArray[np.int32]:
        """``[sets]``, how many tokens each token set has."""
        sizes = self.set_ends.copy()
        sizes[1:] -= self.set_ends[:-1]
        return sizes

    @property
    def table_bytes(self) -> int:
        """The most memory that it takes, about: its own, and in the tables of host and device.

        Those have twice the room that they need, and columns as wide as indices on the host.
        """
        return (
            140 * self.states
            + 60 * len(self.keys)
            + 48 * len(self.set_tokens)
            + 28 * len(self.set_ends)
        )

    def of_tokens(
        self,
        token_ids: Iterable[int],
        values: Iterable[float] | float = BAN_BIAS,
        **columns: npt.NDArray[Any],
    ) -> "Automaton":
        """The same automaton with other tokens in the one set that it has.

        It takes a quarter of the time of a new one: none of the states is looked at again.

        Args:
            token_ids: at least one, none negative; see ``AutomatonBuilder.token_set``.
            values: what is added to each.
            columns: others to be replaced.
        """
        tokens, biases = _token_set(token_ids, values)
        return replace(
            self,
            set_ends=np.array([len(tokens)], np.int32),
            set_tokens=tokens,
            set_values=biases,
            highest_token=int(tokens[-1]) if len(tokens) else -1,
            **columns,
        )

    def fold(self, prompt_ids: Sequence[int] | None, output_ids: Sequence[int]) -> tuple[int, int]:
        """The ``(state, timer)`` that a whole history leads to, ready for the next choice.

        Raises:
            UnknownTokenError: if a token decides where to go, is not known and was not forced.
        """
        from .folding import fold_together
        from .slots import Request

        prompt_ids = () if prompt_ids is None else prompt_ids
        return fold_together((self,), Request(0, prompt_ids, output_ids, None))[0]

    @property
    def needs_output_ids(self) -> bool:
        """Whether it is not enough to know how many tokens are out, and which were forced."""
        return bool((self.looks & (self.edit != Edit.FORCE)).any())


class UnknownTokenError(ValueError):
    """The engine has not told the tokens that decide how a request goes on."""

    def __init__(self) -> None:
        super().__init__(
            "the engine does not tell this processor the ids of sampled tokens: load it with "
            "--logits-processors, or turn asynchronous scheduling off"
        )


def entered(on_entry: int, timer: int, tokens: int = 1) -> int:
    """The timer after ``tokens`` tokens, the last of which entered a state."""
    if on_entry == CARRY:
        return max(timer - tokens, 0)
    return timer if on_entry == KEEP else NO_TIMER if on_entry == CLEAR else on_entry


def bounded(values: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float32]:
    """What may be added to logits, of what somebody wants to add."""
    return np.clip(values, BAN_BIAS, HIGHEST_ADDITION).astype(np.float32)


class AutomatonBuilder:
    """Puts an automaton together, state by state.

    States are numbers, given out in order: the first one made is where requests start. A state
    that is not told otherwise stays where it is.

    Args:
        reads_prompt: whether the prompt's tokens move the automaton before the output's do.
    """

    def __init__(self, *, reads_prompt: bool = False) -> None:
        self._reads_prompt = reads_prompt
        self._edit, self._consumes = array("b"), array("b")
        self._argument, self._otherwise = array("i"), array("i")
        self._timer, self._timeout = array("i"), array("i")
        self._edges: dict[int, int] = {}
        self._more_edges: list[tuple[Ints, Ints]] = []
        self._sets: list[tuple[Ints, npt.NDArray[np.int32], npt.NDArray[np.float32]]] = []
        self._set_count = 0

    def __len__(self) -> int:
        return len(self._edit)

    def free(self, *, timer: int = CLEAR) -> int:
        """A state that leaves the logits alone."""
        return self._state(Edit.FREE, 0, timer)

    def force(self, token_id: int, *, timer: int = CLEAR) -> int:
        """A state in which ``token_id`` is chosen."""
        return self._state(Edit.FORCE, token_id, timer)

    def allow(self, token_set: int, *, timer: int = CLEAR) -> int:
        """A state in which a token of the set is chosen."""
        return self._state(Edit.ALLOW, token_set, timer)

    def add(self, token_set: int, *, timer: int = CLEAR) -> int:
        """A state that adds the set's values to its tokens' logits."""
        return self._state(Edit.ADD, token_set, timer)

    def _state(self, edit: Edit, argument: int, timer: int) -> int:
        state = len(self._edit)
        self._edit.append(edit)
        self._argument.append(argument)
        self._otherwise.append(state)
        self._consumes.append(True)
        self._timer.append(timer)
        self._timeout.append(NO_TIMEOUT)
        return state

    def token_set(
        self, token_ids: Iterable[int], values: Iterable[float] | float = BAN_BIAS
    ) -> int:
        """A set of token ids, for ``allow`` or ``add``; by default ``add`` bans them.

        Args:
            token_ids: in any order; the first of equal ones counts.
            values: one for all, or one for each; what is beyond ``BAN_BIAS`` or
                ``HIGHEST_ADDITION`` is cut off there.
        """
        tokens, biases = _token_set(token_ids, values)
        self._sets.append((np.array([len(tokens)]), tokens, biases))
        self._set_count += 1
        return self._set_count - 1

    def token_sets(self, token_ids: Ints, lengths: Ints, value: float = BAN_BIAS) -> None:
        """Many token sets at once, numbered in order.

        Args:
            token_ids: ``[total]``, set after set, ascending within each.
            lengths: ``[sets]``.
            value: for all of them.
        """
        values = np.full(len(token_ids), value, np.float32)
        self._sets.append((lengths, token_ids.astype(np.int32), values))
        self._set_count += len(lengths)

    def chain(
        self, token_ids: Sequence[int], then: int | None = None, *, timer: int = CLEAR
    ) -> int:
        """States that force ``token_ids`` one after the other, then go to state ``then``.

        A foreign token before the first one leaves the chain where it is, so that it still comes
        out whole; within the chain, the position counts.

        Args:
            token_ids: what to force.
            then: the state to go to; without one, the next that is made.
            timer: of each of the states.

        Returns:
            The first of the states; ``then`` if ``token_ids`` is empty.
        """
        n, first = len(token_ids), len(self)
        after = first + n if then is None else then
        if n == 0:
            return after
        following = np.arange(first + 1, first + n + 1)
        following[-1] = after
        self.edge(first, token_ids[0], int(following[0]))
        following[0] = first
        forces, tokens = np.full(n, Edit.FORCE.value), token_array(token_ids)
        self.extend(forces, tokens, following, timer=timer)
        return first

    def watching(self, n: int, *, timer: int = CLEAR) -> range:
        """States that leave the logits alone; a token without an edge leads to the first of them.

        Args:
            n: how many.
            timer: of each of the states.
        """
        first = len(self)
        self.extend(np.zeros(n, np.int8), np.zeros(n, np.int32), np.full(n, first), timer=timer)
        return range(first, first + n)

    def extend(
        self,
        edit: npt.NDArray[Any],
        argument: npt.NDArray[Any],
        otherwise: Ints,
        consumes: npt.NDArray[np.bool_] | None = None,
        *,
        timer: int = CLEAR,
    ) -> None:
        """Many states at once: the columns of ``Automaton``, ``[states]`` each.

        Args:
            edit: what each does.
            argument: the token, or the token set.
            otherwise: the next state for a token without an edge.
            consumes: whether ``otherwise`` consumes the token; by default it does.
            timer: of each of the states.
        """
        n = len(edit)
        consumes = np.ones(n, np.bool_) if consumes is None else consumes
        self._edit.frombytes(edit.astype(np.int8).tobytes())
        self._argument.frombytes(argument.astype(np.int32).tobytes())
        self._otherwise.frombytes(otherwise.astype(np.int32).tobytes())
        self._consumes.frombytes(consumes.astype(np.int8).tobytes())
        self._timer.extend(array("i", [timer]) * n)
        self._timeout.extend(array("i", [NO_TIMEOUT]) * n)

    def edges(self, states: Ints, token_ids: Ints, targets: Ints) -> None:
        """Many edges at once, ``[edges]`` each; no two from one state with one token."""
        self._more_edges.append((states << 32 | token_ids, targets))

    def edge(self, state: int, token_id: int, target: int) -> None:
        """From ``state``, ``token_id`` leads to ``target``."""
        self._edges[state << 32 | token_id] = target

    def otherwise(self, state: int, target: int, *, consumes: bool = True) -> None:
        """From ``state``, a token without an edge leads to ``target``.

        Args:
            state: the state that the token finds.
            target: where to go.
            consumes: ``False`` makes it a failure link: the token is looked up again from there.
        """
        self._otherwise[state] = target
        self._consumes[state] = consumes

    def timeout(self, state: int, target: int) -> None:
        """Go from ``state`` to ``target`` when the timer is 0 and a token is to be chosen."""
        self._timeout[state] = target

    def build(self, *, check: bool = True) -> Automaton:
        """The finished automaton.

        Args:
            check: whether to look for what it raises a ``ValueError`` for.

        Raises:
            ValueError: if it has no states, leads to or from a state that does not exist, edits
                negative token ids, could go round in circles without consuming a token, or allows
                nothing in some state; ``TooManyEdgesError`` where its failure links cannot be
                shortened.
        """
        one_by_one = (
            np.fromiter(self._edges.keys(), np.int64, len(self._edges)),
            np.fromiter(self._edges.values(), np.int32, len(self._edges)),
        )
        keys, targets = map(np.concatenate, zip(one_by_one, *self._more_edges, strict=True))
        order = keys.argsort(kind="stable")
        consumes = np.array(self._consumes, np.bool_)
        looks = ~consumes
        sources = keys >> 32
        looks[sources[(sources >= 0) & (sources < len(looks))] if check else sources] = True
        lengths = _joined([lengths for lengths, _, _ in self._sets], np.int64)
        edit, argument = np.array(self._edit, np.int8), np.array(self._argument, np.int32)
        set_tokens = _joined([tokens for _, tokens, _ in self._sets], np.int32)
        forced = argument[edit == Edit.FORCE.value]  # a member takes four times as long to compare
        automaton = Automaton(
            edit=edit,
            argument=argument,
            otherwise=np.array(self._otherwise, np.int32),
            consumes=consumes,
            looks=looks,
            timer=np.array(self._timer, np.int32),
            timeout=np.array(self._timeout, np.int32),
            keys=keys[order],
            targets=targets[order].astype(np.int32),
            set_ends=lengths.cumsum(dtype=np.int32),
            set_tokens=set_tokens,
            set_values=_joined([values for _, _, values in self._sets], np.float32),
            reads_prompt=self._reads_prompt,
            highest_token=max(forced.max(initial=-1).item(), set_tokens.max(initial=-1).item()),
        )
        if check:
            _check(automaton)
        return shortened(automaton)


def _token_set(
    token_ids: Iterable[int], values: Iterable[float] | float
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The columns of ``AutomatonBuilder.token_set``."""
    tokens = token_array(token_ids)
    if isinstance(values, float | int):
        tokens = distinct(tokens)
        return tokens, bounded(np.full(len(tokens), values, np.float64))
    every = tuple(values)
    order = tokens.argsort(kind="stable")
    order = order[_differ(tokens[order])]
    return tokens[order], bounded(np.frombuffer(pack(f"{len(every)}d", *every))[order])


def token_array(token_ids: Iterable[int]) -> npt.NDArray[np.int32]:
    """Token ids as an array, in half the time that numpy takes."""
    every = tuple(token_ids)
    return np.frombuffer(pack(f"{len(every)}i", *every), np.int32)


def distinct(values: npt.NDArray[N]) -> npt.NDArray[N]:
    """The values in ascending order, each once.

    ``np.unique`` puts integers into a hash table. Whoever chooses them can have them all in one
    place of it: 16,384 multiples of 20,753 take it 170 ms, sorting 0.5.
    """
    ordered = np.sort(values)
    return ordered[_differ(ordered)]


def numbered(values: Ints) -> tuple[Ints, Ints]:
    """The values as ``distinct`` has them, and for each value its index there."""
    order = np.argsort(values, kind="stable")
    ordered, number = values[order], np.empty(len(values), np.int64)
    is_first = _differ(ordered)
    number[order] = np.cumsum(is_first) - 1
    return ordered[is_first], number


def looked_up(keys: Ints, wanted: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Where in ``keys``, ascending and at least one, each of others is, and whether it is there."""
    index = np.minimum(keys.searchsorted(wanted), len(keys) - 1)
    return index, keys[index] == wanted


def _differ(ordered: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether each value is another than the one before it."""
    differ = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=differ[1:])
    return differ


def _joined(arrays: list[npt.NDArray[Any]], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)


def _check(automaton: Automaton) -> None:
    n = automaton.states
    if n == 0:
        raise ValueError("an automaton needs at least one state")
    sources = automaton.keys >> 32  # ascending
    used = np.concatenate([automaton.otherwise, automaton.targets, sources[:1], sources[-1:]])
    timeout = automaton.timeout
    if max(used.max(), timeout.max()) >= n or used.min() < 0 or timeout.min() < NO_TIMEOUT:
        raise ValueError(f"an automaton of {n} states leads to one that it does not have")
    edit, arguments, sizes = automaton.edit, automaton.argument, automaton.set_sizes
    sets = arguments[edit >= Edit.ALLOW.value]
    if arguments.min() < 0 or sets.max(initial=-1) >= len(sizes):
        raise ValueError("an automaton forces a negative token id or uses a set that it has not")
    if automaton.set_tokens.min(initial=0) < 0:
        raise ValueError("an automaton has a set with a negative token id")
    if sizes[arguments[edit == Edit.ALLOW.value]].min(initial=1) == 0:
        raise ValueError("an automaton allows no token at all in some state")
    _check_ends(automaton.otherwise, ~automaton.consumes, "failure links")
    stays_at_zero = (automaton.timer <= 0) & (automaton.timer != CLEAR)
    leads_on = (automaton.timeout >= 0) & stays_at_zero
    _check_ends(np.maximum(automaton.timeout, 0), leads_on, "time-outs")


def _check_ends(target: npt.NDArray[np.int32], leads_on: npt.NDArray[np.bool_], what: str) -> None:
    """Raise if following ``target`` for as long as ``leads_on`` holds never ends."""
    if not leads_on.any():
        return
    jump = np.where(leads_on, target, np.arange(len(target)))
    for _ in range(len(target).bit_length()):  # each round doubles the number of steps taken
        if not leads_on[jump].any():
            return
        jump = jump[jump]
    if leads_on[jump].any():
        raise ValueError(f"an automaton's {what} go round in circles")


HOPS = 4
"""Failure links that one token follows, about: longer chains of them are shortened."""

MAX_MERGED_EDGES = 1 << 15
"""Edges that shortening failure links may add to an automaton."""


class TooManyEdgesError(ValueError):
    """Failure links cannot be made short with edges in reasonable number."""

    def __init__(self) -> None:
        super().__init__(
            "too many token sequences end like the beginnings of others: a token would have to be "
            f"looked up along more than {HOPS} of them, or in {MAX_MERGED_EDGES} more edges"
        )


def shortened(automaton: Automaton) -> Automaton:
    """The same automaton with short chains of failure links: no step follows a long one.

    A link goes past a state that has no edges but those of the state it comes from (the strong
    failure links of Knuth, Morris and Pratt). Where chains are still long, one state in ``HOPS``
    gets the edges of all states further along its chain, but for the last one's.

    Raises:
        TooManyEdgesError: if this takes more than ``MAX_MERGED_EDGES``.
    """
    is_link = ~automaton.consumes
    if not is_link.any() or _hops(automaton.otherwise, is_link).max() <= HOPS:
        return automaton
    keys, targets = automaton.keys, automaton.targets
    sizes = np.bincount(keys >> 32, minlength=automaton.states)
    first_token = np.zeros(automaton.states, np.int64)
    first_token[sizes > 0] = keys[(np.cumsum(sizes) - sizes)[sizes > 0]] & _TOKEN
    further, states = automaton.otherwise.astype(np.int64), np.flatnonzero(is_link)
    while len(states):  # each round doubles how far those links may go that went further
        states = states[is_link[further[states]]]
        past = further[states]
        is_idle = first_token[past] == first_token[states]
        # Most have one edge. The others must have each of those of the state that is gone past.
        others = np.flatnonzero((sizes[past] != 1) | (sizes[states] != 1))
        owner, edge = _edges(keys, states[others])
        _, is_shared = looked_up(keys, past[others][owner] << 32 | keys[edge] & _TOKEN)
        shared = np.bincount(owner[is_shared], minlength=len(others))
        is_idle[others] = shared == sizes[past[others]]
        states = states[is_idle]
        further[states] = further[further[states]]
    hops, is_passed = _hops(further, is_link), np.zeros(automaton.states, np.bool_)
    is_passed[further[is_link]] = True
    link, levels, merged = further.copy(), [(keys, targets)], 0
    for level in range(HOPS, int(hops.max()), HOPS):
        states = at = np.flatnonzero(is_passed & (hops == level))
        found: list[tuple[Ints, npt.NDArray[np.int32]]] = []
        for step in range(HOPS + (level > HOPS)):
            # The last of them are the states of the level before.
            owner, edge = _edges(keys if step < HOPS else levels[0][0], at)
            merged += len(edge)
            if merged > MAX_MERGED_EDGES:
                raise TooManyEdgesError
            from_keys, from_targets = (keys, targets) if step < HOPS else levels[0]
            found.append((states[owner] << 32 | from_keys[edge] & _TOKEN, from_targets[edge]))
            at = further[at] if step < HOPS else link[at]
        link[states] = at
        levels.insert(0, _nearest(found))
    keys, targets = _nearest(levels)
    return replace(automaton, otherwise=link.astype(np.int32), keys=keys, targets=targets)


def _hops(target: npt.NDArray[Any], is_link: npt.NDArray[np.bool_]) -> Ints:
    """How many links lead on from each state, one after the other."""
    return summed(is_link.astype(np.int64), np.where(is_link, target, np.arange(len(target))))


def summed(values: Ints, target: Ints) -> Ints:
    """The sum of what each place and all those have that ``target`` leads to from it.

    It must lead to a place of value 0 in the end, which leads to itself.
    """
    sums, jump = values, target
    while sums[jump].any():  # twice as far in each round
        sums, jump = sums + sums[jump], jump[jump]
    return sums


def _edges(keys: Ints, states: Ints) -> tuple[Ints, Ints]:
    """The edges of some states: which of the states each is of, and where it is in ``keys``."""
    starts = keys.searchsorted(states << 32)
    lengths = keys.searchsorted((states + 1) << 32) - starts
    owner = np.repeat(np.arange(len(states)), lengths)
    return owner, np.arange(len(owner)) + (starts - np.cumsum(lengths) + lengths)[owner]


def _nearest(
    found: Sequence[tuple[Ints, npt.NDArray[np.int32]]],
) -> tuple[Ints, npt.NDArray[np.int32]]:
    """All edges, ascending; of equal ones, the first."""
    keys, first = np.unique(np.concatenate([keys for keys, _ in found]), return_index=True)
    return keys, np.concatenate([targets for _, targets in found])[first]


def unreachable(automaton: Automaton) -> list[int]:
    """The states that no history leads to: a table that has some says more than it means."""
    seen = {0}
    front = [0]
    sources = automaton.keys >> 32
    while front:
        state = front.pop()
        lo, hi = sources.searchsorted([state, state + 1])
        following = [int(automaton.otherwise[state]), *automaton.targets[lo:hi].tolist()]
        if automaton.timeout[state] >= 0:
            following.append(int(automaton.timeout[state]))
        for target in following:
            if target not in seen:
                seen.add(target)
                front.append(target)
    return sorted(set(range(automaton.states)) - seen)
