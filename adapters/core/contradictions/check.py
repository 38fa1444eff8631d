"""The walk: whether the parts of a program contradict each other, whatever the model says.

All automata and rules run together, from the start. Where a token is forced, or a list leaves only
some, the walk follows these. Where the model is free, it stops, unless no automaton has an edge:
then all tokens lead to the same states. A program is refused

- if every way leads to a step that leaves no token,
- if an automaton cannot give an answer that it offers itself, because others refuse its tokens, or
- if it forces a token that another automaton refuses in each of its states.

A token is refused by a ban, by a list that does not have it, and by another forced token. Biases
refuse nothing. What depends on the model's choices is not a contradiction.

The walk knows no kinds. It ends after ``MAX_WORK``.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, combinations, islice
from typing import Any

import numpy as np

from ....spec import (
    LogitsProcessorSpec,
    NativeSpec,
    PluginSpec,
    PythonProcessorSpec,
    SpecError,
)
from ....spec.errors import Path
from ..automaton import Automaton
from ..automaton.arrays import distinct
from ..kinds.no_loop import NEVER, needs
from ..parts import Program
from ..program import compile_specs
from .follow import ALLOW, BAN, BAN_OTHERS, FORCE
from .report import BOTH, path_of, specs_of, why
from .runs import forces_after_loop
from .ways import Contradiction, Ways, budget

SPARE = 64
"""So many tokens more than automata edit: a rule cannot ban all of these in a few steps."""


def check_contradictions(
    specs: Sequence[LogitsProcessorSpec],
    program: Program,
    vocab_size: int | None = None,
    left: Any = None,
) -> None:
    """Refuse specs that cannot be obeyed together, as ``Walk.check`` does."""
    Walk(specs, program, vocab_size, left).check()


class Walk:
    """The walk of a request.

    Args:
        specs: the specs of the request.
        program: what they compile to.
        vocab_size: the number of the engine's tokens, if it is known.
        left: the work that is left, see ``budget``; by default, as much as a request has.
    """

    def __init__(
        self,
        specs: Sequence[LogitsProcessorSpec],
        program: Program,
        vocab_size: int | None = None,
        left: Any = None,
    ) -> None:
        self._specs, self._program, self._vocab_size = specs, program, vocab_size
        self._left = budget() if left is None else left
        # A rule about loops decides when these force.
        of_loops = [rule.forcing for rule in program.loops]
        self._on_demand = [i for i, each in enumerate(program.automata) if each in of_loops]
        self._refusing = [
            i
            for i, each in enumerate(program.automata)
            if i not in self._on_demand and _refuses(each)
        ]

    @cached_property
    def _ways(self) -> Ways:
        """The automata that refuse tokens, and the rules, up to a token that may end the request.

        Such a token counts as possible only where no other is left.
        """
        automata = [self._program.automata[i] for i in (*self._refusing, *self._on_demand)]
        ends = [token for spec in self._specs for token in _ends_of(spec)]
        on_demand = len(self._on_demand)
        return Ways(automata, self._program.ngrams, self._vocab_size, ends, on_demand, self._left)

    def contradiction(self) -> Contradiction | None:
        """Find the first contradiction. The prompt's tokens do not count for rules about n-grams.

        Returns:
            ``None`` if everything can be obeyed, or if the walk is too long.
        """
        automata, rules = self._program.automata, self._program.ngrams
        refusing = [automata[i] for i in self._refusing]
        edited = sum(int(each.set_sizes.max(initial=0)) for each in refusing) + SPARE * len(rules)
        may_edit_all = self._vocab_size is not None and edited >= self._vocab_size
        limiting = bool(self._on_demand) or any(is_any(each, *_LIMITS) for each in refusing)
        parts = len(refusing) + len(rules) + len(self._on_demand)
        if not may_edit_all and (not limiting or parts < 2):
            return None
        found = self._ways.from_the_start() or self._ways.anywhere()
        if found is None:
            return None
        part_of = (
            *self._refusing,
            *self._on_demand,
            *range(len(automata), len(automata) + len(rules)),
            -1,
        )
        return Contradiction(
            part_of[found.part], tuple(part_of[i] for i in found.others), found.token
        )

    def check(self) -> None:
        """Refuse specs that cannot be obeyed together, whatever the model says.

        Raises:
            SpecError: at a spec that forces or offers what others refuse, and with their paths.
        """
        found = self.contradiction()
        if found is None:
            self._check_loops()
            return
        specs, program = self._specs, self._program
        parts = (found.part, *found.others) if found.part >= 0 else found.others
        of_parts = [specs_of(found.token, specs, program.sources[part]) for part in parts]
        others = [program.automata[i] for i in parts[1:] if i < len(program.automata)]
        reason = why(found.token, others)
        named = {i for each in of_parts for i in each}
        index, path = max(named), Path()
        if found.token >= 0 and reason != BOTH:
            index = of_parts[0][-1]
            path = path_of(found.token, specs[index])
        if named == {index}:
            raise SpecError(f"Contradicts itself{reason}", "specs", index, *path)
        listed = chain.from_iterable((" and ", ("specs", i)) for i in sorted(named - {index}))
        raise SpecError(
            ("Conflicts with ", *islice(listed, 1, None), reason), "specs", index, *path
        )

    def _check_loops(self) -> None:
        """Refuse specs that force different tokens after the same loop.

        Raises:
            SpecError: at the later spec.
        """
        automata, rules = self._program.automata, self._program.loops
        sources = self._program.sources[len(automata) + len(self._program.ngrams) :]
        due = [
            (source[0], needs(rule.spec), rule.spec.then_token_ids[0])
            for source, rule in zip(sources, rules, strict=False)
            if rule.forcing is not None and rule.block is None
        ]
        pairs = [
            (i, j)
            for (i, one, then), (j, other, another) in combinations(due, 2)
            if then != another and any(a == b < NEVER for a, b in zip(one, other, strict=False))
        ]
        for i, enough, then in due:
            for k, text in self._ways.texts() if not pairs else ():
                is_ours = k < len(self._refusing)  # the others are those of rules
                if is_ours and forces_after_loop(*text, enough, then, self._left):
                    pairs.append((i, self._program.sources[self._refusing[k]][-1]))
        for pair in pairs:
            first, later = sorted(pair)
            raise SpecError(("Conflicts with ", ("specs", first), BOTH), "specs", later)

    def may_lose(self) -> tuple[str, ...]:
        """Return the kinds that others of the request may override, as the order of edits has it.

        The specs must not contradict each other. A kind that is not named is obeyed at each step,
        whatever the prompt and the model say; code of plugins aside. Kinds may be named that cannot
        lose.
        """
        automata, loops = self._program.automata, self._program.loops
        winning = [i for i in self._refusing if is_any(automata[i], FORCE, ALLOW)]
        winning += self._on_demand
        edited = sum(int(automata[i].set_sizes.max(initial=0)) for i in self._refusing)
        may_ban = sum(rule.spec.max_period for rule in loops if rule.forcing is None)
        if may_ban and self._vocab_size is not None and edited + may_ban >= self._vocab_size:
            winning += self._refusing  # between them, they may leave no token
        if not winning:
            return ()
        offered = distinct(np.concatenate([offered_by(automata[i]) for i in winning]))
        losing = [i for i in self._refusing if i not in winning and bans_any(automata[i], offered)]
        if len(winning) > 1:
            losing += winning
        forces = [False for _ in self._program.ngrams]
        forces += [rule.forcing is not None for rule in loops]
        losing = *losing, *(i for i, each in enumerate(forces, len(automata)) if not each)
        indices = {i for part in losing for i in self._program.sources[part]}
        return tuple(dict.fromkeys(self._specs[i].kind for i in sorted(indices)))


def offered_by(automaton: Automaton) -> Any:
    """Return the tokens that an automaton forces or allows in some state."""
    is_allowed = np.zeros(len(automaton.set_ends), np.bool_)
    is_allowed[automaton.operand[automaton.edit == ALLOW]] = True
    forced = automaton.operand[automaton.edit == FORCE]
    return np.append(forced, automaton.set_tokens[np.repeat(is_allowed, automaton.set_sizes)])


def bans_any(automaton: Automaton, tokens: Any) -> bool:
    """Whether an automaton bans one of some ascending tokens in some state, or may do so."""
    banned = automaton.set_tokens[automaton.set_values < BAN]
    if is_any(automaton, BAN_OTHERS) or not len(tokens):
        return len(tokens) > 0
    return bool((tokens.take(np.searchsorted(tokens, banned), mode="clip") == banned).any())


def check_without_engine(specs: Sequence[LogitsProcessorSpec]) -> None:
    """Check specs where the engine is not known: all but plugins, code, and specs about text.

    Raises:
        SpecError: as ``check_contradictions`` does. What does not compile is not checked.
    """
    left_out = NativeSpec | PluginSpec | PythonProcessorSpec
    which = [i for i, each in enumerate(specs) if not isinstance(each, left_out)]
    which = [i for i in which if not specs[i].needs_vocabulary]
    known = [specs[i] for i in which]
    try:
        program = compile_specs(known)
    except SpecError:  # admission says so
        return
    try:
        check_contradictions(known, program)
    except SpecError as error:
        raise error.specs_at(lambda i: ("specs", which[i])) from None


def _ends_of(spec: LogitsProcessorSpec) -> Iterator[int]:
    """Yield the tokens that a spec takes for the end of the request."""
    for path, token_ids in spec.token_fields():
        if "eos_token_id" in path or "stop_token_ids" in path:
            yield from token_ids


_LIMITS = FORCE, ALLOW, BAN_OTHERS


def _refuses(automaton: Automaton) -> bool:
    """Whether an automaton refuses a token in any of its states, and does not just add to some."""
    return bool((automaton.set_values < BAN).any()) or is_any(automaton, *_LIMITS)


def is_any(automaton: Automaton, *edits: int) -> bool:
    """Whether an automaton makes one of some edits in any of its states."""
    return any((automaton.edit == edit).any() for edit in edits)
