"""The builder of automata, state by state or from arrays."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import Ints, token_array
from .automaton import BAN_BIAS, CLEAR, NO_TIMEOUT, Automaton, Edit, bounded, token_set

MOST_MOVED = 128
"""The most tokens in the set of a MOVE: a kernel reads them at once."""


class AutomatonBuilder:
    """A builder of an automaton, state by state.

    States are numbered in the order of their creation. Requests start in state 0. By default, a
    token without an edge leaves the automaton in its state.

    Args:
        reads_prompt: whether the automaton reads the prompt before the output.
    """

    def __init__(self, *, reads_prompt: bool = False) -> None:
        self._reads_prompt = reads_prompt
        self._edit, self._is_failure_link = array("b"), array("b")
        self._operand, self._default_target = array("i"), array("i")
        self._timer, self._timeout = array("i"), array("i")
        self._edges: dict[int, int] = {}
        self._more_edges: list[tuple[Ints, Ints]] = []
        nothing = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float32)
        self._sets = [nothing]  # the lengths, tokens and values of one set or several
        self._set_count = 0

    def __len__(self) -> int:
        return len(self._edit)

    def free(self, *, timer: int = CLEAR) -> int:
        """Make a state that leaves the logits unchanged."""
        return self._state(Edit.FREE, 0, timer)

    def force(self, token_id: int, *, timer: int = CLEAR) -> int:
        """Make a state that forces ``token_id``."""
        return self._state(Edit.FORCE, token_id, timer)

    def allow(self, token_set: int, *, timer: int = CLEAR) -> int:
        """Make a state that allows only the tokens of the set."""
        return self._state(Edit.ALLOW, token_set, timer)

    def add(self, token_set: int, *, timer: int = CLEAR) -> int:
        """Make a state that adds the set's values to its tokens' logits."""
        return self._state(Edit.ADD, token_set, timer)

    def move(self, token_set: int, *, timer: int = CLEAR) -> int:
        """Make a state that moves the mass of tokens to another; see ``Edit``."""
        return self._state(Edit.MOVE, token_set, timer)

    def _state(self, edit: Edit, operand: int, timer: int) -> int:
        state = len(self._edit)
        self._edit.append(edit)
        self._operand.append(operand)
        self._default_target.append(state)
        self._is_failure_link.append(False)
        self._timer.append(timer)
        self._timeout.append(NO_TIMEOUT)
        return state

    def token_set(
        self, token_ids: Iterable[int], values: Iterable[float] | float = BAN_BIAS
    ) -> int:
        """Make a token set for ``allow`` or ``add``; by default ``add`` bans its tokens.

        Args:
            token_ids: in any order; of equal ids, the first counts.
            values: one for all, or one for each; clipped to the range from ``BAN_BIAS`` to
                ``HIGHEST_ADDITION``.
        """
        tokens, biases = token_set(token_ids, values)
        self._sets.append((np.array([len(tokens)]), tokens, biases))
        self._set_count += 1
        return self._set_count - 1

    def token_sets(
        self, token_ids: Ints, lengths: Ints, values: npt.NDArray[np.float64] | float = BAN_BIAS
    ) -> None:
        """Make many token sets at once, numbered in order.

        Args:
            token_ids: ``[total]``, set after set, ascending within each.
            lengths: ``[sets]``.
            values: one for all, or ``[total]``; see ``token_set``.
        """
        biases = np.broadcast_to(bounded(np.asarray(values)), len(token_ids))
        self._sets.append((lengths, token_ids.astype(np.int32), biases))
        self._set_count += len(lengths)

    def chain(
        self, token_ids: Sequence[int], then: int | None = None, *, timer: int = CLEAR
    ) -> int:
        """Make states that force ``token_ids`` one after the other, then lead to state ``then``.

        By default, ``then`` is the state that is made next. A foreign token in the first state
        leaves the automaton there, so that the output still contains the whole chain. In the later
        states, any token moves the chain on. Each state sets ``timer`` on entry.

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
        """Make ``n`` free states in which a token without an edge leads to the first of them."""
        first = len(self)
        self.extend(np.zeros(n, np.int8), np.zeros(n, np.int32), np.full(n, first), timer=timer)
        return range(first, first + n)

    def extend(
        self,
        edit: npt.NDArray[Any],
        operand: npt.NDArray[Any],
        default_target: Ints,
        *,
        is_failure_link: npt.NDArray[np.bool_] | None = None,
        timer: int | Ints = CLEAR,
    ) -> None:
        """Make many states at once, from columns of ``Automaton``, ``[states]`` each.

        By default, no ``default_target`` is a failure link. ``timer`` is one for all, or
        ``[states]``.
        """
        n = len(edit)
        self._edit.frombytes(edit.astype(np.int8).tobytes())
        self._operand.frombytes(operand.astype(np.int32).tobytes())
        self._default_target.frombytes(default_target.astype(np.int32).tobytes())
        links = np.zeros(n, np.int8) if is_failure_link is None else is_failure_link.astype(np.int8)
        self._is_failure_link.frombytes(links.tobytes())
        self._timer.frombytes(np.broadcast_to(timer, n).astype(np.int32).tobytes())
        self._timeout.extend(array("i", [NO_TIMEOUT]) * n)

    def edges(self, states: Ints, token_ids: npt.NDArray[np.integer[Any]], targets: Ints) -> None:
        """Add many edges at once, ``[edges]`` each; no two with the same state and token."""
        self._more_edges.append((states << 32 | token_ids, targets))

    def edge(self, state: int, token_id: int, target: int) -> None:
        """Add an edge: from ``state``, ``token_id`` leads to ``target``."""
        self._edges[state << 32 | token_id] = target

    def default(self, state: int, target: int) -> None:
        """Set the default target of ``state``: the next state of tokens without an edge."""
        self._default_target[state], self._is_failure_link[state] = target, False

    def failure_link(self, state: int, target: int) -> None:
        """Let ``target`` look up the tokens for which ``state`` has no edge."""
        self._default_target[state], self._is_failure_link[state] = target, True

    def timeout(self, state: int, target: int) -> None:
        """Set the state that follows ``state`` if the timer is 0 before a token is chosen."""
        self._timeout[state] = target

    def build(self, *, check: bool = True) -> Automaton:
        """Build the automaton.

        Args:
            check: whether to check for the errors below.

        Raises:
            ValueError: if the automaton has no states, leads to or from a state that does not
                exist, edits negative token ids, has a cycle that consumes no token, or has a
                state that allows nothing.
        """
        one_by_one = (
            np.fromiter(self._edges.keys(), np.int64, len(self._edges)),
            np.fromiter(self._edges.values(), np.int32, len(self._edges)),
        )
        keys, targets = map(np.concatenate, zip(one_by_one, *self._more_edges, strict=True))
        order = keys.argsort()
        if (keys[order[1:]] == keys[order[:-1]]).any():  # the first edge counts
            order = keys.argsort(kind="stable")  # which takes six times as long
        is_failure_link = np.array(self._is_failure_link, np.bool_)
        branches = is_failure_link.copy()
        sources = keys >> 32
        branches[sources[(sources >= 0) & (sources < len(branches))] if check else sources] = True
        lengths, set_tokens, values = map(np.concatenate, zip(*self._sets, strict=True))
        edit, operand = np.array(self._edit, np.int8), np.array(self._operand, np.int32)
        forced = operand[edit == Edit.FORCE.value]  # an Enum member compares 4 times slower
        automaton = Automaton(
            edit=edit,
            operand=operand,
            default_target=np.array(self._default_target, np.int32),
            is_failure_link=is_failure_link,
            branches=branches,
            timer=np.array(self._timer, np.int32),
            timeout=np.array(self._timeout, np.int32),
            keys=keys[order],
            targets=targets[order].astype(np.int32),
            set_ends=lengths.cumsum(dtype=np.int32),
            set_tokens=set_tokens,
            set_values=values,
            reads_prompt=self._reads_prompt,
            highest_token=max(forced.max(initial=-1).item(), set_tokens.max(initial=-1).item()),
        )
        if check:
            _check(automaton)
        return automaton


