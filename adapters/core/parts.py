"""Parts: what specs compile to. A program has the parts of all specs of a request."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from ...spec import (
    ChainStep,
    DrySpec,
    NoLoopSpec,
    NoRepeatNgramSpec,
    PromptBiasSpec,
    SpecError,
)
from .automaton import Automaton, Lane
from .plugins import PluginPart


@dataclass(frozen=True, slots=True, eq=False)
class PerRequest:
    """A part of a program that ``make`` returns anew for each request."""

    make: Callable[[], PluginPart]


def failing(error: Exception, guard: "Program") -> "Program":
    """Return the program of a request that is to end with an error, and that a guard acts on."""

    def make() -> PluginPart:
        raise error

    return Program((Acting(PerRequest(make)),), guard=guard)


def rank_of(automaton: Automaton | None, lanes: Sequence[Lane]) -> int:
    """Find an automaton among a request's; -1 for none."""
    return next((i for i, lane in enumerate(lanes) if lane.automaton is automaton), -1)


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

    def ranks(self, lanes: Sequence[Lane]) -> tuple[int, int]:
        """Find ``forcing`` and ``block`` among a request's automata; -1 for none."""
        return rank_of(self.forcing, lanes), rank_of(self.block, lanes)


@dataclass(frozen=True, slots=True, eq=False)
class Grammar:
    """A grammar, of whose text the output, or a phase, consists.

    Attributes:
        start: the matcher before any token, a ``Start``. Each request has a copy.
        size: the number of tokens of the vocabulary. It stands for the end of the text.
        end_tokens: the tokens that may come where the text may end.
        closing: the automaton that ends the phase, if the grammar does; state 1 is the end. The
            rule sets it when no more text may follow.
    """

    start: Any
    size: int
    end_tokens: tuple[int, ...]
    closing: Automaton | None = None


@dataclass(frozen=True, slots=True)
class Chain:
    """The samplers of a request, which see what all other edits leave.

    A spec compiles to a chain without a temperature, with which no request can begin: see
    ``logitport.adapters.draws``.

    Attributes:
        steps: the steps.
        temperature: what the engine divides the logits by afterwards; 0 if that is not known.
    """

    steps: tuple[ChainStep, ...]
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Mark:
    """How the tokens of a request are drawn, so that a detector finds them.

    The token with the highest ``logit / temperature + noise`` is forced, of those that ``top_k``,
    ``top_p`` and ``min_p`` leave. The noise is a function of the key and the last tokens, as
    vLLM's "philox4x32-10-v1" has it: Gumbel noise, so tokens come as often as without a mark.

    A spec compiles to a mark without a key, with which no request can begin: see
    ``logitport.adapters.draws``.

    Attributes:
        profile: the name of the profile.
        key: the secret key, of 64 bits; -1 without one.
        temperature: the request's, above 0.
        top_k: how many of the likeliest tokens are left; 0 for all.
        top_p: the probability of the tokens that are left.
        min_p: the least probability of a token that is left, as a share of the likeliest's.
        width: how many tokens before choose the noise. Tokens before the output do not count.
        searched: how many newest positions are searched for the same tokens before. There, the
            engine draws by itself.
        reads_prompt: whether the prompt is searched, too, and the first ``width`` tokens are left.
    """

    profile: str
    key: int = -1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    width: int = 4
    searched: int = 8192
    reads_prompt: bool = False

    def words(self) -> tuple[int, int]:
        """Return the low and the high word of the key.

        Raises:
            SpecError: if it has none.
        """
        if self.key < 0:
            raise SpecError(f"This engine has no profile {self.profile!r} of marks")
        return self.key & 0xFFFFFFFF, self.key >> 32

    def steps(self) -> tuple[ChainStep, ...]:
        """List what the engine would do before it draws."""
        steps = [ChainStep(temperature=self.temperature)]
        if self.min_p > 0:
            steps.append(ChainStep(min_p=self.min_p))
        if self.top_k > 0:
            steps.append(ChainStep(top_k=self.top_k))
        if self.top_p < 1:
            steps.append(ChainStep(top_p=self.top_p))
        return tuple(steps)

    def __repr__(self) -> str:
        return f"Mark({self.profile!r})"  # the key is secret


TOKEN_ID_BYTES = 40
"""The bytes of a token id in a tuple: the pointer, and the integer."""

GRAMMAR_BYTES = 1 << 20
"""The bytes that a grammar counts for, whose states are made as they are needed."""

Part = (
    Automaton
    | NoRepeatNgramSpec
    | DrySpec
    | LoopRule
    | Grammar
    | Chain
    | Mark
    | PromptBiasSpec
    | PerRequest
)
RULES = NoRepeatNgramSpec, DrySpec, LoopRule, Grammar, Mark
"""Parts that look up the newest tokens in the history, in the order in which they act."""

P = TypeVar("P")


class Acting(NamedTuple):
    """A part of a program, and when it acts.

    Attributes:
        part: the part.
        phase: the number of its phase among those of all specs of the request; 0 acts always.
        end: see ``Lane``.
        specs: the indices of the specs from which it has been compiled.
    """

    part: Part
    phase: int = 0
    end: int = 0
    specs: Sequence[int] = ()


