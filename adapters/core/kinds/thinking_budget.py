"""``thinking_budget``: states outside and inside a block, and a timer that closes it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ....spec import ThinkingBudgetSpec
from ....spec.tags import end_tags, start_tags
from ..automaton import CARRY, Automaton, AutomatonBuilder, Edit, Ints
from ..automaton.arrays import token_array
from ..automaton.patterns import FOUND, Matcher
from ..parts import Part
from .base import Context, compile_spec


@compile_spec.register
def _compile(spec: ThinkingBudgetSpec, _: Context) -> Iterable[Part]:
    yield thinking(spec)


def thinking(spec: ThinkingBudgetSpec, *, completes: bool = False) -> Automaton:
    """Build the automaton.

    If it ``completes``, it has states of its own for a request that has closed a block and has none
    open.
    """
    builder = AutomatonBuilder(reads_prompt=True)
    starts = Matcher.of(start_tags(spec))
    ends = Matcher.of(end_tags(spec))
    outside = builder.watching(len(starts.edges))
    closed = builder.watching(len(starts.edges)) if completes else outside
    after = _closing(builder, spec, ends, closed[0])
    free = _bans(builder, [spec.stop_token_ids] * len(ends.edges))
    # From the last part of a block to the first. A time-out leads from each to the next.
    if spec.grace:
        following = _with_newlines(ends, spec.newline_token_ids)
        after = _part(builder, following, spec.grace, len(after), closed[0], after, free)
    entries = len(after) if spec.min_tokens else 1
    after = _part(builder, ends, spec.budget - spec.min_tokens, entries, closed[0], after, free)
    if spec.min_tokens:
        ending = ([token for token, node in edges.items() if node == FOUND] for edges in ends.edges)
        bans = _bans(builder, [[*tokens, *spec.stop_token_ids] for tokens in ending])
        after = _part(builder, ends, spec.min_tokens, 1, closed[0], after, bans)
    for watching in {outside, closed}:
        starts.link(builder, watching, watching, found=after[0])
    is_complete = np.zeros(len(builder), np.bool_)
    is_complete[closed] = completes
    return replace(builder.build(), is_complete=is_complete)


def _part(
    builder: AutomatonBuilder,
    ends: Matcher,
    tokens: int,
    entries: int,
    closed: int,
    after: Sequence[int],
    bans: tuple[Ints, Ints],
) -> range:
    """Make the states of a part of a block.

    Args:
        builder: the builder.
        ends: the nodes of the end tags. Their edges may also lead to the end of the part: to the
            number of nodes, plus a node.
        tokens: the number of tokens of the part.
        entries: the number of nodes, from the first, in which the part may begin.
        closed: the state after the block.
        after: for each node, the state that follows when the part is over.
        bans: each node's edit and operand.

    Returns:
        For each of the ``entries``, the state that starts the timer.
    """
    nodes = len(after)
    edit, operand = bans
    reached = {node for edges in ends.edges for node in edges.values() if 0 <= node < nodes}
    waited = sorted(reached | {0})
    waiting = range(len(builder), len(builder) + len(waited))
    counting = range(waiting.stop, waiting.stop + entries)
    into = np.zeros(2 * nodes, np.int64)
    into[waited], into[nodes:] = waiting, after
    for states, at, timer in ((waiting, waited, CARRY), (counting, range(entries), tokens)):
        builder.extend(edit[at], operand[at], np.full(len(at), waiting[0]), timer=timer)
        ends.link(builder, states, into, closed, nodes=at)
        for state, node in zip(states, at, strict=True):
            builder.timeout(state, after[node])
    return counting


def _with_newlines(ends: Matcher, newline_token_ids: Sequence[int]) -> Matcher:
    """Let newlines lead to the end of the part, unless they complete an end tag."""
    nodes, newlines = len(ends.edges), dict.fromkeys(newline_token_ids, len(ends.edges))
    edges = [
        newlines
        | {
            token: node + nodes if token in newlines and node != FOUND else node
            for token, node in following.items()
        }
        for following in ends.edges
    ]
    return Matcher(edges, ends.begun)


def _bans(builder: AutomatonBuilder, banned: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Make the token sets that are banned at each node. Returns each node's edit and operand."""
    at_nodes = [frozenset(tokens) for tokens in banned]
    sets = {tokens: builder.token_set(tokens) for tokens in dict.fromkeys(at_nodes) if tokens}
    operand = np.array([sets.get(tokens, -1) for tokens in at_nodes])
    return np.where(operand >= 0, Edit.ADD.value, Edit.FREE.value), np.maximum(operand, 0)


def _closing(
    builder: AutomatonBuilder, spec: ThinkingBudgetSpec, ends: Matcher, closed: int
) -> list[int]:
    """Make the states that close a block.

    Args:
        builder: the builder.
        spec: the spec.
        ends: the nodes of the end tags.
        closed: the state after the block.

    Returns:
        For each node, the state that follows when a block has to end there.
    """
    tags = end_tags(spec)
    forced = spec.end_token_ids + spec.then_token_ids
    closing = builder.chain(forced, then=closed)
    message = builder.chain(spec.message_token_ids, then=closing)
    rest_of: dict[int, int] = {0: closing}
    due = [message]
    for which, matched in ends.begun[1:]:  # half an end tag is out: go on with it
        if which not in rest_of:
            rest = token_array(tags[which][matched:])
            after = np.arange(len(builder), len(builder) + len(rest)) + 1
            after[-1] = closed
            rest_of[which] = len(builder) - matched
            builder.extend(np.full(len(rest), Edit.FORCE.value), rest, after)
        due.append(rest_of[which] + matched)
    # Another token may come in place of the first that is due, and belong to an end tag.
    first = (spec.message_token_ids + forced)[0]
    for token, node in ends.edges[0].items():
        if token == first:
            continue
        if node != FOUND:
            builder.edge(message, token, due[node])
        elif (token,) == spec.end_token_ids and spec.then_token_ids:
            builder.edge(message, token, closing + 1)
        else:
            builder.edge(message, token, closed)
    return due
