"""The tables of many automata, end to end, so that one index reaches any state of any of them."""

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


class Tables:
    """A growing pool of automata.

    An automaton stays while there is room, whether a request uses it at the moment or not. When
    there is none, those in use are kept, and the room is made at least twice what they need. (Under
    vLLM's V2 runner, which does not say when a request ends, it is in use until another one has
    its slot.)

    Attributes:
        edit, argument, ...: the columns of ``Automaton``, with states and token sets numbered
            through the pool, and ``CLEAR`` replaced by what it sets a timer to. What is beyond
            ``len(tables)`` states is not defined; unused ``keys`` are larger than any key.
        set_ends: ``[sets + 1]``, where each token set ends, after a leading 0.
        used: how many ``states``, ``edges``, set ``tokens`` and ``sets`` are in use.
        generation: counts the times that automata were moved, for who keeps a copy.
        has_timers: whether any automaton has ever had one.
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

    def __init__(self) -> None:
        self.generation = 0
        self.has_timers = False
        self._clear({"states": 1 << 12, "edges": 1 << 12, "tokens": 1 << 12, "sets": 1 << 8})

    def __len__(self) -> int:
        return self.used["states"]

    def _clear(self, room: dict[str, int]) -> None:
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

    def rebuild(self, in_use: Iterable[Automaton]) -> None:
        """Forget all automata but these; ``base_of`` tells where they are now."""
        kept = list(dict.fromkeys(in_use))
        room = {
            what: max(room, 2 * sum(_sizes(automaton)[what] for automaton in kept))
            for what, room in self._room.items()
        }
        self._clear(room)
        self.generation += 1
        for automaton in kept:
            self._append(automaton)

    def _append(self, automaton: Automaton) -> int:
        used = self.used
        base, first_set = used["states"], used["sets"]
        sizes = _sizes(automaton)
        at = {what: slice(used[what], used[what] + size) for what, size in sizes.items()}
        for name in ("consumes", "looks", "edit"):
            getattr(self, name)[at["states"]] = getattr(automaton, name)
        self.timer[at["states"]] = np.where(automaton.timer == CLEAR, NO_TIMER, automaton.timer)
        uses_set = automaton.edit >= Edit.ALLOW
        self.argument[at["states"]] = automaton.argument + np.where(uses_set, first_set, 0)
        self.otherwise[at["states"]] = automaton.otherwise + base
        self.timeout[at["states"]] = np.where(
            automaton.timeout >= 0, automaton.timeout + base, automaton.timeout
        )
        # Keys stay ascending: a later automaton's states have higher numbers.
        self.keys[at["edges"]] = automaton.keys + (base << 32)
        self.targets[at["edges"]] = automaton.targets + base
        self.set_tokens[at["tokens"]] = automaton.set_tokens
        self.set_values[at["tokens"]] = automaton.set_values
        self.set_ends[first_set + 1 : first_set + 1 + sizes["sets"]] = (
            automaton.set_ends + used["tokens"]
        )
        self.has_timers = self.has_timers or bool((automaton.timer >= 0).any())
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


def _sizes(automaton: Automaton) -> dict[str, int]:
    return {
        "states": automaton.states,
        "edges": len(automaton.keys),
        "tokens": len(automaton.set_tokens),
        "sets": len(automaton.set_ends),
    }
