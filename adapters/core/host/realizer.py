"""Realization on the host: the layer of the requests' programs, and that of their guards."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..callables import Report
from ..parts import Program
from ..program import ProgramOf
from .layer import Layer


class Realizer(Layer):
    """Realizes programs and their guards on the rows of one engine's batch.

    Guards are a layer of their own, which edits last. So what an operator forbids wins over what a
    client forces, and a guard acts on a request whose own specs have failed.
    """

    def __init__(
        self,
        vocab_size: int,
        program_of: ProgramOf = lambda program: program,
        report: Report | None = None,
    ) -> None:
        """See ``Layer``."""
        super().__init__(vocab_size, program_of, report)
        self._guards = Layer(vocab_size, report=report)

    def add(
        self,
        row: int,
        program: Program,
        prompt_ids: Sequence[int] | None,
        output_ids: Sequence[int],
        stop_token_id: int | None = None,
    ) -> None:
        """See ``Layer``."""
        super().add(row, program, prompt_ids, output_ids, stop_token_id)
        if (guard := program.guard) is not None:
            # A client's `ignore_eos` takes its own token away.
            stop = stop_token_id if guard.end_token is None else guard.end_token
            self._guards.add(row, guard, prompt_ids, output_ids, stop)

    def remove(self, row: int) -> None:
        """See ``Layer``."""
        super().remove(row)
        self._guards.remove(row)

    def rearrange(self, new_rows: Mapping[int, int]) -> None:
        """See ``Layer``."""
        super().rearrange(new_rows)
        self._guards.rearrange(new_rows)

    def apply(self, logits: Any) -> None:
        """See ``Layer``."""
        super().apply(logits)
        self._guards.apply(logits)
