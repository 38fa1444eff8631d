"""Parts: what specs compile to. A program has the parts of all specs of a request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from ...spec import DrySpec, NoLoopSpec, NoRepeatNgramSpec, PromptBiasSpec
from .automaton import Automaton
from .plugins import PluginPart


@dataclass(frozen=True, slots=True, eq=False)
class PerRequest:
    """A part of a program that ``make`` returns anew for each request."""

    make: Callable[[], PluginPart]


def failing(error: Exception, guard: "Program") -> "Program":
    """Return the program of a request that is to end with an error, and that a guard acts on."""

    def make() -> PluginPart:
        raise error

    return Program((PerRequest(make),), guard=guard)


@dataclass(frozen=True, slots=True, eq=False)
class LoopRule:
    """A rule against loops, which looks up the newest tokens in the history.

    Attributes:
        spec: the rule.
        forcing: the automaton with the tokens that it forces: state ``1 + i`` forces token ``i``.
            The rule sets its state at each step. ``None`` if it bans.
        block: the automaton that follows blocks, if it acts only within these.
        inside: the first of that automaton's states within a block.
    """

    spec: NoLoopSpec
    forcing: Automaton | None
    block: Automaton | None
    inside: int

    def ranks(self, automata: Sequence[Automaton]) -> tuple[int, int]:
        """Find ``forcing`` and ``block`` among a request's automata; -1 for none."""
        rank: dict[Automaton | None, int] = {each: i for i, each in enumerate(automata)}
        return rank.get(self.forcing, -1), rank.get(self.block, -1)


TOKEN_ID_BYTES = 40
"""The bytes of a token id in a tuple: the pointer, and the integer."""

Part = Automaton | NoRepeatNgramSpec | DrySpec | LoopRule | PromptBiasSpec | PerRequest


P = TypeVar("P")


@dataclass(frozen=True, eq=False)
class Program:
    """The compiled form of the specs of one payload.

    Requests that carry the same payload share a program.

    Attributes:
        parts: what the specs compile to, in their order.
        specs_of: the indices of the specs from which each part has been compiled.
        may_lose: the kinds that others of the request may override, where the program has been
            admitted.
        end_token: the token that is forced where this program's edits leave none, see
            ``LastResort``. ``None`` lets a banned token come there.
        guard: the program of the operator, whose edits come after all edits of this one.
        continued: the number of tokens at the prompt's end that count as output.
        automata: tables, shared by all requests that have this program.
        ngrams, dry, loops: the rules against n-grams, repetitions and loops, which are batched.
        prompt_biases: the biases that depend on the request's prompt alone.
        per_request: the parts that are made anew for each request.
    """

    parts: tuple[Part, ...] = ()
    specs_of: tuple[Sequence[int], ...] = ()
    may_lose: tuple[str, ...] = ()
    end_token: int | None = None
    guard: "Program | None" = None
    continued: int = 0

    automata = cached_property(lambda self: self._of(Automaton))
    ngrams = cached_property(lambda self: self._of(NoRepeatNgramSpec))
    dry = cached_property(lambda self: self._of(DrySpec))
    loops = cached_property(lambda self: self._of(LoopRule))
    prompt_biases = cached_property(lambda self: self._of(PromptBiasSpec))
    per_request = cached_property(lambda self: self._of(PerRequest))

    def _of(self, kind: type[P]) -> tuple[P, ...]:
        return tuple(part for part in self.parts if isinstance(part, kind))

    def __deepcopy__(self, _: object) -> "Program":
        """Return the program itself, which never changes: an engine may copy requests."""
        return self

    def beside(self, other: "Program", specs: int) -> "Program":
        """Return the program of all parts, where the other specs come after so many."""
        moved = ([specs + i for i in each] for each in other.specs_of)
        return Program(self.parts + other.parts, (*self.specs_of, *moved))

    @property
    def sources(self) -> tuple[Sequence[int], ...]:
        """The indices of the specs of each of ``automata``, ``ngrams`` and ``loops``."""
        compared = Automaton, NoRepeatNgramSpec, LoopRule
        every = [*zip(self.parts, self.specs_of, strict=False)]
        return tuple(each for kind in compared for part, each in every if isinstance(part, kind))

    @property
    def cells(self) -> int:
        """The size of the automata's tables: states, plus the tokens in their token sets."""
        return sum(automaton.cells for automaton in self.automata)

    @property
    def memory(self) -> int:
        """The bytes of the program, as compiled and in the tables of a running batch."""
        listed = sum(len(spec.allowed_token_ids) for spec in self.ngrams)
        listed += sum(len(spec.breaker_token_ids) for spec in self.dry)
        listed += sum(len(spec.excluded_token_ids) for spec in self.prompt_biases)
        return TOKEN_ID_BYTES * listed + sum(each.table_bytes for each in self.automata)

    @property
    def prompt_rules(self) -> int:
        """The number of parts that read the prompt when a request enters."""
        return len(self.prompt_biases) + sum(automaton.reads_prompt for automaton in self.automata)

    @property
    def history_rules(self) -> tuple[NoRepeatNgramSpec | DrySpec | LoopRule, ...]:
        """All rules that look up the newest tokens in the history."""
        return self.ngrams + self.dry + self.loops

    @property
    def needs_history(self) -> bool:
        """Whether the edits depend on the output so far, be it only on its length."""
        return bool(self.history_rules or self.per_request) or any(
            automaton.states > 1 for automaton in self.automata
        )

    @property
    def reads_prompt(self) -> bool:
        """Whether a batched part depends on the prompt's token ids; callables may, too."""
        return (
            bool(self.dry or self.prompt_biases)
            or any(automaton.reads_prompt for automaton in self.automata)
            or not all(spec.output_only for spec in self.ngrams)
            or not all(rule.spec.output_only for rule in self.loops)
            or (self.guard is not None and self.guard.reads_prompt)
        )

    @property
    def needs_output_ids(self) -> bool:
        """Whether the edits depend on more than the output's length and the forced tokens."""
        return (
            bool(self.history_rules or self.per_request)
            or any(automaton.needs_output_ids for automaton in self.automata)
            or (self.guard is not None and self.guard.needs_output_ids)
        )