@dataclass(frozen=True, eq=False)
class Program:
    """The compiled form of the specs of one payload.

    Requests that carry the same payload share a program.

    Attributes:
        parts: what the specs compile to, in their order.
        since: ``[phases]``, 0 for the phases that a request begins in, -1 for others.
        may_lose: the kinds that others of the request may override, where the program has been
            admitted.
        end_token: the token that is forced where this program's edits leave none, see
            ``LastResort``. ``None`` lets a banned token come there.
        guard: the program whose edits come after all edits of this one: the operator's, or what
            draws.
        continued: the number of tokens at the prompt's end that count as output.
        lanes: the automata, shared by all requests that have this program.
        ngrams, dry, loops: the rules against n-grams, repetitions and loops, which are batched.
        grammars: the grammars, of which one acts at a time.
        chains, marks: what draws, which is in a program of its own, after all others.
        history_rules: all of these, as they act.
        prompt_biases: the biases that depend on the request's prompt alone, by phase.
        per_request: the parts that are made anew for each request.
    """

    parts: tuple[Acting, ...] = ()
    since: tuple[int, ...] = (0,)
    may_lose: tuple[str, ...] = ()
    end_token: int | None = None
    guard: "Program | None" = None
    continued: int = 0

    automata = cached_property(lambda self: self._of(Automaton))
    ngrams = cached_property(lambda self: self._of(NoRepeatNgramSpec))
    dry = cached_property(lambda self: self._of(DrySpec))
    loops = cached_property(lambda self: self._of(LoopRule))
    grammars = cached_property(lambda self: self._of(Grammar))
    chains = cached_property(lambda self: self._of(Chain))
    marks = cached_property(lambda self: self._of(Mark))
    per_request = cached_property(lambda self: self._of(PerRequest))

    def _of(self, kind: type[P]) -> tuple[P, ...]:
        return tuple(part for part, *_ in self.parts if isinstance(part, kind))

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """The automata, as they act."""
        return tuple(
            Lane(each.part, each.phase, each.end)
            for each in self.parts
            if isinstance(each.part, Automaton)
        )

    @cached_property
    def history_rules(self) -> tuple[Acting, ...]:
        """The rules about the history, as they act, ordered by ``RULES``."""
        return tuple(each for kind in RULES for each in self.parts if isinstance(each.part, kind))

    @cached_property
    def prompt_biases(self) -> Mapping[int, Sequence[PromptBiasSpec]]:
        """The biases towards the prompt's tokens, by phase."""
        biases: dict[int, list[PromptBiasSpec]] = {}
        for part, phase, *_ in self.parts:
            if isinstance(part, PromptBiasSpec):
                biases.setdefault(phase, []).append(part)
        return biases

    def __deepcopy__(self, _: object) -> "Program":
        """Return the program itself, which never changes: an engine may copy requests."""
        return self

    def then(self, other: "Program") -> "Program":
        """Let the edits of another program come after all edits of this one, its guard's too."""
        after = other if self.guard is None else self.guard.then(other)
        return replace(self, guard=after)

    def beside(self, other: "Program", specs: int) -> "Program":
        """Return the program of all parts, where the other specs come after so many.

        The other program has no phases.
        """
        moved = (each._replace(specs=[specs + i for i in each.specs]) for each in other.parts)
        return Program((*self.parts, *moved), self.since)

    @cached_property
    def compared(self) -> tuple[Acting, ...]:
        """What may contradict each other: ``automata``, ``ngrams`` and ``loops``, as they act."""
        kinds = Automaton, NoRepeatNgramSpec, LoopRule
        return tuple(each for kind in kinds for each in self.parts if isinstance(each.part, kind))

    def act_together(self, phase: int, other: int) -> bool:
        """Whether two phases may act at the same step: one ``phases`` has one at a time."""
        of_spec = [self.since[: each + 1].count(0) for each in (phase, other)]
        return phase == other or of_spec[0] != of_spec[1]

    @property
    def cells(self) -> int:
        """The size of the automata's tables: states, plus the tokens in their token sets."""
        return sum(automaton.cells for automaton in self.automata)

    @property
    def memory(self) -> int:
        """The bytes of the program, as compiled and in the tables of a running batch."""
        listed = sum(len(spec.allowed_token_ids) for spec in self.ngrams)
        listed += sum(len(spec.breaker_token_ids) for spec in self.dry)
        listed += sum(len(each.excluded_token_ids) for each in self._of(PromptBiasSpec))
        listed += GRAMMAR_BYTES // TOKEN_ID_BYTES * len(self.grammars)
        return TOKEN_ID_BYTES * listed + sum(each.table_bytes for each in self.automata)

    @property
    def prompt_rules(self) -> int:
        """The number of parts that read the prompt when a request enters."""
        return sum(_reads_prompt(part) for part, *_ in self.parts if not isinstance(part, RULES))

    @property
    def needs_history(self) -> bool:
        """Whether the edits depend on the output so far, be it only on its length."""
        return bool(self.history_rules or self.per_request) or any(
            automaton.states > 1 for automaton in self.automata
        )

    @property
    def reads_prompt(self) -> bool:
        """Whether a batched part depends on the prompt's token ids; callables may, too."""
        return any(
            _reads_prompt(part) and (self.since[phase] == 0 or isinstance(part, PromptBiasSpec))
            for part, phase, *_ in self.parts
        ) or (self.guard is not None and self.guard.reads_prompt)

    @property
    def needs_output_ids(self) -> bool:
        """Whether the edits depend on more than the output's length and the forced tokens."""
        return (
            bool(self.history_rules or self.per_request)
            or any(automaton.needs_output_ids for automaton in self.automata)
            or (self.guard is not None and self.guard.needs_output_ids)
        )


def _reads_prompt(part: Part) -> bool:
    """Whether a part that acts from the beginning depends on the prompt's token ids."""
    if isinstance(part, Automaton):
        return part.reads_prompt
    if isinstance(part, LoopRule):
        return not part.spec.output_only
    if isinstance(part, NoRepeatNgramSpec):
        return not part.output_only
    if isinstance(part, Mark):
        return part.reads_prompt
    return isinstance(part, DrySpec | PromptBiasSpec)
