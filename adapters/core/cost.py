"""The cost of a program: computed from the program, bounded, and shown in refusals."""

from typing import NamedTuple

from ...spec import SpecError
from ...spec.limits import (
    DRY_CELLS,
    MAX_ENTRY_WORK,
    MAX_PROGRAM_BYTES,
    MAX_STEP_CELLS,
    NGRAM_CELLS,
    NGRAM_READING_WORK,
    PROMPT_BIAS_CELLS,
    READING_WORK,
    SHORT_WINDOW,
)
from .automaton import Automaton
from .parts import Program

TOKEN_ID_BYTES = 40
"""The bytes of a token id in a tuple: the pointer, and the integer."""


class Cost(NamedTuple):
    """The most that a program may cost, in numbers that do not depend on the machine.

    Attributes:
        admission: states, edges and tokens in sets that compiling has written.
        entry: units of work to read the prompt when a request enters the batch.
        step: logits that one step may change, or what else takes as long; the pass over a whole row
            that a list of allowed tokens needs is not included.
        memory: bytes of the program, as compiled and in the tables of a running batch.
    """

    admission: int = 0
    entry: int = 0
    step: int = 0
    memory: int = 0

    @classmethod
    def of(cls, program: Program) -> "Cost":
        """Compute the cost of a program, with a few numpy calls for each automaton."""
        allowed = sum(len(spec.allowed_token_ids) for spec in program.ngrams)
        allowed += sum(len(spec.breaker_token_ids) for spec in program.dry)
        excluded = sum(len(spec.excluded_token_ids) for spec in program.prompt_biases)
        windows = [spec.window for spec in program.ngrams] + [spec.range for spec in program.dry]
        biases = len(program.prompt_biases)
        reading = sum(map(_of_window, windows))
        parts = [_of_automaton(automaton) for automaton in program.automata]
        parts.append(
            cls(
                admission=allowed + excluded,
                entry=READING_WORK * biases + reading,
                step=NGRAM_CELLS * len(program.ngrams)
                + DRY_CELLS * len(program.dry)
                + PROMPT_BIAS_CELLS * min(biases, 1)
                + len(program.per_request),
                memory=TOKEN_ID_BYTES * (allowed + excluded),
            )
        )
        return cls(*map(sum, zip(*parts, strict=True)))

    def check(self) -> None:
        """Check the cost against the limits.

        Raises:
            SpecError: with the cost and the limit.
        """
        for got, most, what in (
            (self.entry, MAX_ENTRY_WORK, "units of work to read a prompt"),
            (self.step, MAX_STEP_CELLS, "logits that one step may change"),
            (self.memory, MAX_PROGRAM_BYTES, "bytes of memory"),
        ):
            if got > most:
                raise SpecError(
                    f"Expected specs that cost at most {most} {what}; these cost {got}", "specs"
                )


def _of_window(window: int | None) -> int:
    return 1 if window is not None and window <= SHORT_WINDOW else NGRAM_READING_WORK


def _of_automaton(automaton: Automaton) -> Cost:
    return Cost(
        admission=automaton.cells + len(automaton.keys),
        entry=READING_WORK * automaton.reads_prompt,
        step=1 + int(automaton.set_sizes.max(initial=0)),
        memory=automaton.table_bytes,
    )