def _check(automaton: Automaton) -> None:
    n = automaton.states
    if n == 0:
        raise ValueError("an automaton needs at least one state")
    sources = automaton.keys >> 32  # ascending
    used = np.concatenate([automaton.default_target, automaton.targets, sources[:1], sources[-1:]])
    timeout = automaton.timeout
    if max(used.max(), timeout.max()) >= n or used.min() < 0 or timeout.min() < NO_TIMEOUT:
        raise ValueError(f"an automaton of {n} states leads to one that it does not have")
    edit, operands, sizes = automaton.edit, automaton.operand, automaton.set_sizes
    sets = operands[edit >= Edit.ALLOW.value]
    if operands.min() < 0 or sets.max(initial=-1) >= len(sizes):
        raise ValueError("an automaton forces a negative token id or uses a set that it has not")
    if automaton.set_tokens.min(initial=0) < 0:
        raise ValueError("an automaton has a set with a negative token id")
    if sizes[operands[edit == Edit.ALLOW.value]].min(initial=1) == 0:
        raise ValueError("an automaton allows no token at all in some state")
    if sizes[operands[edit == Edit.MOVE.value]].max(initial=0) > MOST_MOVED:
        raise ValueError(f"an automaton moves the mass of more than {MOST_MOVED - 1} tokens")
    stays_at_zero = (automaton.timer <= 0) & (automaton.timer != CLEAR)
    for target, leads_on, what in (
        (automaton.default_target, automaton.is_failure_link, "failure links"),
        (timeout, (timeout >= 0) & stays_at_zero, "time-outs"),
    ):
        if hop_counts(target, leads_on).max() > n:
            raise ValueError(f"an automaton's {what} go round in circles")


def hop_counts(target: npt.NDArray[Any], is_link: npt.NDArray[np.bool_]) -> Ints:
    """Count the links in the chain that starts at each state; in a circle, more than states."""
    hops, jump = is_link.astype(np.int64), np.where(is_link, target, np.arange(len(target)))
    while (more := hops[jump]).any() and hops.max() <= len(hops):  # each doubles the distance
        hops, jump = hops + more, jump[jump]
    return hops
