"""Requests in slots: what acts on them, and what the host has read of their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from ....spec import DrySpec, NoRepeatNgramSpec
from ..automaton import NO_TIMER, Automaton, Edit, Lane
from ..automaton.automata import place
from ..automaton.history import TokenHistory
from ..automaton.pool import AutomatonPool
from ..callables import RequestCallables
from ..kinds.prompt_bias import bias_towards
from ..kinds.simple import adding, penalties
from ..parts import Program
from . import chain_kernel, mark_kernel
from .inputs import RequestInputs
from .loop_kernel import fields_of

ALL = 1 << 30
"""The window of a rule that has none, and the number of tokens read for automata that read none."""

INPUTS: dict[str, float] = {
    **{"admission": -1, "taken": ALL, "first_since": -1},
    **{"lanes": 0, "end_token": -1},
    **{"rules": -1, "penalties": 0.0, "loop": 0, "mark": 0, "draw": 0.0},
    **{"chain": 0, "chain_numbers": 0.0},
}
"""The arrays of ``RequestInputs``, with the values for requests that need none. The host has read
all of their tokens, so the kernel reads none."""


_DRAWING = "chain", "chain_numbers", "mark", "draw"

_holder = lru_cache(maxsize=64)(adding)
"""Builds an automaton that never runs: its state 0 brings a token set into the tables. Equal tokens
share one, so that the tables hold one copy of them."""


@dataclass(slots=True, eq=False)
class Request:
    """What acts on a request.

    Attributes:
        stop_token_id: a token that makes the engine end the request, if there is one.
        program: the compiled form of its specs.
        lanes: the automata that act on it, in the order of the specs.
        code: its own code.
        read: how many tokens the host has read; -1 before it has read any.
        origin: how many of these are the prompt's.
        places: the state and timer of each automaton then, and ``since``; see ``automata.place``.
        ends: whether the request has failed, so that only its stop token acts on it.
        holders: of each history rule, an automaton that holds its exempt tokens or breakers.
        drawing: what the kernels of chains and marks read, without which they are empty.
    """

    stop_token_id: int | None
    program: Program = field(default_factory=Program)
    lanes: Sequence[Lane] = ()
    code: RequestCallables | None = None
    read: int = -1
    origin: int = 0
    places: tuple[Sequence[tuple[int, int]], Sequence[int]] = (), (0,)
    ends: bool = False
    holders: dict[Any, Automaton] = field(init=False)
    drawing: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(_DRAWING, ()))

    def __post_init__(self) -> None:
        self.holders = {
            spec: _holder(
                spec.breaker_token_ids if isinstance(spec, DrySpec) else spec.allowed_token_ids
            )
            for spec in (*self.program.ngrams, *self.program.dry)
        }

    @classmethod
    def ending(cls, stop_token_id: int, lanes: Sequence[Lane]) -> "Request":
        """Make the request that replaces one whose specs have failed."""
        places = [(0, NO_TIMER)] * len(lanes), (0,)
        return cls(stop_token_id, lanes=lanes, read=ALL, places=places, ends=True)

    def start(self, prompt_ids: Sequence[int], output_ids: Sequence[int], vocab_size: int) -> None:
        """Let the automata read the tokens so far."""
        history = TokenHistory(prompt_ids, output_ids)
        for phase, specs in self.program.prompt_biases.items():
            biases = bias_towards(specs, history.prompt_array(), vocab_size)
            self.lanes = [*self.lanes, Lane(biases, phase)]
        self.places = place(self.lanes, self.program.since, history)
        self.origin, self.read = len(prompt_ids), len(prompt_ids) + len(output_ids)
        for mark in self.program.marks:
            counts, numbers = mark_kernel.fields_of(mark, self.origin)
            self.drawing |= {"mark": counts, "draw": numbers}
        for each in self.program.chains:
            counts, numbers = chain_kernel.fields_of(each)
            self.drawing |= {"chain": counts, "chain_numbers": numbers}

    def in_tables(self) -> list[Automaton]:
        """List the automata that must be in the tables."""
        return [*(each for each, *_ in self.lanes), *self.holders.values()]

    def write(self, slot: int, inputs: RequestInputs, tables: AutomatonPool) -> None:
        """Write what the kernels read of the request, whose automata are in the tables."""
        places, since = self.places
        lanes = [
            (tables.base_of(each), phase, end, *at)
            for (each, phase, end), at in zip(self.lanes, places, strict=True)
        ]
        sets = {spec: tables.operand[tables.base_of(it)] for spec, it in self.holders.items()}
        dry = next(iter(self.program.dry), None)
        rules: list[list[Any]] = [[-1, 0, 0, 0, 0]]
        for spec, phase, *_ in self.program.history_rules:
            if isinstance(spec, DrySpec):
                rules[0] = [spec.allowed_length, spec.range or ALL, 0, sets[spec], phase]
            elif isinstance(spec, NoRepeatNgramSpec):
                origin = self.origin if spec.output_only else 0
                rules.append([spec.n - 1, spec.window or ALL, origin, sets[spec], phase])
        inputs.put(
            slot,
            taken=[self.read] * bool(self.lanes),
            first_since=since,
            lanes=[*chain.from_iterable(lanes)],
            rules=[*chain.from_iterable(rules)],
            penalties=penalties(dry) if dry else [],
            loop=fields_of(self.program.history_rules, self.lanes, self.origin),
            **self.drawing,
        )

    def counts(self) -> tuple[int, int, bool, int, int, int, int, int]:
        """Count what acts on the request.

        Returns:
            The number of automata, that of phases, whether any automaton may ALLOW tokens or ban
            most of them, and the numbers of history rules, with one for a ``dry`` if there are any,
            of these alone, of rules about loops, of chains, and of marks.
        """
        kinds, own = (Edit.ALLOW, Edit.BAN_OTHERS), self.program
        allows = any(np.isin(automaton.edit, kinds).any() for automaton, *_ in self.lanes)
        rules = 1 + len(own.ngrams) if own.ngrams or own.dry else 0
        of_rules = len(own.dry), len(own.loops), len(own.chains), len(own.marks)
        return len(self.lanes), len(own.since), allows, rules, *of_rules
