"""An algebra of automata: detectors, products, and automata one after the other.

It is used at compile time only. All operations are on whole columns, because a payload may hold
thousands of sequences.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .arrays import TOKEN, Ints, looked_up, token_array
from .automaton import CARRY, NO_TIMEOUT, Automaton, Edit, reached
from .builder import AutomatonBuilder, hop_counts

CheckSize = Callable[[int], None]
"""A check of the number of states and edges that are about to be made."""


@dataclass(frozen=True, slots=True, eq=False)
class Marked:
    """An automaton whose states have marks: bits that stand for conditions.

    Attributes:
        automaton: the automaton.
        marks: ``[states]``, the conditions that hold in each state, one bit each.
    """

    automaton: Automaton
    marks: Ints

    @classmethod
    def of(cls, automaton: Automaton, bit: int = 0, states: Sequence[int] = ()) -> "Marked":
        """Mark ``states`` with ``bit``, and the others with nothing."""
        marks = np.zeros(automaton.states, np.int64)
        marks[list(states)] = bit
        return cls(automaton, marks)

    @property
    def is_timed(self) -> bool:
        """Whether the timer is ever set."""
        return bool((self.automaton.timer >= 0).any())


def repeated(automaton: Automaton, times: int) -> Automaton:
    """Repeat an automaton without a timer that ends in its last state.

    The last state of each round is the first of the next.
    """
    k, n = automaton.states - 1, len(automaton.keys)
    of_state = np.repeat(np.arange(times) * k, k)
    of_edge = np.repeat(np.arange(times) * k, n)
    columns = {
        name: np.append(np.tile(getattr(automaton, name)[:k], times), getattr(automaton, name)[k])
        for name in ("edit", "operand", "is_failure_link", "branches", "timer", "timeout")
    }
    default_target = np.tile(automaton.default_target[:k], times) + of_state
    return replace(
        automaton,
        **columns,
        default_target=np.append(default_target, times * k).astype(np.int32),
        keys=np.tile(automaton.keys, times) + (of_edge << 32),
        targets=(np.tile(automaton.targets, times) + of_edge).astype(np.int32),
    )


def _free() -> Automaton:
    builder = AutomatonBuilder()
    builder.free()
    return builder.build()


FREE = Marked.of(_free())
"""One state, which leaves the logits as they are."""


def counter(n: int, bit: int, *, timed: bool) -> Marked:
    """Mark the state after ``n`` tokens, with a timer or with a state for each token.

    The timer runs out before the last of the tokens, which leads to the marked state like any
    other detector's last token. So it is certain what comes first if several end at one token.
    """
    builder = AutomatonBuilder()
    if timed and n > 1:
        counting, waiting = builder.free(timer=n - 1), builder.free(timer=CARRY)
        builder.default(counting, waiting)
        for state in (counting, waiting):
            builder.timeout(state, len(builder))
        n = 1
    for _ in range(n):
        builder.default(builder.free(), len(builder))
    done = builder.free()
    return Marked.of(builder.build(check=False), bit, (done,))


def detector(patterns: Mapping[int, Sequence[int]], check_size: CheckSize) -> Marked:
    """Mark the states in which token sequences have just been read.

    Aho and Corasick, as in ``tries.completing``, with all edges instead of failure links.

    Args:
        patterns: by the bits of the marks.
        check_size: called for each state.
    """
    edges: list[dict[int, int]] = [{}]
    marks = [0]
    for bit, pattern in patterns.items():
        node = 0
        for token in pattern:
            if token not in edges[node]:
                edges[node][token] = len(edges)
                edges.append({})
                marks.append(0)
            node = edges[node][token]
        marks[node] |= bit
    failure = [0] * len(edges)
    order = [0]
    for node in order:  # shorter sequences first
        children = edges[node]
        for token, child in children.items():
            failure[child] = edges[failure[node]].get(token, 0) if node else 0
            marks[child] |= marks[failure[child]]
            order.append(child)
        if node:
            edges[node] = {**edges[failure[node]], **children}
        check_size(1 + len(edges[node]))
    builder = AutomatonBuilder()
    builder.watching(len(edges))
    builder.edges(*_columns(edges))
    return Marked(builder.build(check=False), np.array(marks))


def _columns(edges: Sequence[dict[int, int]]) -> tuple[Ints, Ints, Ints]:
    """List the states, tokens and targets of edges, which are by state and token."""
    states = np.repeat(np.arange(len(edges)), [*map(len, edges)])
    every = edges, (following.values() for following in edges)
    tokens, targets = (token_array(chain.from_iterable(each)).astype(np.int64) for each in every)
    return states, tokens, targets


def unlinked(marked: Marked, check_size: CheckSize) -> Marked:
    """Give each state all edges that its failure links lead to.

    Args:
        marked: an automaton and its marks.
        check_size: called with the number of edges and states before they are made.
    """
    automaton = marked.automaton
    is_link, default = automaton.is_failure_link, automaton.default_target.copy()
    if not is_link.any():
        return marked
    ends, tokens = (column.tolist() for column in automaton.edges)
    pairs = [*zip(tokens, automaton.targets.tolist(), strict=True)]
    edges = [dict(pairs[first:end]) for first, end in pairwise(ends)]
    hops = hop_counts(default, is_link)
    check_size(int((hops == 0).sum()) + int((hops[automaton.keys >> 32] == 0).sum()))
    for state in hops.argsort(kind="stable")[(hops == 0).sum() :].tolist():
        link = default[state]  # whose edges are complete by now
        check_size(1 + len(edges[state]) + len(edges[link]))
        edges[state] = edges[link] | edges[state]
        default[state] = default[link]
    states, tokens, targets = _columns(edges)
    keys = states << 32 | tokens
    order = keys.argsort()
    made = replace(
        automaton,
        default_target=default,
        is_failure_link=np.zeros_like(is_link),
        branches=np.array([*map(bool, edges)]),
        keys=keys[order],
        targets=targets[order].astype(np.int32),
    )
    return Marked(made, marked.marks)


def product(one: Marked, other: Marked, check_size: CheckSize) -> Marked:
    """Run two automata side by side.

    Args:
        one: an automaton. The product makes its edits.
        other: an automaton whose edits are dropped. At most one of the two sets the timer.
        check_size: called before the product is made.
    """
    if one.automaton.states > 1:
        other = unlinked(other, check_size)
    a, d = one.automaton, other.automaton
    m = d.states
    if a.states == 1:
        check_size(m + len(d.keys))
        of_one = {name: getattr(a, name) for name in ("set_ends", "set_tokens", "set_values")}
        edit, operand = np.repeat(a.edit, m), np.repeat(a.operand, m)
        made = replace(d, edit=edit, operand=operand, **of_one)
        return Marked(made, other.marks | one.marks[0])
    roots = np.flatnonzero(~a.is_failure_link)
    check_size(m * (a.states + len(a.keys)) + len(roots) * len(d.keys))
    first, second = np.divmod(np.arange(a.states * m), m)
    is_link = a.is_failure_link[first]
    after = np.where(is_link, second, d.default_target[second])
    if other.is_timed:
        timer, late = d.timer[second], d.timeout[second]
        timeout = np.where(late >= 0, first * m + late, NO_TIMEOUT)
    else:
        timer, late = a.timer[first], a.timeout[first]
        timeout = np.where(late >= 0, late * m + second, NO_TIMEOUT)
    # The edges of `one`, from each state of `other`; failure links leave `other` where it is.
    tokens, states = (a.keys & TOKEN)[:, np.newaxis], np.arange(m)
    own = ((a.keys >> 32)[:, np.newaxis] * m + states) << 32 | tokens
    own_targets = a.targets[:, np.newaxis] * m + _following(d, states, tokens)
    # The edges of `other`, from each state in which a token without an edge of `one` ends up.
    sources, tokens = roots[:, np.newaxis], d.keys & TOKEN
    shared = (sources * m + (d.keys >> 32)) << 32 | tokens
    shared_targets = a.default_target[sources] * m + d.targets
    if len(a.keys):
        lacking = ~looked_up(a.keys, (sources << 32 | tokens).ravel())[1]
    else:
        lacking = np.ones(shared.size, np.bool_)
    keys = np.concatenate([own.ravel(), shared.ravel()[lacking]])
    targets = np.concatenate([own_targets.ravel(), shared_targets.ravel()[lacking]])
    order = keys.argsort(kind="stable")
    made = replace(
        a,
        edit=a.edit[first],
        operand=a.operand[first],
        default_target=(a.default_target[first] * m + after).astype(np.int32),
        is_failure_link=is_link,
        branches=a.branches[first],
        timer=timer,
        timeout=timeout.astype(np.int32),
        keys=keys[order],
        targets=targets[order].astype(np.int32),
        reads_prompt=a.reads_prompt or d.reads_prompt,
    )
    return Marked(made, one.marks[first] | other.marks[second])


def _following(automaton: Automaton, states: Ints, tokens: Ints) -> Ints:
    """Return the next states, for an automaton without failure links; the arrays broadcast."""
    default = automaton.default_target[states].astype(np.int64)
    default = np.broadcast_to(default, (len(tokens), len(states)))
    if not len(automaton.keys):
        return default
    index, found = looked_up(automaton.keys, (states << 32 | tokens).ravel())
    targets = automaton.targets.take(index, mode="clip")
    return np.where(found, targets, default.ravel()).reshape(default.shape)


class Fragment(NamedTuple):
    """An automaton that leads to others.

    Attributes:
        automaton: it starts in state 0, which sets or clears the timer.
        following: ``[states]``, the index of the automaton that takes the state's place; -1 for
            states that stay. The number of automata stands for the end of all.
        by_timeout: whether these states stay too, with timer 0 and a time-out, so that they lead on
            before the next output token and never within the prompt.
    """

    automaton: Automaton
    following: Ints
    by_timeout: bool


def joined(
    fragments: Sequence[Fragment], forced_after: int | None, most_to_prune: int
) -> Automaton:
    """Put automata one after the other, the first of them first.

    Args:
        fragments: the automata. Failure links lead to states that stay.
        forced_after: the token to force at the end; ``None`` forces nothing.
        most_to_prune: the most states and edges that are searched for states which no history
            leads to.
    """
    end = FREE.automaton
    if forced_after is not None:
        edit, operand = np.array([Edit.FORCE], np.int8), np.array([forced_after], np.int32)
        end = replace(end, edit=edit, operand=operand)
    parts = [*fragments, Fragment(end, np.array([-1]), by_timeout=False)]
    sizes = [part.automaton.states for part in parts]
    entries = np.cumsum(sizes) - sizes
    sets = tokens = 0
    columns: list[tuple[npt.NDArray[Any], ...]] = []
    for part, base in zip(parts, entries.tolist(), strict=True):
        made, leads = part.automaton, part.following >= 0
        entry = entries[np.maximum(part.following, 0)]
        stays = np.arange(base, base + made.states)
        goes = stays if part.by_timeout else np.where(leads, entry, stays)
        timer, timeout = made.timer, np.where(made.timeout >= 0, goes[made.timeout], NO_TIMEOUT)
        if part.by_timeout:
            timer, timeout = np.where(leads, 0, timer), np.where(leads, entry, timeout)
        operand = made.operand + np.where(made.edit >= Edit.ALLOW.value, sets, 0)
        columns.append(
            (
                *(made.edit, operand, goes[made.default_target], made.is_failure_link),
                *(timer, timeout, made.keys + (base << 32), goes[made.targets]),
                *(made.set_ends + tokens, made.set_tokens, made.set_values),
            )
        )
        sets, tokens = sets + len(made.set_ends), tokens + len(made.set_tokens)
    edit, operand, default_target, is_link, timer, timeout, keys, targets, *of_sets = map(
        np.concatenate, zip(*columns, strict=True)
    )
    sources = keys >> 32
    is_needed = is_link[sources] | (targets != default_target[sources])
    keys, targets, sources = keys[is_needed], targets[is_needed], sources[is_needed]
    kept = np.ones(len(edit), np.bool_)
    if len(edit) + len(keys) <= most_to_prune:
        kept = reached(default_target, timeout, sources, targets)
    number = np.cumsum(kept) - 1
    is_kept = kept[sources]
    keys = number[sources[is_kept]] << 32 | keys[is_kept] & TOKEN
    edit, operand, is_link, late = edit[kept], operand[kept], is_link[kept], timeout[kept]
    branches = is_link.copy()
    branches[keys >> 32] = True
    set_ends, set_tokens, set_values = of_sets
    forced = operand[edit == Edit.FORCE.value]
    return Automaton(
        edit=edit,
        operand=operand.astype(np.int32),
        default_target=number[default_target[kept]].astype(np.int32),
        is_failure_link=is_link,
        branches=branches,
        timer=timer[kept].astype(np.int32),
        timeout=np.where(late >= 0, number[late], NO_TIMEOUT).astype(np.int32),
        keys=keys,
        targets=number[targets[is_kept]].astype(np.int32),
        set_ends=set_ends.astype(np.int32),
        set_tokens=set_tokens,
        set_values=set_values,
        reads_prompt=fragments[0].automaton.reads_prompt,
        highest_token=max(forced.max(initial=-1).item(), set_tokens.max(initial=-1).item()),
    )
