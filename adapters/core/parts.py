"""Parts: what specs compile to. A program has the parts of all specs of a request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from ...spec import DrySpec, NoRepeatNgramSpec, PromptBiasSpec
from .automaton import Automaton
from .plugins import PluginPart


@dataclass(frozen=True, slots=True, eq=False)
class PerRequest:
    """A part of a program that ``make`` returns anew for each request."""

    make: Callable[[], PluginPart]


TOKEN_ID_BYTES = 40
"""The bytes of a token id in a tuple: the pointer, and the integer."""

Part = Automaton | NoRepeatNgramSpec | DrySpec | PromptBiasSpec | PerRequest


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The compiled form of the specs of one payload.

    Requests that carry the same payload share a program.

    Attributes:
        automata: tables, shared by all requests that have this program.
        ngrams: the rules against n-grams, which are batched.
        dry: the rules against repetitions, which are batched.
        prompt_biases: the biases that depend on the request's prompt alone.
        per_request: the parts that are made anew for each request.
        sources: the indices of the specs from which each of ``automata``, and then each of
            ``ngrams``, has been compiled.
        may_lose: the kinds that others of the request may override, where the program has been
            admitted.
        end_token: the token that is forced where nothing but banned tokens is left, as in a list
            or a grammar. ``None`` leaves one of them to be chosen.
    """

    automata: tuple[Automaton, ...] = ()
    ngrams: tuple[NoRepeatNgramSpec, ...] = ()
    dry: tuple[DrySpec, ...] = ()
    prompt_biases: tuple[PromptBiasSpec, ...] = ()
    per_request: tuple[PerRequest, ...] = ()
    sources: tuple[Sequence[int], ...] = ()
    may_lose: tuple[str, ...] = ()
    end_token: int | None = None

    @classmethod
    def of(cls, parts: Sequence[Part], sources: Sequence[Sequence[int]] = ()) -> "Program":
        """Put parts together, in their order. ``sources`` are those of each part."""
        compared = Automaton, NoRepeatNgramSpec
        of_parts = [
            [each for part, each in zip(parts, sources, strict=False) if isinstance(part, kind)]
            for kind in compared
        ]
        return cls(
            tuple(part for part in parts if isinstance(part, Automaton)),
            tuple(part for part in parts if isinstance(part, NoRepeatNgramSpec)),
            tuple(part for part in parts if isinstance(part, DrySpec)),
            tuple(part for part in parts if isinstance(part, PromptBiasSpec)),
            tuple(part for part in parts if isinstance(part, PerRequest)),
            tuple(chain(*of_parts)),
        )

    def beside(self, other: "Program", specs: int) -> "Program":
        """Return the program of all parts, where the other specs come after so many."""
        count = len(other.automata)
        sources = [[specs + i for i in each] for each in other.sources]
        before, after = self.sources[: len(self.automata)], self.sources[len(self.automata) :]
        return Program(
            self.automata + other.automata,
            self.ngrams + other.ngrams,
            self.dry + other.dry,
            self.prompt_biases + other.prompt_biases,
            self.per_request + other.per_request,
            (*before, *sources[:count], *after, *sources[count:]),
        )

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
    def history_rules(self) -> tuple[NoRepeatNgramSpec | DrySpec, ...]:
        """All rules that look up the newest tokens in the history."""
        return self.ngrams + self.dry

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
        )

    @property
    def needs_output_ids(self) -> bool:
        """Whether the edits depend on more than the output's length and the forced tokens."""
        return bool(self.history_rules or self.per_request) or any(
            automaton.needs_output_ids for automaton in self.automata
        )
