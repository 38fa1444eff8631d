"""The tables of many automata, end to end, so that one index selects any state of any automaton."""

from collections.abc import Collection, Iterable

import numpy as np

from .automaton import CLEAR, NO_TIMEOUT, NO_TIMER, Automaton, Edit

_ROOM_AT_FIRST = {"states": 1 << 12, "edges": 1 << 12, "tokens": 1 << 12, "sets": 1 << 8}
ROOM_KEPT = 1 << 15
"""The room for states, edges, tokens and sets that is kept even if nothing needs it."""


class AutomatonPool:
    """A growing pool of automata.

    An automaton stays while there is room, even if no request uses it. When there is no room, the
    pool keeps only the automata in use and makes twice the room that they need. (vLLM's V2 runner
    does not report when a request ends: its automata are in use until its slot is reused.)

    Attributes:
        edit, operand, ...: the columns of ``Automaton``, with states and token sets numbered
            through the pool, and ``CLEAR`` replaced by the timer that it sets. State 0 is free, and
            no token leaves it: it belongs to no automaton. Values beyond ``len(tables)`` states are
            not defined.
        edge_ends: ``[states + 1]``, the end of each state's edges, after a leading 0.
        edge_tokens: ``[edges]``, the token of each edge, ascending within a state.
        set_ends: ``[sets + 1]``, the end of each token set, after a leading 0.
        tables: what ``steps.step`` reads: ``edit``; ``[3, states]``, ``is_failure_link``,
            ``branches`` and ``is_complete``; ``[5, states + 1]``, ``operand``, ``default_target``,
            ``timer``, ``timeout`` and ``edge_ends``; ``[2, edges]``, ``edge_tokens`` and
            ``targets``. Fewer arrays are passed faster to a loop.
        edits: what the loops that edit read.
        used: the number of ``states``, ``edges``, set ``tokens`` and ``sets`` in use.
        generation: the number of times that automata were moved; copies compare it.
    """

    def __init__(self, room: dict[str, int] | None = None) -> None:
        self.generation = 0
        self._clear(room or dict(_ROOM_AT_FIRST))

    def __len__(self) -> int:
        return self.used["states"]

    def _clear(self, room: dict[str, int]) -> None:
        self._bases: dict[Automaton, int] = {}
        self._room, self.used = room, {what: int(what == "states") for what in room}
        states, edges, tokens, sets = room.values()
        self.edit = np.zeros(states, np.int8)
        flags = np.zeros((3, states), np.bool_)
        self.is_failure_link, self.branches, self.is_complete = flags
        numbers, of_edges = np.zeros((5, states + 1), np.int32), np.zeros((2, edges), np.int32)
        self.operand, self.default_target, self.timer, self.timeout, self.edge_ends = numbers
        self.edge_tokens, self.targets = of_edges
        self.timer[0], self.timeout[0] = NO_TIMER, NO_TIMEOUT
        self.tables = self.edit, flags, numbers, of_edges
        self.set_tokens = np.zeros(tokens, np.int32)
        self.set_values = np.zeros(tokens, np.float32)
        self.set_ends = np.zeros(sets + 1, np.int32)
        self.edits = self.edit, self.operand, self.set_ends, self.set_tokens, self.set_values

    def base_of(self, automaton: Automaton) -> int | None:
        """Return where the automaton's states start; ``None`` if there is no room for it."""
        if automaton not in self._bases:
            sizes = _sizes_of(automaton)
            if any(self.used[what] + size > self._room[what] for what, size in sizes.items()):
                return None
            self._append(automaton)
        return self._bases[automaton]

    def rebuild(self, in_use: Iterable[Automaton]) -> None:
        """Drop all automata except these. If this fails, the pool is of no use."""
        kept = list(dict.fromkeys(in_use))
        needed, before = sizes_of(kept), self._room
        self.generation += 1
        self._clear({each: max(min(before[each], ROOM_KEPT), 2 * needed[each]) for each in before})
        for automaton in kept:
            self._append(automaton)

    def is_mostly_unused(self, in_use: Iterable[Automaton]) -> bool:
        """Return whether ``rebuild`` would free most of the memory, and much of it."""
        large = [what for what, room in self._room.items() if room > 2 * ROOM_KEPT]
        if not large:
            return False
        needed = sizes_of(dict.fromkeys(in_use))
        return any(self._room[what] > 8 * needed[what] for what in large)

    def _append(self, automaton: Automaton) -> None:
        used, sizes = self.used, _sizes_of(automaton)
        base, first_edge, first_token, first_set = used.values()
        states = slice(base, base + automaton.states)
        edges = slice(first_edge, first_edge + sizes["edges"])
        tokens = slice(first_token, first_token + sizes["tokens"])
        timer, timeout = automaton.timer, automaton.timeout
        self.edit[states] = automaton.edit
        sets = np.where(automaton.edit >= Edit.ALLOW, first_set, 0)
        self.operand[states] = automaton.operand + sets
        self.default_target[states] = automaton.default_target + base
        self.is_failure_link[states] = automaton.is_failure_link
        self.branches[states] = automaton.branches
        self.is_complete[states] = automaton.is_complete is not None and automaton.is_complete
        self.timer[states] = np.where(timer == CLEAR, np.int32(NO_TIMER), timer)
        self.timeout[states] = np.where(timeout >= 0, timeout + base, timeout)
        ends, edge_tokens = automaton.edges
        self.edge_ends[base + 1 : base + 1 + automaton.states] = ends[1:] + first_edge
        self.edge_tokens[edges] = edge_tokens
        self.targets[edges] = automaton.targets + base
        self.set_tokens[tokens] = automaton.set_tokens
        self.set_values[tokens] = automaton.set_values
        ends = automaton.set_ends + first_token
        self.set_ends[first_set + 1 : first_set + 1 + sizes["sets"]] = ends
        for what, size in sizes.items():
            used[what] += size
        self._bases[automaton] = base


def sizes_of(automata: Collection[Automaton]) -> dict[str, int]:
    """Return the room that a pool of some automata needs."""
    room = {"states": 1, "edges": 0, "tokens": 0, "sets": 0}
    for automaton in automata:
        for what, size in _sizes_of(automaton).items():
            room[what] += size
    return room


def _sizes_of(automaton: Automaton) -> dict[str, int]:
    return {
        "states": automaton.states,
        "edges": len(automaton.keys),
        "tokens": len(automaton.set_tokens),
        "sets": len(automaton.set_ends),
    }
