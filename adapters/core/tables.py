"""The tables of many automata, end to end, so that one index reaches any state of any of them."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from .automaton import CLEAR, NO_TIMER, Automaton, Edit, Ints

# What indexes something is as wide as an index, so that no step converts it.
_COLUMNS: dict[str, dict[str, type[np.generic]]] = {
    "states": {
        "edit": np.int8,
        "argument": np.int64,
        "otherwise": np.int64,
        "consumes": np.bool_,
        "looks": np.bool_,
        "timer": np.int64,
        "timeout": np.int64,
    },
    "tokens": {"set_tokens": np.int64, "set_values": np.float32},
}
_COUNTED_AS = {name: what for what, columns in _COLUMNS.items() for name in columns} | {
    "keys": "edges",
    "targets": "edges",
}

_ROOM_AT_FIRST = {"states": 1 << 12, "edges": 1 << 12, "tokens": 1 << 12, "sets": 1 << 8}
ROOM_KEPT = 1 << 15
"""States, edges, tokens and sets for which there stays room, whether anything needs it or not."""


class Tables:
    """A growing pool of automata.

    An automaton stays while there is room, whether a request uses it at the moment or not. When
    there is none, those in use are kept, and the room is made twice what they need. (Under vLLM's
    V2 runner, which does not say when a request ends, it is in use until another one has its slot.)

    Attributes:
        edit, argument, ...: the columns of ``Automaton``, with states and token sets numbered
            through the pool, and ``CLEAR`` replaced by what it sets a timer to. What is beyond
            ``len(tables)`` states is not defined; unused ``keys`` are larger than any key.
        set_ends: ``[sets + 1]``, where each token set ends, after a leading 0.
        used: how many ``states``, ``edges``, set ``tokens`` and ``sets`` are in use.
        generation: counts the times that automata were moved, for who keeps a copy.
        has_timers: whether any automaton that is there has one.
    """

    edit: npt.NDArray[np.int8]
    argument: Ints
    otherwise: Ints
    consumes: npt.NDArray[np.bool_]
    looks: npt.NDArray[np.bool_]
    timer: Ints
    timeout: Ints
    keys: Ints
    targets: Ints
    set_tokens: Ints
    set_values: npt.NDArray[np.float32]
    set_ends: Ints

    def __init__(self, room: dict[str, int] | None = None) -> None:
        self.generation = 0
        self._clear(room or dict(_ROOM_AT_FIRST))

    def __len__(self) -> int:
        return self.used["states"]

    def _clear(self, room: dict[str, int]) -> None:
        self.has_timers = False
        self._bases: dict[Automaton, int] = {}
        self._room = room
        self.used = dict.fromkeys(room, 0)
        for what, columns in _COLUMNS.items():
            for name, dtype in columns.items():
                setattr(self, name, np.zeros(room[what], dtype))
        # A search for a key never runs off the end.
        self.keys = np.full(room["edges"] + 1, np.iinfo(np.int64).max)
        self.targets = np.zeros(room["edges"] + 1, np.int64)
        self.set_ends = np.zeros(room["sets"] + 1, np.int64)

    def base_of(self, automaton: Automaton) -> int | None:
        """Where the automaton's states start; ``None`` when there is no room for it."""
        base = self._bases.get(automaton)
        if base is None and all(
            self.used[what] + size <= self._room[what] for what, size in _sizes(automaton).items()
        ):
            base = self._append(automaton)
        return base

    def rebuilt(self, in_use: Iterable[Automaton]) -> "Tables":
        """Tables of these automata alone, which these ones may ``become``."""
        kept = list(dict.fromkeys(in_use))
        needed = _needed(kept)
        fresh = Tables(
            {what: max(min(room, ROOM_KEPT), 2 * needed[what]) for what, room in self._room.items()}
        )
        for automaton in kept:
            fresh._append(automaton)
        fresh.generation = self.generation + 1
        return fresh

    def rebuild(self, in_use: Iterable[Automaton]) -> None:
        """Forget all automata but these; where that fails, all is as it was."""
        self.become(self.rebuilt(in_use))

    def become(self, others: "Tables") -> None:
        """Take over what others hold. This cannot fail."""
        vars(self).update(vars(others))

    def is_mostly_unused(self, in_use: Iterable[Automaton]) -> bool:
        """Whether ``rebuild`` would give back most of the memory, and much of it."""
        large = [what for what, room in self._room.items() if room > 2 * ROOM_KEPT]
        if not large:
            return False
        needed = _needed(dict.fromkeys(in_use))
        return any(self._room[what] > 8 * needed[what] for what in large)

    def _append(self, automaton: Automaton) -> int:
        used, sizes = self.used, _sizes(automaton)
        base, first_set = used["states"], used["sets"]
        columns = {
            "edit": automaton.edit,
            "consumes": automaton.consumes,
            "looks": automaton.looks,
            "timer": np.where(automaton.timer == CLEAR, NO_TIMER, automaton.timer),
            "argument": automaton.argument + np.where(automaton.edit >= Edit.ALLOW, first_set, 0),
            "otherwise": automaton.otherwise + base,
            "timeout": np.where(
                automaton.timeout >= 0, automaton.timeout + base, automaton.timeout
            ),
            # Keys stay ascending: a later automaton's states have higher numbers.
            "keys": automaton.keys + (base << 32),
            "targets": automaton.targets + base,
            "set_tokens": automaton.set_tokens,
            "set_values": automaton.set_values,
        }
        set_ends = automaton.set_ends + used["tokens"]
        has_timers = self.has_timers or bool((automaton.timer >= 0).any())
        # From here on, nothing can fail: a key that is not in use is larger than any other.
        for name, values in columns.items():
            start = used[_COUNTED_AS[name]]
            getattr(self, name)[start : start + len(values)] = values
        self.set_ends[first_set + 1 : first_set + 1 + len(set_ends)] = set_ends
        self.has_timers = has_timers
        for what, size in sizes.items():
            used[what] += size
        self._bases[automaton] = base
        return base

    def cells(self, token_sets: Ints) -> tuple[Ints, Ints]:
        """The contents of token sets, one after the other.

        Args:
            token_sets: ``[k]`` numbers of sets.

        Returns:
            ``[total]`` which of the ``k`` each cell belongs to, and ``[total]`` its index in
            ``set_tokens`` and ``set_values``.
        """
        starts = self.set_ends[token_sets]
        lengths = self.set_ends[token_sets + 1] - starts
        owner = np.repeat(np.arange(len(token_sets)), lengths)
        before = np.cumsum(lengths) - lengths
        return owner, np.arange(len(owner)) + (starts - before)[owner]


def _needed(automata: Iterable[Automaton]) -> Counter[str]:
    needed: Counter[str] = Counter()
    for automaton in automata:
        needed.update(_sizes(automaton))
    return needed


def _sizes(automaton: Automaton) -> dict[str, int]:
    return {
        "states": automaton.states,
        "edges": len(automaton.keys),
        "tokens": len(automaton.set_tokens),
        "sets": len(automaton.set_ends),
    }
